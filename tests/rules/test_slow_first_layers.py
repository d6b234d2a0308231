"""GS610 on ratios and losses made by hand: both must hold, and the one layer is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.records.loop import LoopOptimizer, LoopRecord
from gradscope.records.loop_figures import Course, LayerGradient, LoopDepth
from gradscope.rules._book import entries

(ENTRY,) = [entry for entry in entries() if entry.rule.code == "GS610"]
STANDS = Course(
    first=1.2,
    began=4,
    middle=1.1,
    last=1.1,
    error=0.01,
    spread=0.1,
    lowest=1.0,
    since=100,
    steps=99,
)
OPTIMIZER = LoopOptimizer("o", "SGD", None, 300, 6)


def named(
    *ratios: float, course: Course | None = STANDS, samples: int = 12, optimizers: int = 1
) -> list[str]:
    layers = tuple(LayerGradient(f"l{i}", ratio) for i, ratio in enumerate(ratios))
    record = LoopRecord(
        steps=300,
        optimizers=(OPTIMIZER,) * optimizers,
        course=course,
        depths=(LoopDepth(0, "o", samples, layers, "last"),),
    )
    return [one.finding.name for one in ENTRY.find_in_loop(record, ENTRY.rule.limits())]


@pytest.mark.parametrize(
    ("ratios", "names"),
    [
        ((2e-4, 1e-3, 8e-3, 6e-2), ["l1"]),
        ((1e-5, 1e-4, 1.9e-3, 0.1), ["l2"]),
        ((3e-3, 1e-2, 0.1), []),
        ((1e-5, 1e-5, 0.5, 0.9), []),  # queries and keys, before the values
        ((0.0, 0.0, 0.5), []),  # GS103's
        ((1e-4,), []),  # it jumps
        ((1.5e-3, 0.1), ["l0"]),
        ((), []),
    ],
)
def test_the_layer_nearest_the_loss(ratios: tuple[float, ...], names: list[str]) -> None:
    assert named(*ratios) == names


@pytest.mark.parametrize(
    "course",
    [
        None,
        replace(STANDS, last=1.07),  # it falls
        replace(STANDS, first=3.0),  # it fell
        replace(STANDS, spread=0.9),
        replace(STANDS, lowest=-0.1),
    ],
)
def test_a_loss_that_does_not_stand(course: Course | None) -> None:
    assert named(2e-4, 1e-3, 8e-3, course=course) == []


def test_too_few_samples_and_two_optimizers() -> None:
    assert named(2e-4, 1e-3, 8e-3, samples=7) == []
    assert named(2e-4, 1e-3, 8e-3, optimizers=2) == []
