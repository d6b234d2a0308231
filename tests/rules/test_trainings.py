"""Every broken training gets its finding, where and when it breaks; healthy ones get none."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

import pytest

from gradscope.records.training import TrainingFinding, TrainingStep
from gradscope.rules import SEVERITIES, RuleSettings, Seen, judgement, structures
from gradscope.rules._book import entries
from gradscope.training.findings import RunFindings
from rules.broken_trainings import TROUBLES
from rules.calibrate_runs import EVERY, HARMLESS, loud
from rules.healthy_trainings import TRAININGS
from rules.watched import Watched

pytestmark = pytest.mark.slow


def said(found: Iterable[TrainingFinding], severity: str = "info") -> list[str]:
    """Return the findings of at least that severity, as text."""
    bar = SEVERITIES.index(severity)
    return [
        f"{one.finding.code} {one.finding.name} in {one.steps}: {one.finding.message}"
        for one in found
        if SEVERITIES.index(one.finding.severity) <= bar
    ]


@pytest.mark.parametrize("name", TRAININGS)
def test_healthy(name):
    run = TRAININGS[name](0)
    assert run.count >= 300
    for every in EVERY:
        assert said(loud(run, every)) == []


#: Trainings whose loss doubles, after the finding.
SIGNS = (
    *("a_factor_above_one_after_the_warm_up", "a_decoder_without_a_warm_up"),
    "rmsprop_without_a_warm_up",
)


def doubled(run: Watched) -> int:
    """The first step at which the mean loss of five steps is twice the lowest before."""
    losses: deque[float] = deque(maxlen=5)
    lowest = math.inf
    for one in run.records:
        if isinstance(one, TrainingStep):
            losses.append(math.inf if one.loss is None else one.loss)
            mean = sum(losses) / len(losses)
            if mean >= 2 * lowest:
                return one.step
            lowest = min(lowest, mean)
    raise AssertionError("the loss never doubles")


def reported(run: Watched, code: str) -> int:
    """The step after which a rule's first finding is there."""
    found = RunFindings(RuleSettings())
    for one in run.records:
        new = found.step(one) if isinstance(one, TrainingStep) else found.sample(one)
        if code in {each.finding.code for each in new}:
            return one.step
    raise AssertionError(f"no finding of {code}")


@pytest.mark.parametrize("name", TROUBLES)
def test_broken(name):
    """The finding comes, and none before its rule could be judged."""
    case = TROUBLES[name]
    run = case.build(False)
    for every in EVERY[:2]:
        found = run.findings(every=every)
        assert case.found_in(found), [
            (one.finding.code, one.finding.name, one.steps) for one in found
        ]
    _nothing_is_found_before_it_can_be_judged(run, every=10)
    assert name not in SIGNS or reported(run, case.code) < doubled(run)


def _nothing_is_found_before_it_can_be_judged(run: Watched, every: int) -> None:
    settings = RuleSettings()
    found, seen = RunFindings(settings), Seen(settings)
    for record in run.records:
        if isinstance(record, TrainingStep):
            seen.add_step(record)
            new = found.step(record)
        elif record.step <= run.first or record.step % every == 0:
            kinds = structures(record.report)
            seen.add_sample(record.step, record.model, record.optimizer, kinds)
            new = found.sample(record)
        else:
            continue
        if new:
            assert {one.finding.code for one in new} <= {*judgement(seen).judged}


@pytest.mark.parametrize("name", TROUBLES)
def test_mended(name):
    case = TROUBLES[name]
    run = case.build(True)
    for every in EVERY:
        found = run.findings(every=every)
        assert said((one for one in found if one.finding.code not in HARMLESS), "warning") == []
        assert [one for one in found if one.finding.code == case.code] == []


def test_two_trainings_for_each_rule_over_time():
    count = Counter(case.code for case in TROUBLES.values())
    over_time = {
        one.rule.code
        for one in entries()
        if not (one.find or one.find_over_ranks or one.find_in_loop)
    }
    assert {code for code in over_time if count[code] < 2} == set()
    assert len(TROUBLES) >= 15
    assert len(TRAININGS) >= 10
