"""Measures how well ``gradscope diff`` finds faults, and leaves correct changes alone.

``python -m tests.comparison.faults`` plants a fault at random into one of two copies of a network,
or has one compute the same otherwise, and compares the two: live, and by their saved sketches. It
prints each try and how many came out right; it ends with 1 where more than one of twenty did not,
or a fault was found where there is none.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch import Tensor, nn

import gradscope
from comparison.honest import HONEST
from comparison.nets import NETS, Net, built
from comparison.planted import FAULTS
from gradscope.comparison.reports import compare_reports
from gradscope.nesting import replaced
from gradscope.records.diff import DiffReport
from gradscope.records.report import Report

WAYS = ("live", "saved")
#: Of twenty tries so many have to be right.
RIGHT = 19 / 20


@dataclass(frozen=True)
class Try:
    """One comparison: what was to be found, as code and place; None is nothing."""

    what: str
    expected: tuple[str, str] | None
    report: DiffReport

    @property
    def found(self) -> tuple[str, str] | None:
        """The first error; a module that one of the two has not is none."""
        errors = (f for f in self.report.findings if f.severity == "error")
        return next(((f.code, f.name) for f in errors), None)

    @property
    def right(self) -> bool:
        return self.found == self.expected


def compared(net: Net, other: nn.Module, way: str) -> DiffReport:
    """The network with another, live or by their saved reports."""
    if way == "live":
        return gradscope.diff(net.model, other, net.inputs, target=net.target, loss=net.loss)
    return compare_reports(saved(net, net.model), saved(net, other))


def saved(net: Net, model: nn.Module) -> Report:
    return gradscope.inspect(model, net.inputs, target=net.target, loss=net.loss, sketch=True)


def faults(name: str, way: str, tries: int, seed: int) -> Iterator[Try]:
    """Faults of all kinds in turn, each at a random layer of a network with random weights."""
    for number in range(tries):
        net = built(name, seed + number)
        other = copy.deepcopy(net.model)
        plant = FAULTS[number % len(FAULTS)]
        place, code = plant(other, random.Random(seed + number))
        what = f"{plant.__name__.replace('_', ' ')} in {place}"
        yield Try(what, (code, place), compared(net, other, way))


def honest(name: str, way: str, seed: int, *, compiled: bool = True) -> Iterator[Try]:
    """Everything that is the same computed otherwise, by PyTorch's compiler too."""
    for number, (what, change) in enumerate(HONEST[name].items()):
        net = built(name, seed + number)
        other = copy.deepcopy(net.model)
        change(other)
        yield Try(what, None, compared(net, other, way))
    if way == "live" and compiled:
        net = built(name, seed)
        other = copy.deepcopy(net.model)
        other.compile(backend="aot_eager")
        yield Try("compiled", None, compared(net, other, way))
    if way == "live":
        for what, order in ORDERS.items():
            yield Try(what, None, in_order(built(name, seed), order))


#: Another batch of B: places of A's samples.
ORDERS = {"samples in another order": [2, 0, 3, 1], "half of the samples": [3, 1]}


def in_order(net: Net, order: list[int]) -> DiffReport:
    """The network with itself on other samples; in evaluation, where no layer mixes them."""
    net.model.eval()
    inputs = replaced(net.inputs, Tensor, lambda tensor: tensor[order])
    target = None if net.target is None else net.target[order]
    return gradscope.diff(
        net.model,
        copy.deepcopy(net.model),
        net.inputs,
        target=net.target,
        loss=net.loss,
        inputs_b=inputs,
        target_b=target,
    )


def counted(title: str, tries: Iterator[Try]) -> tuple[int, int]:
    """Print each try; return how many are right, and how many there are."""
    right, every, began = 0, 0, time.perf_counter()
    for one in tries:
        every += 1
        right += one.right
        took, began = time.perf_counter() - began, time.perf_counter()
        print(f"  {'right' if one.right else 'WRONG'}  {one.what}  ({took:.1f} s)", flush=True)
        if not one.right:
            for finding in one.report.findings:
                print(f"         {finding.code} {finding.name}: {finding.message}", flush=True)
    print(f"{title}: {right} of {every}", flush=True)
    return right, every


def main() -> int:
    """Try and print; by the exit code, whether it is good enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "nets", nargs="*", default=["resnet18", "vit", "gpt2"], help=", ".join(NETS)
    )
    parser.add_argument("--way", action="append", choices=WAYS, help="both, if not given")
    parser.add_argument("--tries", type=int, default=20, help="faults of each network")
    parser.add_argument("--seed", type=int, default=0, help="of the first try")
    parser.add_argument("--no-honest", action="store_true", help="faults alone")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "TF32 acceleration")  # of PyTorch, of another device
    good = True
    for way in given.way or WAYS:
        for name in given.nets:
            right, every = counted(
                f"{name}, {way}: faults at their place",
                faults(name, way, given.tries, given.seed),
            )
            good &= right >= RIGHT * every
            if not given.no_honest:
                right, every = counted(
                    f"{name}, {way}: honest pairs", honest(name, way, given.seed)
                )
                good &= right == every
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
