"""Measures the cost of a sampled step beside the plain step and other tools, in one run.

``python -m tests.benchmarks.overhead`` takes four models with random weights: ResNet-50 (8 pictures
of 224²), ViT-B/16 (2), GPT-2 small (256 tokens), MobileNetV2 (8). its own process times each
way to look in pairs: the plain step and the observed one, in turns, in either order. Two more
processes tell the peak memory of each, above what they held after their imports. Printed are
medians with quartiles: the plain step's seconds, and the ratio within pairs.

``--only gradscope --models resnet50 -n 3`` runs a part; ``--clock cpu`` counts the processor's
seconds instead of those on the wall, for a machine that others use as well. ``--chain`` instead
shows the cost of one layer in chains of 100, 1 000 and 10 000.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.overhead_cases import CASES, ONLOOKERS, PACKAGES

LENGTHS = (100, 1_000, 10_000)


Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def pairs(model: str, who: str, rounds: int, clock: Clock) -> list[tuple[float, float]]:
    """Seconds of the plain step and of the observed one."""
    case = CASES[model]()
    step = ONLOOKERS[who](case)
    case.plain()
    step()
    gc.collect()  # what the imports left would be collected in one of the steps
    taken = []
    for turn in range(rounds):
        if turn % 2:
            observed = _seconds(step, clock)
            taken.append((_seconds(case.plain, clock), observed))
        else:
            taken.append((_seconds(case.plain, clock), _seconds(step, clock)))
    return taken


def peak(model: str, who: str) -> float:
    """Mebibytes at the peak of three steps, above the level after imports."""
    import torchvision
    import transformers.models.gpt2  # noqa: F401

    import gradscope

    gradscope.inspect(torchvision.ops.MLP(1, [1]), loss="sum")  # imports the rest
    if who in PACKAGES:
        importlib.import_module(PACKAGES[who])
    before = _held()
    step = ONLOOKERS[who](CASES[model]())
    for _ in range(3):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before


def chain(length: int, rounds: int, clock: Clock) -> list[tuple[float, float]]:
    """Microseconds for one layer, plain and observed, of each round."""
    import torch
    from torch import nn

    from tests.benchmarks.overhead_cases import Case, gradscope

    blocks = [nn.Sequential(*[nn.Linear(8, 8) for _ in range(10)]) for _ in range(length // 10)]
    x = torch.randn(4, 8)
    case = Case(nn.Sequential(*blocks), (x,), {}, None, torch.sum, ())
    step = gradscope(case)
    case.plain()
    step()
    gc.collect()
    each = 1e6 / length
    return [
        (each * _seconds(case.plain, clock), each * _seconds(step, clock)) for _ in range(rounds)
    ]


def _seconds(step: Callable[[], object], clock: Clock) -> float:
    began = clock()
    step()
    return clock() - began


def _held() -> float:
    """Mebibytes that the process holds now."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def child(what: str, options: argparse.Namespace, **more: Any) -> Any:
    """The answer of its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.overhead", "--child", what]
    command += ["--threads", str(options.threads), "-n", str(options.rounds)]
    command += ["--clock", options.clock]
    command += ["--arguments", json.dumps(more)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def answer(options: argparse.Namespace) -> None:
    """Inside the process: measure and print."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    more = json.loads(options.arguments)
    if options.child == "peak":
        print(json.dumps(peak(**more)))
    else:
        measure = {"pairs": pairs, "chain": chain}[options.child]
        print(json.dumps(measure(**more, rounds=options.rounds, clock=CLOCKS[options.clock])))


def rows(model: str, options: argparse.Namespace) -> Iterator[str]:
    """The table's lines for one model."""
    level = child("peak", options, model=model, who="plain")
    for who in options.only or ONLOOKERS:
        if who == "plain":
            continue
        if who in PACKAGES and importlib.util.find_spec(PACKAGES[who].split(".")[0]) is None:
            yield f"{model:<13} {who:<25} not installed"
            continue
        taken = child("pairs", options, model=model, who=who)
        above = child("peak", options, model=model, who=who)
        plain = _quartiles([first for first, _ in taken])
        ratio = _quartiles([second / first for first, second in taken])
        yield (
            f"{model:<13} {who:<25} {plain[1]:>7.3f} {plain[0]:>7.3f}–{plain[2]:<7.3f}"
            f" {ratio[1]:>6.3f} {ratio[0]:>7.3f}–{ratio[2]:<7.3f}"
            f" {level:>9.0f} {above:>8.0f} {above / level:>6.3f}"
        )


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4) if len(values) > 1 else values * 3


def chains(options: argparse.Namespace) -> None:
    """The cost of one layer by the length of the chain."""
    taken: dict[int, list[Any]] = {length: [] for length in LENGTHS}
    for _ in range(3):  # in turns, so that a machine whose speed drifts slows all alike
        for length in LENGTHS:
            taken[length] += child("chain", options, length=length)
    print(f"{'layers':>7} {'plain µs':>9} {'observed µs':>12} {'to 1 000':>9}")
    middle = {n: [statistics.median(c) for c in zip(*t, strict=True)] for n, t in taken.items()}
    for length, (plain, observed) in middle.items():
        ratio = observed / middle[1_000][1]
        print(f"{length:>7} {plain:>9.1f} {observed:>12.1f} {ratio:>9.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=9, help="pairs of each")
    parser.add_argument("--only", choices=ONLOOKERS, action="append")
    parser.add_argument("--models", choices=CASES, action="append")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        answer(options)
        return
    if options.chain:
        chains(options)
        return
    print(
        f"{'model':<13} {'who looks':<25} {'plain s':>7} {'quartiles':^15} {'ratio':>6}"
        f" {'quartiles':^15} {'plain MiB':>9} {'observed':>8} {'ratio':>6}"
    )
    for model in options.models or CASES:
        for line in rows(model, options):
            print(line, flush=True)


if __name__ == "__main__":
    main()
