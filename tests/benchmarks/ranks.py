"""Measures the size of many ranks' files, and the time of ``show`` to combine them.

``python -m tests.benchmarks.ranks`` writes a run of 512 ranks (``--ranks N``) through the real
writer: a sharded model of 48 parameters, 200 steps, 6 of them looked at, with a rank whose
parameters part from the others'. It prints the bytes of a file, and the seconds of ``show``. Then
it writes one rank of a model as large as Llama 2 with 70 billion parameters, and prints what a
sample and a day of it take: multiply by the ranks.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gradscope.api.reading import read_history
from gradscope.capture.differences import combined
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Report
from gradscope.records.run import DeviceMesh, ParameterPlacement, RunInfo
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.records.training import (
    Fingerprints,
    StepSample,
    TrainedModel,
    TrainingRecord,
    TrainingRun,
    TrainingStep,
)
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter

RUN = TrainingRun("train.py", 1.7e9)
#: Layers, the parameters of each, and the calls of each: of a small model, and of Llama 2 70B.
SMALL, LLAMA = (8, 6, 8), (80, 9, 12)
#: Steps that are looked at: three at the start, then as many as a budget of 2 % pays for, where a
#: look takes as long as two steps of ten seconds.
A_DAY, LOOKS_A_DAY = 8640, 3 + 8640 // 128


def stats(draw: random.Random) -> TensorStats:
    """With numbers of full length."""
    numbers = [abs(draw.gauss(0, 1)) for _ in range(5)]
    return TensorStats((8192, 8192), "bfloat16", 1 << 26, *numbers, draw.randrange(1000), 0, 0)


def records(
    rank: int, ranks: int, size: tuple[int, int, int], looks: list[int]
) -> Iterator[TrainingRecord]:
    """Yield one rank's records of its model and of each sample."""
    layers, weights, calls = size
    names = [f"layers.{i}.part{k}.weight" for i in range(layers) for k in range(weights)]
    yield TrainedModel(1, "model", "Llama", 1 << 30, 1 << 30, layers * calls, wrapper="FSDP")
    yield DeviceMesh(1, ("dp",), (ranks,), tuple(range(ranks)), (rank,))
    for name in names:
        shapes = (8192, 8192), (8192 // ranks, 8192)
        yield ParameterPlacement(1, name, *shapes, 1, ("S(0)",), ("S(0)",), 0)
    for step in looks:
        draw = random.Random(rank * 100_000 + step)
        report = Report(
            *("ok", RunInfo("model", "cuda:0", "bfloat16", "train", 0, 1, "the script's own")),
            loss=draw.random(),
            calls=tuple(
                ModuleCall(
                    *(f"layers.{i}.part{k}", "Linear", 0, i * calls + k, (), True, ()),
                    (TensorRecord("0", stats(draw), stats(draw), "MmBackward0", True),),
                    (TensorRecord("", stats(draw), stats(draw), "MmBackward0", True),),
                )
                for i in range(layers)
                for k in range(calls)
            ),
            parameters=tuple(
                ParameterStats(name, (8192, 8192), True, stats(draw), stats(draw), draw.random())
                for name in names
            ),
        )
        yield StepSample(step, 1, report, optimizer="optimizer", settings={"lr": 1e-4})
        for kind in ("parameter", "gradient"):
            odd = rank == 1 and kind == "parameter" and step == looks[-1]
            texts = {name: combined([name, kind, str(step)]) for name in names}
            texts |= {names[0]: "odd"} if odd else {}
            yield Fingerprints(step, 1, kind, "", combined([*texts.values()]), texts)
        text = combined([str(rank), str(step)])
        yield Fingerprints(step, 1, "input", str(rank), text, {"0": text})


def write(folder: Path, rank: int, ranks: int, size: tuple[int, int, int], steps: int) -> Path:
    """The file of one rank, as the writer's thread writes it."""
    run = replace(RUN, rank=rank, world_size=ranks)
    writer = RunWriter(folder / f"rank-{rank}.db", run)
    looks = [1, 2, 3, *range(steps // 4, steps, steps // 4)]
    writer.add(*records(rank, ranks, size, looks))
    for n in range(1, steps + 1):
        x = 1 / n
        norms = ((0, x, x),)
        writer.add(
            TrainingStep(
                *(n, "optimizer", n, n * 10.0, 10.0, (x,), None, x, x, (1e-4,)),
                sampled=n in looks,
                norms=norms,
                batch=8,
            )
        )
    writer.finish(replace(run, ended=RUN.started + steps, exit="0", steps=steps))
    if writer.failure is not None:
        raise RuntimeError(writer.failure)
    return writer.path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=512)
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        folder.mkdir()
        began = time.perf_counter()
        sizes = [write(folder, n, ranks, SMALL, 200).stat().st_size for n in range(ranks)]
        took = time.perf_counter() - began
        print(f"{ranks} ranks written in {took:.0f} s, {sum(sizes) / 1e6:.0f} MB")
        began = time.perf_counter()
        with RunFile.open(folder) as run:
            history = read_history(run)
        found = [one.finding.code for one in history.findings]
        print(f"read in {time.perf_counter() - began:.1f} s; found {found}")
        for words in (["show"], ["show", "--rank", "7"], ["why"]):
            began = time.perf_counter()
            command = [sys.executable, "-m", "gradscope", words[0], str(folder), *words[1:]]
            subprocess.run(command, check=True, capture_output=True)
            print(f"gradscope {' '.join(words)}: {time.perf_counter() - began:.1f} s")
        _on_paper(Path(name))


def _on_paper(folder: Path) -> None:
    empty = write(folder, 0, 1000, (0, 0, 0), 8).stat().st_size
    one = write(folder, 1, 1000, LLAMA, 8).stat().st_size
    signs = (write(folder, 2, 1000, (0, 0, 0), A_DAY).stat().st_size - empty) / 1e6
    looks = len([1, 2, 3, *range(2, 8, 2)])
    sample = (one - empty) / looks / 1e6
    day = signs + LOOKS_A_DAY * sample
    print(f"70 B, one of 1,000 ranks: {sample:.2f} MB a sample, {day:.0f} MB a day of 10 s steps")
    print(f"all 1,000: {sample:.1f} GB a sample, {day:.0f} GB a day")


if __name__ == "__main__":
    main()
