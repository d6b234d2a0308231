"""GS101–GS203 on records by hand: what each must say, and what it must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.records.answers import Answer
from gradscope.records.modules import UnitActivity
from gradscope.records.report import Report
from gradscope.rules import RuleSettings, diagnose, wanted
from rules.made import call, facts, link, parameter, report, stack, stats, steps


def said(code: str, found: Report, **settings: object) -> list[tuple[str, str]]:
    """Severity and name of what one rule finds."""
    chosen = RuleSettings.of(settings, select=[code])
    return [(finding.severity, finding.name) for finding in diagnose(found, chosen)]


SAYS = {
    "the frontier is the layer nearest the loss": (
        "GS101", stack(1e-9, 1e-8, 1e-9, 1.0, 0.5), [("warning", "l2")]),
    "one layer in front": ("GS101", stack(1e-8, 1.0), [("warning", "l0")]),
    "growth names the layer where it is too much": (
        "GS102", stack(1e8, 1e6, 1e2, 1.0), [("warning", "l1")]),
    "a jump between steps": (
        "GS102", report(history=steps(1.0, 1.1, 0.9, 30.0)), [("warning", "")]),
    "a zero without a known cause": (
        "GS103", stack(0.0, 1.0), [("warning", "l0.weight")]),
    "a dead path": (
        "GS103",
        report(parameters=(parameter("a", 0.0),),
               answers=(Answer("a", "parameter", "zero", "dead.", "dead-activation"),)),
        [("error", "a")]),
    "a zero-initialised partner": (
        "GS103",
        report(parameters=(parameter("a", 0.0),),
               answers=(Answer("a", "parameter", "zero", "zero.", "zero-weight"),)),
        [("warning", "a")]),
    "a mask that stays": (
        "GS103",
        report(parameters=(parameter("a", 0.0),),
               answers=(Answer("a", "parameter", "zero", "zero.", "masked", recovers=False),)),
        [("warning", "a")]),
    "a zero partner that stays": (
        "GS103",
        report(parameters=(parameter("a", 0.0),),
               answers=(Answer("a", "parameter", "zero", "zero.", "zero-weight",
                               recovers=False),)),
        [("error", "a")]),
    "zeros that one step ends": (
        "GS103",
        report(parameters=(parameter("a", 0.0), parameter("b", 0.0)),
               answers=tuple(Answer(n, "parameter", "zero", "zero.", "zero-weight", recovers=True)
                             for n in "ab")),
        [("info", "a")]),
    "five steps of the last eight without a gradient": (
        "GS103",
        report(parameters=(parameter("a", 0.0),),
               history=steps(*[1.0] * 8, a=(1, 1, 1, 0, 0, 0, 0, 0))),
        [("warning", "a")]),
    "a step as large as the weight": (
        "GS104", report(parameters=(parameter("a", update_ratio=2.0),)), [("warning", "a")]),
    "steps that are too small": (
        "GS104", report(parameters=(parameter("a", update_ratio=1e-9),)), [("warning", "a")]),
    "a parameter that stays where it is": (
        "GS104", report(parameters=(parameter("a", update_ratio=0.0),)), [("warning", "a")]),
    "more than half of the units": (
        "GS201", report(activity=(UnitActivity("relu", "act", 0, 32, 64, dead=17),)),
        [("warning", "act")]),
    "units outside every module": (
        "GS201", report(activity=(UnitActivity("relu", None, None, 4, 64, dead=4),)),
        [("warning", "")]),
    "every channel of one picture": (
        "GS201",
        report(calls=(call("act", 0, output=stats((1, 48, 5, 5))),),
               activity=(UnitActivity("relu", "act", 0, 48, 25, dead=48, off=1.0),)),
        [("warning", "act")]),
    "more than half of the channels of many pictures": (
        "GS201",
        report(calls=(call("act", 0, output=stats((16, 48, 5, 5))),),
               activity=(UnitActivity("relu", "act", 0, 48, 400, dead=25, off=0.7),)),
        [("warning", "act")]),
    "units at a flat end": (
        "GS202", report(activity=(UnitActivity("tanh", "act", 0, 32, 64, saturated=17),)),
        [("warning", "act")]),
    "a layer of few values each, nearly all of them off": (
        "GS201", report(activity=(UnitActivity("relu", "act", 0, 64, 4, dead=63, off=0.995),)),
        [("warning", "act")]),
    "units that no such input can wake, of one value each": (
        "GS201",
        report(activity=(UnitActivity("relu", "act", 0, 8, 1, dead=6, off=0.75, asleep=5),)),
        [("warning", "act")]),
    "more units always off than chance leaves so": (
        # 12 of 64 live, each on in half of its 8 values.
        "GS201", report(activity=(UnitActivity("relu", "act", 0, 64, 8, dead=52, off=0.90625),)),
        [("warning", "act")]),
    "a layer of few values each, at a flat end": (
        "GS202",
        report(activity=(UnitActivity("tanh", "act", 0, 32, 1, saturated=20, flat=0.625),)),
        [("warning", "act")]),
    "a jump in one layer": (
        "GS203",
        report(calls=(call("l0", 1, input=stats(rms=0.5), output=stats(rms=50.0)),),
               parameters=(parameter("l0.weight"),)),
        [("warning", "l0")]),
    "a recurrent layer whose gradient grows through time": (
        "GS102",
        report(calls=(call("rnn", 1, 0.1, input=stats()),),
               parameters=(parameter("rnn.weight_ih_l0", 50.0),),
               modules=(facts("rnn", "rnn.weight_ih_l0", kinds=("RNN", "RNNBase")),)),
        [("warning", "rnn")]),
    "values near a flat end": (
        "GS202", report(activity=(UnitActivity("tanh", "act", 0, 32, 64, near=0.6),)),
        [("warning", "act")]),
    "attention that always picks one": (
        "GS202", report(activity=(UnitActivity("softmax", "attn", 0, 80, 5, saturated=70),)),
        [("warning", "attn")]),
    "a signal that shrinks": (
        "GS203", stack(*[1.0] * 6, stds=(1, 0.1, 1e-2, 1e-3, 1e-4, 1e-5)),
        [("warning", "l4")]),
    "a signal that grows": (
        "GS203", stack(*[1.0] * 6, stds=(1, 10, 1e2, 1e3, 1e4, 1e5)), [("warning", "l4")]),
}  # fmt: skip


@pytest.mark.parametrize(("code", "found", "expected"), SAYS.values(), ids=SAYS)
def test_what_must_be_said(code, found, expected):
    assert said(code, found) == expected


SILENT = {
    "gradients of a trained residual network": ("GS101", stack(0.02, 0.1, 0.5, 1.0)),
    "a branch with a small scale in the middle": ("GS101", stack(1.0, 1e-12, 1.0)),
    "a last layer that is small": ("GS101", stack(1.0, 1.0, 1e-9)),
    "no gradient": ("GS101", stack(None, None)),
    "zeros, which are another rule's": ("GS101", stack(0.0, 1.0)),
    "a factor of a hundred": ("GS102", stack(1e2, 1.0)),
    "gradients that fall over steps": ("GS102", report(history=steps(30.0, 3.0, 1.0, 0.9))),
    "one step": ("GS102", report(history=steps(1e9))),
    "a frozen parameter": (
        "GS103", report(parameters=(parameter("a", 0.0, requires_grad=False),))),
    "an expert that some steps did not ask": (
        "GS103",
        report(parameters=(parameter("a", 0.0),), history=steps(1.0, 1.0, 1.0, a=(1, 1, 0)))),
    "no optimizer": ("GS104", report(parameters=(parameter("a"),))),
    "a bias that starts at zero": (
        "GS104", report(parameters=(parameter("a", shape=(4,), update_ratio=50.0),))),
    "one slow layer among others": (
        "GS104",
        report(parameters=tuple(parameter(n, update_ratio=r)
                                for n, r in (("a", 1e-8), ("b", 1e-3), ("c", 1e-3))))),
    "a last layer whose gradient the script removes before the step": (
        "GS104",
        report(parameters=(parameter("a", moved=False, update_ratio=0.0),
                           parameter("b", update_ratio=1e-3)))),
    "frozen in the optimizer": (
        "GS104", report(parameters=(parameter("a", None, update_ratio=0.0),))),
    "more than half of the channels of one picture": (
        # Channels answer to what is in a picture, and its 25 places hold much the same.
        "GS201",
        report(calls=(call("act", 0, output=stats((1, 48, 5, 5))),),
               activity=(UnitActivity("relu", "act", 0, 48, 25, dead=25, off=0.7),))),
    "half of the units": (
        "GS201", report(activity=(UnitActivity("relu", "act", 0, 32, 64, dead=16),))),
    "units that are seldom on, of eight values each": (
        # All on in a tenth of their values: chance leaves 43 % of them off.
        "GS201", report(activity=(UnitActivity("relu", "act", 0, 64, 8, dead=27, off=0.9),))),
    "of one value each nothing is estimated": (
        "GS201", report(activity=(UnitActivity("relu", "act", 0, 64, 1, dead=60, off=0.9375),))),
    "a few values that are all off": (
        "GS201", report(activity=(UnitActivity("relu", "act", 0, 8, 4, dead=8, off=1.0),))),
    "few saturated units": (
        "GS202", report(activity=(UnitActivity("tanh", "act", 0, 32, 64, saturated=3, near=0.1),))),
    "too few distributions": (
        "GS202", report(activity=(UnitActivity("softmax", "a", 0, 7, 99, saturated=7),))),
    "too few values of a tanh": (
        "GS202", report(activity=(UnitActivity("tanh", "a", 0, 3, 5, saturated=3, flat=1.0),))),
    "a recurrent layer whose steps each take their share": (
        "GS102",
        report(calls=(call("rnn", 1, 1.0, input=stats()),),
               parameters=(parameter("rnn.weight_ih_l0", 20.0),),
               modules=(facts("rnn", "rnn.weight_ih_l0", kinds=("RNN", "RNNBase")),))),
    "the same of a layer that is not recurrent": (
        "GS102",
        report(calls=(call("fc", 1, 0.1, input=stats()),),
               parameters=(parameter("fc.weight_ih_l0", 50.0),),
               modules=(facts("fc", "fc.weight_ih_l0"),))),
    "a jump that a batch norm takes away": (
        "GS203",
        report(calls=(call("l0", 1, input=stats(rms=0.5), output=stats(rms=50.0)),),
               parameters=(parameter("l0.weight"),),
               links=(link("Convolution", "NativeBatchNorm", "l0"),))),
    "a spread that is the bias's": (
        "GS203",
        report(calls=(call("l0", 1, input=stats(rms=0.01), output=stats(rms=1.0)),),
               parameters=(parameter("l0.weight"),
                           parameter("l0.bias", shape=(4,), value=stats((4,), 1.0))))),
    "its own branch scale": ("GS203", stack(*[1.0] * 6, stds=(1, 1, 1e-6, 1, 1, 1))),
    "a short network": ("GS203", stack(1.0, 1.0, stds=(1, 1e-5))),
}  # fmt: skip


@pytest.mark.parametrize(("code", "found"), SILENT.values(), ids=SILENT)
def test_what_must_not_be_said(code, found):
    assert said(code, found) == []


def test_a_preset_is_stricter():
    found = stack(5e-5, 0.1)
    assert said("GS101", found) == []
    assert said("GS101", found, preset="autotrainer") == []  # its ceiling: 5e-5 × 4 is over 1e-4
    assert said("GS101", stack(5e-6, 0.1), preset="autotrainer") == [("warning", "l0")]
    assert said("GS101", stack(1e-8, 1e-8), preset="sagemaker") == [("warning", "l0.weight")]
    assert said("GS102", stack(80.0, 1.0), preset="autotrainer") == [("warning", "l0")]
    assert said("GS203", stack(1.0, 1.0, stds=(1, 3)), preset="deepchecker") == [("warning", "l1")]


def test_steps_of_a_preset():
    falling = report(history=steps(64, 32, 16, 8, 4, 2))
    rising = report(history=steps(1, 2, 4, 8, 16, 32))
    assert said("GS101", falling, preset="deepchecker") == [("warning", "")]
    assert said("GS101", rising, preset="deepchecker") == []
    assert said("GS102", rising, preset="deepchecker") == [("warning", "")]
    assert said("GS102", falling, preset="deepchecker") == []


def test_a_finding_has_its_figures():
    (found,) = diagnose(stack(1e-9, 1e-8, 1.0), RuleSettings.of(select=["GS101"]))
    assert (found.name, found.call, found.threshold) == ("l1", 0, 1e-6)
    assert found.value == pytest.approx(1e-8)
    assert found.source == "gradscope, calibrated"
    (found,) = diagnose(
        stack(1e-3, 1.0), RuleSettings.of({"thresholds": {"GS101": {"ratio": 0.1}}})
    )
    assert (found.threshold, found.source) == (0.1, "the config")


def test_what_is_asked_for():
    zero = stack(0.0, 1.0)
    assert wanted(zero) >= {"zero"}
    assert wanted(report(parameters=(parameter("fc.weight", gradient=None),))) == {"missing"}
    half = replace(parameter("fc.bias", shape=(32,)), gradient=stats((32,), zeros=20))
    run = call("fc", 1, output=stats((16, 32)))
    rows = report(parameters=(half,), modules=(facts("fc", "fc.bias"),), calls=(run,))
    assert wanted(rows) == {"activity"}
    # Of one value each, half are off by chance.
    assert wanted(replace(rows, calls=(call("fc", 1, output=stats((1, 32))),))) == frozenset()
    table = facts("fc", "fc.bias", kinds=("Embedding",))
    assert wanted(replace(rows, modules=(table,))) == frozenset()
    tanh = call("act", 1, type="Tanh", input=stats(rms=20.0))
    assert wanted(report(calls=(tanh,))) == {"activity"}
    assert wanted(stack(1.0, 1.0, 1.0)) == frozenset()
