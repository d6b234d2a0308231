"""Findings of a run that follow from others, and the order of the causes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.report import Finding
from gradscope.records.tensors import TensorStats
from gradscope.records.training import TrainingFinding
from gradscope.rules import Cause, Rule, explanations, folded, is_exact, rule_book

SEVERITIES = {rule.code: rule.severity for rule in rule_book()}


def found(
    code: str,
    name: str = "",
    *,
    first: int = 1,
    model: int | None = None,
    parameters: tuple[tuple[int, str], ...] | None = None,
    severity: str = "",
) -> TrainingFinding:
    finding = Finding(code, "rule", severity or SEVERITIES[code], name, "message.", "advice.")
    return TrainingFinding(finding, ((first, 60),), model, parameters=parameters)


def codes(*findings: TrainingFinding) -> list[tuple[str, list[str]]]:
    """Each cause with its symptoms, whatever the order in which they are given."""
    told = [
        [(one.finding.code, [s.code for s in one.symptoms]) for one in folded(order)]
        for order in (findings, findings[::-1], random.Random(0).sample(findings, len(findings)))
    ]
    assert told[0] == told[1] == told[2]
    return told[0]


WEIGHT, BIAS, OTHER = (0, "head.weight"), (0, "head.bias"), (0, "stem.weight")


def test_a_zero_rate_explains_what_stands_still() -> None:
    rate = found("GS806", "opt")
    stalled, update = found("GS605", "stem.weight", model=0, first=20), found("GS104", model=0)
    assert codes(stalled, update, rate) == [("GS806", ["GS104", "GS605"])]


def test_of_one_group_only_its_own_parameters() -> None:
    rate = found("GS806", "opt", parameters=(WEIGHT, BIAS), severity="warning")
    inside = found("GS605", "head.weight", model=0, first=20)
    outside = found("GS605", "stem.weight", model=0, first=20)
    assert codes(rate, inside, outside) == [("GS806", ["GS605"]), ("GS605", [])]
    # The same name in another model is another parameter.
    elsewhere = replace(inside, model=1)
    assert codes(rate, elsewhere) == [("GS806", []), ("GS605", [])]


def test_a_module_is_of_the_place_of_its_parameters() -> None:
    rate = found("GS806", "opt", parameters=(WEIGHT, BIAS))
    assert codes(rate, found("GS605", "head", model=0)) == [("GS806", ["GS605"])]
    assert codes(rate, found("GS605", "hea", model=0)) == [("GS806", []), ("GS605", [])]
    assert codes(rate, found("GS104", "", model=0)) == [("GS806", ["GS104"])]


def test_a_stale_optimizer_explains_the_head_that_it_lacks() -> None:
    stale = found("GS804", "opt", parameters=(WEIGHT, BIAS))
    unheld = found("GS404", "head", model=0, parameters=(WEIGHT, BIAS))
    assert codes(unheld, stale) == [("GS804", ["GS404"])]
    # Of parameters that it says nothing of, the symptom is its own cause.
    more = replace(unheld, parameters=(WEIGHT, OTHER))
    assert codes(more, stale) == [("GS404", []), ("GS804", [])]


def test_what_began_before_does_not_follow() -> None:
    gone = found("GS811", "sched", first=10)
    assert codes(gone, found("GS605", "stem.weight", first=10)) == [("GS811", ["GS605"])]
    assert codes(gone, found("GS605", "stem.weight", first=9)) == [("GS811", []), ("GS605", [])]


def test_a_nan_explains_what_comes_with_it_and_after_it() -> None:
    nan = found("GS301", first=44)
    after = [found("GS103", "stem", first=44, model=0), found("GS601", "opt", first=45)]
    before, loop = found("GS602", "stem", first=40, model=0), found("GS810", "net", first=50)
    assert codes(nan, *after, before, loop) == [
        ("GS301", ["GS103", "GS601"]),
        ("GS602", []),
        ("GS810", []),
    ]


def test_a_repeated_gradient_explains_a_nan_of_a_later_step() -> None:
    """The first step still has the weights that the script made."""
    repeated = found("GS815", "")
    assert codes(found("GS301", first=26), repeated) == [("GS815", ["GS301"])]
    assert codes(found("GS301", first=1), repeated) == [("GS301", []), ("GS815", [])]


def test_symptoms_of_symptoms_are_the_first_causes() -> None:
    """A rate of zero explains a rate that is gone, and that a layer that stands still."""
    rate, gone = found("GS806", "opt", parameters=(WEIGHT,)), found("GS608", "opt")
    plateau = found("GS603", "another", first=30)
    assert codes(gone, plateau) == [("GS608", ["GS603"])]
    assert codes(rate, gone, plateau) == [("GS806", ["GS608", "GS603"])]


def test_clipping_without_effect_explains_a_divergence_of_its_optimizer() -> None:
    def clip(cause: str, parameters: tuple[tuple[int, str], ...] | None = None) -> TrainingFinding:
        made = found("GS808", "opt", parameters=parameters)
        return replace(made, finding=replace(made.finding, cause=cause))

    steps, nan = found("GS621", "opt", first=4), found("GS301", first=4)
    large = TensorStats((4,), "float32", 4, min=-1e30, max=2.0)
    grown = replace(nan, origin=NonFiniteOrigin("inf", "loss", "message", inputs=(large,)))
    zero = TensorStats((4,), "float32", 4, min=0.0, max=2.0)
    log = replace(nan, origin=NonFiniteOrigin("inf", "loss", "message", inputs=(zero,)))
    assert codes(clip("used"), steps, log) == [("GS808", ["GS301", "GS621"])]
    assert codes(clip("foreign"), grown) == [("GS808", ["GS301"])]
    # An operation that makes an Inf of ordinary numbers is at fault itself.
    assert codes(clip("used"), log) == [("GS301", []), ("GS808", [])]
    assert codes(clip("used"), nan) == [("GS301", []), ("GS808", [])]
    # Clipping that is too tight makes nothing grow, and none makes Adam's steps shorter.
    assert codes(clip("scaled"), grown) == [("GS301", []), ("GS808", [])]
    assert codes(clip("used, Adam"), steps) == [("GS621", []), ("GS808", [])]
    # Of several optimizers, its own alone.
    own = clip("used", (WEIGHT,))
    assert codes(own, steps) == [("GS808", ["GS621"])]
    assert codes(own, found("GS621", "other")) == [("GS621", []), ("GS808", [])]
    assert codes(own, grown) == [("GS301", []), ("GS808", [])]


def test_of_several_causes_the_worst_has_the_symptom() -> None:
    warning, error = found("GS811", "sched"), found("GS816", first=2)
    plateau = found("GS603", "opt", first=30)
    assert codes(warning, error, plateau) == [("GS816", ["GS603"]), ("GS811", [])]


def test_the_order_of_causes() -> None:
    """Severity, then facts of every step, then the first step, then the code."""
    sampled, loop = found("GS501", model=0), found("GS805", "opt", severity="error")
    late, early = found("GS801", "opt", first=9), found("GS816", first=2)
    equal = found("GS802", "opt", first=9)
    info, warning = found("GS505", "bias"), found("GS403", "bn")
    ordered = (loop, early, late, equal, sampled, warning, info)
    assert [one for one, _ in codes(*ordered)] == [one.code for one in ordered]


def test_exact_is_what_every_step_was_read_for() -> None:
    assert all(map(is_exact, (found("GS801"), found("GS401"), found("GS301"), found("GS603"))))
    assert not any(map(is_exact, (found("GS101"), found("GS605"), found("GS501"))))
    origin = NonFiniteOrigin("nan", "forward", "message")
    assert is_exact(replace(found("GS101"), origin=origin))


def test_nothing_is_lost_and_nothing_twice() -> None:
    draw = random.Random(1)
    for _ in range(50):
        findings = [
            found(
                draw.choice(sorted(SEVERITIES)),
                draw.choice(["", "opt", "head", "head.weight", "stem.weight"]),
                first=draw.randint(1, 9),
                model=draw.choice([None, 0, 1]),
                parameters=draw.choice([None, (), (WEIGHT, BIAS), (OTHER,)]),
            )
            for _ in range(draw.randint(0, 20))
        ]
        causes = folded(findings)
        told = [one for cause in causes for one in (cause.finding, *cause.symptoms)]
        assert sorted(map(id, told)) == sorted(map(id, findings))
        explained = explanations(findings)
        assert len(explained) == len(findings) - len(causes)
        assert all(id(cause.finding) not in explained for cause in causes)


def test_of_nothing_there_is_no_cause() -> None:
    assert folded(()) == ()
    assert folded([found("GS101")]) == (Cause(found("GS101")),)


def test_a_code_of_another_version_is_a_cause() -> None:
    assert codes(found("GS999", severity="error"), found("GS603")) == [("GS999", []), ("GS603", [])]


def _explained(rule: Rule) -> tuple[str, ...]:
    return (*rule.explains, *(code for _, codes in rule.explains_as for code in codes))


@pytest.mark.parametrize("rule", [rule for rule in rule_book() if _explained(rule)], ids=str)
def test_what_a_rule_explains_are_rules_and_none_explains_it_in_turn(rule) -> None:
    book = {one.code: _explained(one) for one in rule_book()}
    assert all(any(code.startswith(start) for code in book) for start in _explained(rule))
    reached, left = set(), [rule.code]
    while left:
        starts = book[left.pop()]
        more = {code for code in book if starts and code.startswith(starts)} - reached
        more -= {rule.code} if rule.code == "GS301" else set()
        reached |= more
        left += more
    assert rule.code not in reached


def test_an_info_that_explains_a_warning_is_as_severe() -> None:
    inputs = found("GS204", "fc1", model=0)
    units, other = found("GS201", "fc1", model=0), found("GS505", "fc1.bias", model=0)
    causes = folded([other, units, inputs])
    assert [(one.finding.code, one.severity) for one in causes] == [
        ("GS204", "warning"),
        ("GS505", "info"),
    ]
