"""GS607 on norms made by hand: what it must say of long and short runs, and what it must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gradscope.records.loop import LoopOptimizer, LoopRecord
from gradscope.records.report import Finding
from gradscope.rules._book import entries
from gradscope.training.loop.clipping import Clipping

(ENTRY,) = [entry for entry in entries() if entry.rule.code == "GS607"]


def found(clipping: Clipping, *, kind: str = "SGD", ended: bool = True) -> list[Finding]:
    record = LoopRecord(
        steps=1,
        optimizers=(LoopOptimizer("o", kind, None, 1, 1),),
        clippings=tuple(clipping.records()),
        ended=ended,
    )
    return [one.finding for one in ENTRY.find_in_loop(record, ENTRY.rule.limits())]


def measured(steps: int, after: Callable[[int], float | None]) -> Clipping:
    clipping = Clipping()
    for number in range(1, steps + 1):
        clipping.measured("o", 1.0, after(number))
    return clipping


@pytest.mark.parametrize(
    ("after", "fires"),
    [
        (lambda i: 0.01, True),
        (lambda i: 0.25, False),  # a fourth, every step
        (lambda i: 1.0, False),
        (lambda i: 0.01 if i % 10 else 1.0, False),  # nine steps in ten
        (lambda i: 0.01 if i % 40 else 1.0, True),
        (lambda i: 0.0, False),
        (lambda i: None, False),
        (lambda i: 0.01 if i < 160 else 1.0, False),  # it ends, and is forgotten
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_long_run(after: Callable[[int], float | None], fires: bool, ended: bool) -> None:
    assert bool(found(measured(300, after), ended=ended)) == fires


@pytest.mark.parametrize(
    ("steps", "after", "ended", "fires"),
    [
        (16, lambda i: 0.01, True, True),
        (15, lambda i: 0.01, True, False),
        (90, lambda i: 0.01, False, False),  # it may be the beginning alone
        (90, lambda i: 0.01 if i > 1 else 1.0, True, False),
        (90, lambda i: 0.05, True, False),
    ],
)
def test_a_short_run(
    steps: int, after: Callable[[int], float | None], ended: bool, fires: bool
) -> None:
    assert bool(found(measured(steps, after), ended=ended)) == fires


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("SGD", "warning"), ("AdamW", "info"), ("Adam8bit", "info"), ("Lion", "info")],
)
def test_an_optimizer_that_divides_by_the_size(kind: str, severity: str) -> None:
    (one,) = found(measured(200, lambda i: 0.01), kind=kind)
    assert one.severity == severity
    assert (kind in one.message) == (severity == "info")


def test_a_call_counts_and_not_what_is_read_beside_it() -> None:
    clipping = measured(30, lambda i: 1.0)
    for _ in range(48):
        clipping.clipped("o", torch.tensor(0.5), 1e-3, "train.py:3")
        clipping.measured("o", 1.0, 1.0)
    (one,) = found(clipping)
    assert one.message.startswith(
        "every step is clipped, all 48, the median one by a factor of 500"
    )
    assert one.location == "train.py:3"


def test_numbers_that_are_none_are_left_out() -> None:
    clipping = Clipping()
    for norm in (torch.tensor(float("nan")), torch.tensor(float("inf")), None, torch.ones(2)):
        clipping.clipped("o", norm, 1.0, None)
    clipping.clipped("o", torch.tensor(2.0), 0.0, None)
    (one,) = clipping.records()
    assert (one.known, one.shortened) == (1, 0)
