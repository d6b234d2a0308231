"""Which steps are looked at, by a clock of the test's own."""

from __future__ import annotations

import itertools

import pytest

from gradscope.training.interval import Interval


def simulated(interval: Interval, steps: int, plain: float, watched: float) -> list[int]:
    """The steps that were looked at, of so many that take this long."""
    looked_at = []
    for step in range(1, steps + 1):
        looks = interval.wants()
        if looks:
            looked_at.append(step)
        interval.ended(watched if looks else plain, watched=looks, own=0.0)
    return looked_at


def test_every_nth_step_and_the_first_ones():
    assert simulated(Interval(first=3, every=10), 40, 1.0, 2.0) == [1, 2, 3, 10, 20, 30, 40]
    assert simulated(Interval(first=0, every=1), 5, 1.0, 2.0) == [1, 2, 3, 4, 5]
    assert simulated(Interval(first=0, every=7), 15, 1.0, 2.0) == [7, 14]


@pytest.mark.parametrize("budget", [0.01, 0.02, 0.1])
@pytest.mark.parametrize("ratio", [1.2, 2.0, 20.0])
def test_looking_keeps_to_its_budget(budget, ratio):
    interval = Interval(first=3, budget=budget)
    looked_at = simulated(interval, 20_000, 0.01, 0.01 * ratio)
    extra = len(looked_at) * (ratio - 1)
    # What the first three take is more than their share, and is made up for.
    assert extra / (20_000 + extra) <= budget * 1.05
    assert extra / (20_000 + extra) >= budget * 0.5
    assert interval.cost == pytest.approx(extra / (20_000 + extra), rel=0.3)


def test_looks_are_spread_evenly():
    looked_at = simulated(Interval(first=3, budget=0.02), 20_000, 0.01, 0.05)
    later = [step for step in looked_at if step > 2_000]
    gaps = [b - a for a, b in itertools.pairwise(later)]
    assert max(gaps) <= 2 * min(gaps)


def test_a_step_that_costs_nothing_to_look_at_is_looked_at_often():
    assert len(simulated(Interval(first=1, budget=0.02), 100, 0.01, 0.01)) > 40


def test_known_costs_of_plain_steps_count():
    interval = Interval(first=1, budget=0.02)
    interval.ended(1.0, watched=True, own=0.5)
    for _ in range(1_000):
        # As costly as the whole budget: nothing is left for a look.
        assert not interval.wants()
        interval.ended(1.0, watched=False, own=0.05)
    assert interval.cost == pytest.approx(0.05, rel=0.05)


def test_nothing_is_known_before_the_first_step():
    interval = Interval()
    assert (interval.plain, interval.watched, interval.cost, interval.latest) == (None,) * 4
