"""Choice of sampled steps, by a clock of the test's own."""

from __future__ import annotations

import itertools

import pytest

from gradscope.training.metrics_schedule import MEASURED, Frequency
from gradscope.training.sample_schedule import (
    FREE_SECONDS,
    Schedule,
    is_fixed,
    next_fixed,
    seconds_in_queue,
)

FIXED = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]


def simulated(schedule: Schedule, steps: int, plain: float, sampled: float) -> list[int]:
    """The steps that were sampled, of so many that take this long."""
    found = []
    for step in range(1, steps + 1):
        samples = schedule.samples_next()
        if samples:
            found.append(step)
        schedule.ended(sampled if samples else plain, sampled=samples, own=0.0)
    return found


def test_the_fixed_steps():
    assert [step for step in range(1, 1000) if is_fixed(step)] == FIXED


def test_every_nth_step_and_the_first_ones():
    assert simulated(Schedule(first=3, every=10), 40, 1.0, 2.0) == [1, 2, 3, 10, 20, 30, 40]
    assert simulated(Schedule(first=0, every=1), 5, 1.0, 2.0) == [1, 2, 3, 4, 5]
    assert simulated(Schedule(first=0, every=7), 15, 1.0, 2.0) == [7, 14]


@pytest.mark.parametrize("slower", [1.0, 10.0])
@pytest.mark.parametrize(("steps", "samples"), [(40, 8), (500, 13)])
def test_a_short_run_has_the_same_samples_on_a_busy_machine(steps, samples, slower):
    found = simulated(Schedule(), steps, 0.002 * slower, 0.02 * slower)
    assert found == [step for step in FIXED if step <= steps]
    assert len(found) == samples


@pytest.mark.parametrize(("queued", "samples"), [(0.0, 4), (0.9, 8)])
def test_time_in_the_queue_for_a_processor_is_not_the_samples(queued, samples):
    schedule, found = Schedule(), 0
    for _ in range(40):
        wants = schedule.samples_next()
        seconds = FREE_SECONDS / 4 if wants else 0.02
        schedule.ended(seconds, sampled=wants, own=seconds / 2, queued=queued * seconds)
        found += wants
    assert found == samples


def test_the_queue_for_a_processor():
    assert 0.0 <= seconds_in_queue() <= seconds_in_queue()


def test_what_comes_before_the_first_step_pays_for_no_sample():
    schedule = Schedule()
    schedule.ended(60.0, sampled=True, own=0.01)  # libraries were imported, data was read
    rest = [step + 1 for step in simulated(schedule, 39, 0.002, 0.02)]
    assert rest == [2, 3, 5, 8, 13, 21, 34]


def test_fixed_samples_end_where_they_are_dear():
    """Three seconds, or the budget where that is more."""
    found = simulated(Schedule(first=0), 1000, FREE_SECONDS / 3, 2 * FREE_SECONDS / 3)
    assert found[:5] == [1, 2, 3, 200, 249]


def test_first_adds_to_the_fixed_steps():
    assert simulated(Schedule(first=6), 10, 0.01, 0.1) == [1, 2, 3, 4, 5, 6, 8]


def test_processes_of_one_run_sample_the_same_steps_without_a_word():
    """The one for which a sample costs more takes some of the other's steps, and no others."""
    several = [
        simulated(Schedule(first=3, budget=0.02, processes=2), 5000, 0.01, 0.01 * ratio)
        for ratio in (3.0, 3.3, 9.0)
    ]
    assert several[0] == several[1]
    assert set(several[2]) < set(several[0])
    for steps, ratio in zip(several, (3.0, 3.3, 9.0), strict=True):
        assert 4 < len(steps) <= 20 + 0.02 * 5000 / (ratio - 1)


@pytest.mark.parametrize("budget", [0.01, 0.02, 0.1])
@pytest.mark.parametrize("ratio", [1.2, 2.0, 20.0])
def test_samples_keep_to_their_budget(budget, ratio):
    schedule = Schedule(first=3, budget=budget)
    sampled = simulated(schedule, 20_000, 0.1, 0.1 * ratio)
    extra = len(sampled) * (ratio - 1)
    # What the first ones take is more than their share, and is made up for.
    assert extra / (20_000 + extra) <= budget * 1.05
    assert extra / (20_000 + extra) >= budget * 0.5
    assert schedule.cost == pytest.approx(extra / (20_000 + extra), rel=0.3)
    assert schedule.cost_seconds == pytest.approx(0.1 * extra, rel=0.3)


def test_samples_are_spread_evenly():
    sampled = simulated(Schedule(first=3, budget=0.02), 20_000, 0.1, 0.5)
    later = [step for step in sampled if step > 2_000 and not is_fixed(step)]
    gaps = [b - a for a, b in itertools.pairwise(later)]
    assert max(gaps) <= 2.5 * min(gaps)


def test_a_step_that_costs_nothing_to_sample_is_sampled_often():
    assert len(simulated(Schedule(first=1, budget=0.02), 100, 0.01, 0.01)) > 40


@pytest.mark.parametrize(("own", "samples"), [(0.0, 0.02), (0.005, 0.015), (0.05, 0.005)])
def test_metrics_use_up_three_quarters_of_the_budget_at_most(own, samples):
    schedule = Schedule(first=1, budget=0.02)
    sampled = 0
    for _ in range(10_000):
        wants = schedule.samples_next()
        sampled += wants
        schedule.ended(1.5 if wants else 1.0, sampled=wants, own=0.5 if wants else own)
    assert 0.5 * sampled / 10_000 == pytest.approx(samples, rel=0.1)
    assert schedule.cost == pytest.approx(own + samples, rel=0.1)


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 6, 8])
@pytest.mark.parametrize("every", [2, 3, 5, 8, 13, 64])
def test_a_frequency_gives_all_that_take_turns_their_share(every, turns):
    frequency = Frequency(Schedule(), 0.5)
    frequency.every = every
    due = [step for step in range(24_000) if frequency.includes(step)]
    for turn in range(turns):
        mine = [step for step in due if step % turns == turn]
        # What is missing or too much does not grow with the steps.
        assert abs(len(mine) - 24_000 / every / turns) < 10
    gaps = [b - a for a, b in itertools.pairwise(due)]
    assert max(gaps) <= 3 * every


def test_of_two_frequencys_the_rarer_is_due_where_the_other_is():
    often, seldom = Frequency(Schedule(), 0.5), Frequency(Schedule(), 0.5)
    often.every, seldom.every = 3, 10
    assert all(often.includes(step) for step in range(10_000) if seldom.includes(step))


@pytest.mark.parametrize(("seconds", "every"), [(0.001, 1), (0.02, 2), (0.1, 10), (9.0, 64)])
def test_a_frequency_follows_from_the_cost(seconds, every):
    schedule = Schedule(budget=0.02)
    frequency = Frequency(schedule, 0.5)
    for step in range(1, 17):
        schedule.ended(1.0, sampled=False, own=0.0)
        frequency.took(seconds)
        if step % MEASURED == 0:
            frequency.renew()
    assert frequency.every == every


def test_a_fixed_interval_has_no_frequency():
    schedule = Schedule(every=5)
    frequency = Frequency(schedule, 0.5)
    for step in range(1, 65):
        schedule.ended(1.0, sampled=False, own=0.0)
        frequency.took(1.0)
        if step % MEASURED == 0:
            frequency.renew()
    assert frequency.every == 1


def test_nothing_is_known_before_the_first_step():
    schedule = Schedule()
    assert (schedule.plain, schedule.sampled, schedule.cost, schedule.latest) == (None,) * 4


def test_where_every_step_is_sampled_nobody_knows_what_that_costs():
    schedule = Schedule(every=1)
    for _ in range(10):
        schedule.ended(1.0, sampled=True, own=0.5)
    assert schedule.cost is None
    assert schedule.sampled == 1.0


def test_the_next_fixed_step():
    assert [next_fixed(step) for step in range(9)] == [1, 2, 3, 5, 5, 8, 8, 8, 13]
