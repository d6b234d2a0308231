"""Measures a run file's cost: the script's time, the thread's, the disk, and ``show``'s time.

``python -m tests.benchmarks.runfile`` prints the microseconds of ``add``, the bytes and the
thread's milliseconds of a sample of ResNet-50 and of GPT-2, the bytes of step metrics and of the
norms of their parameters, and how long a run of 100,000 steps and 500 layers takes to read: seconds
of the processor, and of the clock. Then it kills a run a hundred times, and prints how old the
oldest step was that the file lacked.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import gradscope
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.records.run import RunInfo
from gradscope.records.tensors import (
    VALUES_EVERY,
    NormNames,
    ParameterNorms,
    TensorRecord,
    TensorStats,
    packed,
)
from gradscope.records.training import StepSample, TrainingRun, TrainingStep
from gradscope.runfile import database, schema
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter

RUN = TrainingRun("train.py", 1.7e9)


def step(number: int, sampled: bool = False) -> TrainingStep:
    """Step metrics with numbers of full length."""
    one = 1 / (number + 0.1)
    times = (number * 0.0171, 0.0171 + one / 1000)
    return TrainingStep(
        number, "optimizer", number, *times, (one,), None, one, one, (one,), None, sampled
    )


def reports() -> dict[str, Report]:
    """One step of each model, as ``inspect`` looks at it."""
    import torchvision
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(50257, (1, 32))
    return {
        "ResNet-50": gradscope.inspect(torchvision.models.resnet50(), torch.randn(2, 3, 64, 64)),
        "GPT-2": gradscope.inspect(GPT2LMHeadModel(GPT2Config()), tokens),
    }


def stored(folder: Path, samples: list[StepSample], steps: int = 0) -> int:
    """The size of a finished file with these samples and that many step metrics."""
    writer = RunWriter(folder / f"{time.monotonic_ns()}.db", RUN)
    for number in range(1, steps + 1):
        writer.add(step(number))
    for sample in samples:
        writer.add(sample)
        while writer._weight > 2000:
            time.sleep(0.01)
    while writer._waiting:
        time.sleep(0.01)
    writer.finish(RUN)
    if writer.failure is not None:
        raise RuntimeError(writer.failure)
    size = writer.path.stat().st_size
    writer.path.unlink()
    return size


def seconds(
    act: Callable[[], Any], clock: Callable[[], float] = time.process_time, rounds: int = 5
) -> float:
    """The median."""
    took = []
    for _ in range(rounds):
        began = clock()
        act()
        took.append(clock() - began)
    return statistics.median(took)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _adding(folder)
        made = reports()
        for model, report in made.items():
            _sample(folder, model, report)
        empty, full = stored(folder, []), stored(folder, [], 100_000)
        print(f"step metrics: {(full - empty) / 1e6:.1f} MB for 100,000 steps")
        for model, report in made.items():
            _norms(folder, model, [one.name for one in report.parameters])
        _reading(folder, made["ResNet-50"])
        _killing(folder, 100)


def _norms(folder: Path, model: str, names: list[str]) -> None:
    """The bytes of each step whose gradients are read, without clipping and with it."""
    draw = random.Random(0)
    sizes = []
    for clips in (False, True):
        writer = RunWriter(folder / f"{time.monotonic_ns()}.db", RUN)
        writer.add(NormNames(1, 0, tuple(names)))
        for number in range(1, 2001):
            norms = [packed([draw.random() for _ in names]) for _ in range(3)]
            clipped = norms[1] if clips else None
            value = norms[2] if number % VALUES_EVERY == 0 else None
            writer.add(ParameterNorms(number, 1, number, norms[0], clipped, value))
        writer.finish(RUN)
        sizes.append(writer.path.stat().st_size / 2000)
    print(f"norms of {model}, {len(names)} parameters: {sizes[0]:.0f} bytes a step", end="")
    print(f", {sizes[1]:.0f} where it is clipped")


def _adding(folder: Path) -> None:
    writer = RunWriter(folder / "adding.db", RUN)
    took = []
    for number in range(1, 3001):
        one = step(number)
        began = time.perf_counter()
        writer.add(one)
        took.append(time.perf_counter() - began)
        time.sleep(0.0005)
    writer.finish(RUN)
    took.sort()
    print(f"add: {took[1500] * 1e6:.1f} µs, one in a hundred {took[2970] * 1e6:.0f} µs or more")


def _sample(folder: Path, model: str, report: Report) -> None:
    # Numbers differ from sample to sample, names and shapes do not.
    samples = [StepSample(number, 0, _other(report, number)) for number in range(1, 21)]
    bytes_ = (stored(folder, samples) - stored(folder, [])) / len(samples)
    rows = seconds(lambda: database.Batch().add(samples[0]))
    calls, parameters = len(report.calls), len(report.parameters)
    print(
        f"{model}: {calls} calls, {parameters} parameters: {bytes_ / 1e3:.0f} kB a sample, "
        f"{rows * 1e3:.0f} ms of the thread, {bytes_ * schema.KEEP / 1e6:.0f} MB for {schema.KEEP}"
    )


def _other(report: Report, number: int) -> Report:
    """The same network with other numbers."""
    factor = 1 + number / 7

    def scaled(tensor: Any) -> Any:
        names = ("norm", "mean", "std", "min", "max")
        values = {n: getattr(tensor, n) for n in names}
        return replace(tensor, **{n: v if v is None else v * factor for n, v in values.items()})

    def record(one: Any) -> Any:
        gradient = None if one.gradient is None else scaled(one.gradient)
        return replace(one, activation=scaled(one.activation), gradient=gradient)

    return replace(
        report,
        calls=tuple(
            replace(c, inputs=tuple(map(record, c.inputs)), outputs=tuple(map(record, c.outputs)))
            for c in report.calls
        ),
        parameters=tuple(
            replace(p, value=scaled(p.value), gradient=p.gradient and scaled(p.gradient))
            for p in report.parameters
        ),
    )


def _killing(folder: Path, rounds: int) -> None:
    """Runs of a thousand steps a second, every fiftieth looked at, killed at random moments."""
    context = multiprocessing.get_context("fork")
    oldest = []
    for number in range(rounds):
        path, log = folder / f"{number}.db", folder / f"{number}.log"
        process = context.Process(target=_write_until_killed, args=(path, log))
        process.start()
        while not log.exists() or not log.stat().st_size:
            time.sleep(0.01)
        time.sleep(random.Random(number).uniform(0.5, 2.5))
        at = time.monotonic()
        process.kill()
        process.join()
        with RunFile.open(path) as file:
            held = file.last_step
            if len(file.steps()) != held:
                raise RuntimeError(f"a step is missing before {held}")
        data = log.read_bytes()
        added = list(struct.iter_unpack("=qd", data[: len(data) // 16 * 16]))
        oldest.append(max((at - when for one, when in added if one > held), default=0.0))
    oldest.sort()
    print(
        f"killed {rounds} times: the oldest step lost was {oldest[rounds // 2]:.2f} s old "
        f"(median), {oldest[-1]:.2f} s (the most)"
    )


def _write_until_killed(path: Path, log: Path) -> None:
    stats = TensorStats((64,), "float32", 64, 1.5, 0.1, 0.2, -1.0, 1.0, 0, 0, 0)
    tensor = TensorRecord("", stats, stats, "AddBackward0", True)
    calls = tuple(
        ModuleCall(f"layer{i}", "Linear", 0, i, inputs=(tensor,), outputs=(tensor,))
        for i in range(20)
    )
    info = RunInfo("net", "cpu", "float32", "train", 0, 1, "mse_loss")
    report = Report("ok", info, calls=calls)
    writer = RunWriter(path, RUN)
    with log.open("wb", buffering=0) as added:
        for number in itertools.count(1):
            sample = [StepSample(number, 0, report)] * (number % 50 == 0)
            writer.add(step(number), *sample)
            added.write(struct.pack("=qd", number, time.monotonic()))
            time.sleep(0.001)


def _reading(folder: Path, report: Report) -> None:
    """A run as long as ``show`` must cope with: 100,000 steps, 500 layers, all samples kept."""
    calls = tuple(
        replace(report.calls[i % len(report.calls)], name=f"layer{i}") for i in range(500)
    )
    parameters = tuple(
        replace(report.parameters[i % len(report.parameters)], name=f"layer{i}.weight")
        for i in range(500)
    )
    large = replace(report, calls=calls, parameters=parameters)
    connection = database.create(folder / "long.db", RUN)
    for first in range(1, 100_001, 1000):
        batch = database.Batch()
        for number in range(first, first + 1000):
            wanted = number % 195 == 0
            batch.add(step(number, wanted))
            if wanted:
                batch.add(StepSample(number, 0, large))
        with database.transaction(connection):
            batch.write(connection)
    database.close(connection)
    with RunFile.open(folder / "long.db") as file:
        sampled = file.sampled
        asked: dict[str, Callable[[], Any]] = {
            "steps()": file.steps,
            "call_series()": file.call_series,
            "parameter_series()": file.parameter_series,
            "sample(step)": lambda: file.sample(sampled[-1]),
        }
        print(f"100,000 steps, 500 layers, {len(sampled)} samples:")
        print(f"  {(folder / 'long.db').stat().st_size / 1e6:.0f} MB")
        for question, ask in asked.items():
            used, took = (
                seconds(ask, clock, 3) for clock in (time.process_time, time.perf_counter)
            )
            print(f"  {question:<20} {used:.2f} s, {took:.2f} s by the clock")


if __name__ == "__main__":
    main()
