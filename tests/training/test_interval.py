"""Which steps are looked at, by a clock of the test's own."""

from __future__ import annotations

import itertools

import pytest

from gradscope.training.cadence import MEASURED, Cadence
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


def test_processes_of_one_run_look_at_the_same_steps_without_a_word():
    """The one for which a look costs more looks at some of the other's steps, and at no others."""
    several = [
        simulated(Interval(first=3, budget=0.02, processes=2), 5000, 0.01, 0.01 * ratio)
        for ratio in (3.0, 3.3, 9.0)
    ]
    assert several[0] == several[1]
    assert set(several[2]) < set(several[0])
    for steps, ratio in zip(several, (3.0, 3.3, 9.0), strict=True):
        assert 4 < len(steps) <= 3 + 0.02 * 5000 / (ratio - 1)


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


@pytest.mark.parametrize(("own", "looks"), [(0.0, 0.02), (0.005, 0.015), (0.05, 0.01)])
def test_vital_signs_use_up_half_of_the_budget_at_most(own, looks):
    interval = Interval(first=1, budget=0.02)
    looked_at = 0
    for _ in range(10_000):
        wants = interval.wants()
        looked_at += wants
        interval.ended(1.5 if wants else 1.0, watched=wants, own=0.5 if wants else own)
    assert 0.5 * looked_at / 10_000 == pytest.approx(looks, rel=0.1)
    assert interval.cost == pytest.approx(own + looks, rel=0.1)


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 6, 8])
@pytest.mark.parametrize("every", [2, 3, 5, 8, 13, 64])
def test_a_cadence_gives_all_that_take_turns_their_share(every, turns):
    cadence = Cadence(Interval(), 0.5)
    cadence.every = every
    due = [step for step in range(24_000) if cadence.due(step)]
    for turn in range(turns):
        mine = [step for step in due if step % turns == turn]
        # What is missing or too much does not grow with the steps.
        assert abs(len(mine) - 24_000 / every / turns) < 10
    gaps = [b - a for a, b in itertools.pairwise(due)]
    assert max(gaps) <= 3 * every


def test_of_two_cadences_the_rarer_is_due_where_the_other_is():
    often, seldom = Cadence(Interval(), 0.5), Cadence(Interval(), 0.5)
    often.every, seldom.every = 3, 10
    assert all(often.due(step) for step in range(10_000) if seldom.due(step))


@pytest.mark.parametrize(("seconds", "every"), [(0.001, 1), (0.02, 2), (0.1, 10), (9.0, 64)])
def test_a_cadence_follows_from_the_cost(seconds, every):
    interval = Interval(budget=0.02)
    cadence = Cadence(interval, 0.5)
    for step in range(1, 17):
        interval.ended(1.0, watched=False, own=0.0)
        cadence.took(seconds)
        if step % MEASURED == 0:
            cadence.renew()
    assert cadence.every == every


def test_a_fixed_interval_has_no_cadence():
    interval = Interval(every=5)
    cadence = Cadence(interval, 0.5)
    for step in range(1, 65):
        interval.ended(1.0, watched=False, own=0.0)
        cadence.took(1.0)
        if step % MEASURED == 0:
            cadence.renew()
    assert cadence.every == 1


def test_nothing_is_known_before_the_first_step():
    interval = Interval()
    assert (interval.plain, interval.watched, interval.cost, interval.latest) == (None,) * 4


def test_where_every_step_is_looked_at_nobody_knows_what_looking_costs():
    interval = Interval(every=1)
    for _ in range(10):
        interval.ended(1.0, watched=True, own=0.5)
    assert interval.cost is None
    assert interval.watched == 1.0
