"""GS301–GS506 on records by hand: what each must say, and what it must not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradscope.records.answers import Answer, NonFiniteOrigin
from gradscope.records.report import PrecisionForecast, Report
from gradscope.records.run import ErrorRecord
from gradscope.rules import RuleSettings, diagnose, wanted
from rules.made import call, facts, link, parameter, report, stack, stats, steps

NAN = replace(stats(), nan=1)
TRAINED = parameter("fc.weight")
FROZEN = parameter("a.weight", None, requires_grad=False)
LOST = parameter("a.weight", None)
BATCH_NORM = ("BatchNorm2d", "_BatchNorm", "_NormBase")
INFERRED = {"loss_inferred": True}
NLL = link("LogSoftmax", "NllLoss", None)
LOGITS = call("", 0, output=stats((32, 10)))


def said(code: str, found: Report) -> list[tuple[str, str]]:
    """Severity and name of what one rule finds."""
    chosen = RuleSettings.of(select=[code])
    return [(finding.severity, finding.name) for finding in diagnose(found, chosen)]


def loses(name: str, cause: str, *behind: str) -> Answer:
    return Answer(name, "parameter", "missing", "cut.", cause, upstream=(name, *behind))


def forecast(scale: float, underflow: float) -> tuple[PrecisionForecast, ...]:
    return (
        PrecisionForecast("fc.weight", "gradient", "float16", scale, 9, underflow, 0.0),
        PrecisionForecast("**", "total", "float16", scale, 9, underflow, 0.0),
    )


def norm(shape: tuple[int, ...], **more: object) -> Report:
    one = call("bn", 1, type="BatchNorm2d", input=stats(shape), **more)
    return report(calls=(one,), modules=(facts("bn", kinds=BATCH_NORM),))


def origin(message: str) -> NonFiniteOrigin:
    return NonFiniteOrigin("nan", "forward", message, name="net")


SAYS = {
    "an origin": (
        "GS301",
        report(loss_nonfinite="nan", non_finite=(origin("sqrt at 0."),)),
        [("error", "net")]),
    "a NaN that does no harm": (
        "GS301", report(loss=1.0, non_finite=(origin("0 / 0."),)),
        [("warning", "net")]),
    "a NaN that nobody looked for": (
        "GS301", report(loss_nonfinite="nan", calls=(call("fc", 1, output=NAN),)),
        [("error", "fc")]),
    "a parameter that is NaN or Inf": (
        "GS301", report(parameters=(parameter("fc.weight", value=NAN),)),
        [("error", "fc.weight")]),
    "a gradient that is NaN or Inf": (
        "GS301", report(parameters=(replace(TRAINED, gradient=NAN),)), [("error", "fc.weight")]),
    "gradients that a half cannot hold": (
        "GS302", report(precision=forecast(65536.0, 0.6)), [("warning", "fc.weight")]),
    "a run in fp16": (
        "GS302", report(run={"dtype": "float16"}, parameters=(parameter("fc.weight", 1e-7),)),
        [("warning", "fc.weight")]),
    "activations that a half cannot hold": (
        "GS303",
        report(calls=(call("", 0, output=stats(rms=7e4)), call("fc", 1, output=stats(rms=7e4)))),
        [("warning", "fc")]),
    "a cause": (
        "GS401", report(parameters=(LOST,), answers=(loses("a.weight", "detached"),)),
        [("error", "a.weight")]),
    "no cause yet": (
        "GS401", report(parameters=(LOST,), modules=(facts("a", "a.weight"),)),
        [("error", "a.weight")]),
    "a loss that is not the user's": (
        "GS401",
        report(run=INFERRED, parameters=(LOST,), answers=(loses("a.weight", "not-in-loss"),)),
        [("warning", "a.weight")]),
    "an inferred loss excuses no detach": (
        "GS401",
        report(run=INFERRED, parameters=(LOST,), answers=(loses("a.weight", "detached"),)),
        [("error", "a.weight")]),
    "a module that never ran": (
        "GS402", report(parameters=(LOST,), modules=(facts("a", "a.weight", calls=0),)),
        [("error", "a")]),
    "the outermost one": (
        "GS402",
        report(parameters=(parameter("a.b.weight", None), TRAINED),
               modules=(facts("", calls=1), facts("a", calls=0),
                        facts("a.b", "a.b.weight", calls=0), facts("fc", "fc.weight"))),
        [("error", "a")]),
    "a head that eval leaves out": (
        "GS402",
        report(run={"mode": "eval"}, parameters=(LOST,),
               modules=(facts("a", "a.weight", calls=0),)),
        [("warning", "a")]),
    "a frozen norm that writes": (
        "GS403",
        report(parameters=(FROZEN, TRAINED),
               modules=(facts("a", "a.weight", kinds=BATCH_NORM, written=("a.running_mean",)),)),
        [("warning", "a")]),
    "dropout in a frozen part": (
        "GS403",
        report(parameters=(FROZEN, TRAINED),
               modules=(facts("a", "a.weight"),
                        facts("a.drop", kinds=("Dropout", "_DropoutNd"), settings={"p": 0.1}))),
        [("warning", "a.drop")]),
    "a head without an optimizer": (
        "GS404",
        report(parameters=(parameter("fc.weight", in_optimizer=False),
                           parameter("fc.bias", in_optimizer=False),
                           parameter("a.weight", in_optimizer=True)),
               modules=(facts("fc", "fc.weight", "fc.bias"), facts("a", "a.weight"))),
        [("error", "fc")]),
    "a misspelt flag": (
        "GS405", report(parameters=(parameter("a", misspelt=("require_grad",)),)),
        [("error", "a")]),
    "a flag on a module": (
        "GS405", report(modules=(facts("a", misspelt=("requires_grad",)),)), [("error", "a")]),
    "a freeze undone": (
        "GS406", report(config={"freeze": ["**", "!head.**"]}, parameters=(parameter("a.weight"),)),
        [("warning", "a.weight")]),
    "work before everything that trains": (
        "GS407",
        report(calls=(call("a", 1), call("fc", 2)),
               parameters=(replace(FROZEN, gradient=None), TRAINED),
               modules=(facts("a", "a.weight"), facts("fc", "fc.weight"))),
        [("info", "a")]),
    "softmax and cross entropy": (
        "GS501", report(links=(link("Softmax", "LogSoftmax"), NLL)), [("error", "net")]),
    "softmax and a cross entropy that was inferred": (
        "GS501",
        report(run={**INFERRED, "target_drawn": True}, links=(link("Softmax", "LogSoftmax"), NLL)),
        [("warning", "net")]),
    "softmax and an inferred cross entropy with the user's target": (
        "GS501",
        report(run=INFERRED, links=(link("Softmax", "LogSoftmax"), NLL)),
        [("error", "net")]),
    "softmax and likelihood": (
        "GS501", report(links=(link("Softmax", "NllLoss2D"),)), [("error", "net")]),
    "twice the same": (
        "GS501", report(links=(link("LogSoftmax", "LogSoftmax"), NLL)), [("warning", "net")]),
    "a ReLU on the logits": (
        "GS502", report(links=(link("Relu", "LogSoftmax"), NLL)), [("error", "net")]),
    "a clamp at zero": (
        "GS502",
        report(links=(link("Clamp", "LogSoftmax"), NLL),
               calls=(call("net", 0, output=stats(min=0.0, zeros=4)),)),
        [("error", "net")]),
    "a tanh": (
        "GS502", report(links=(link("Tanh", "LogSoftmax"), NLL)), [("warning", "net")]),
    "a sigmoid and logits": (
        "GS503", report(links=(link("Sigmoid", "BinaryCrossEntropyWithLogits"),)),
        [("error", "net")]),
    "a picture alone": ("GS504", norm((1, 3, 8, 8)), [("error", "bn")]),
    "a norm that raised": (
        "GS504",
        report(error=ErrorRecord("model-error", "Expected more than 1 value per channel when …",
                                 "forward", "bn")),
        [("error", "bn")]),
    "a bias and a norm": (
        "GS505",
        report(parameters=(parameter("conv.bias"),), modules=(facts("bn", kinds=BATCH_NORM),),
               links=(link("Convolution", "NativeBatchNorm", "conv", into_name="bn"),)),
        [("info", "conv.bias")]),
    "sure of nothing true": ("GS506", report(loss=20.0, links=(NLL,), calls=(LOGITS,)),
                             [("info", "")]),
    "the first of several losses": (
        "GS506",
        report(loss=0.1, links=(NLL,), calls=(LOGITS,),
               history=tuple(replace(s, loss=v) for s, v in zip(steps(1, 1), (20.0, 0.1),
                                                                strict=True))),
        [("info", "")]),
}  # fmt: skip


@pytest.mark.parametrize(("code", "found", "expected"), SAYS.values(), ids=SAYS)
def test_what_must_be_said(code, found, expected):
    assert said(code, found) == expected


BY_CONV = (link("Convolution", "NativeBatchNorm", "conv", into_name="bn"),)
SILENT = {
    "the infinity of a mask": (
        "GS301", report(loss=1.0, calls=(call("mask", 1, output=replace(stats(), inf=4)),),
                        non_finite=(NonFiniteOrigin("inf", "forward", "masked.", name="mask"),))),
    "a run in bfloat16": (
        "GS302", report(run={"dtype": "bfloat16"}, precision=forecast(65536.0, 0.6))),
    "few of them": ("GS302", report(precision=forecast(65536.0, 0.01))),
    "much at a scale that nobody uses": ("GS302", report(precision=forecast(1.0, 0.9))),
    "usual activations": ("GS303", report(calls=(call("fc", 1, output=stats(rms=100.0)),))),
    "a mask's constant": ("GS303", report(calls=(call("m", 1, output=stats(rms=3.4e38)),))),
    "bfloat16's range": (
        "GS303",
        report(run={"autocast": "bfloat16"}, calls=(call("fc", 1, output=stats(rms=7e4)),))),
    "frozen on purpose": ("GS401", report(parameters=(FROZEN,))),
    "a run that did not end": (
        "GS401", report(parameters=(LOST,), error=ErrorRecord("model-error", "x", "forward"))),
    "a module that never ran, which is another rule's": (
        "GS401", report(parameters=(LOST,), modules=(facts("a", "a.weight", calls=0),))),
    "out_proj, which lends its weight": (
        "GS402", report(parameters=(parameter("a.weight"),),
                        modules=(facts("a", "a.weight", calls=0),))),
    "a container whose parts ran": (
        "GS402",
        report(parameters=(parameter("a.0.weight", None),),
               modules=(facts("a", calls=0), facts("a.0", "a.0.weight")))),
    "parameters in a list, which never runs": (
        "GS402",
        report(parameters=(parameter("a.0", None),),
               modules=(facts("a", "a.0", calls=0, kinds=("ParameterList",)),))),
    "a weight that was used without its module": (
        "GS402",
        report(parameters=(LOST,), modules=(facts("a", "a.weight", calls=0),),
               answers=(loses("a.weight", "detached"),))),
    "layers that the patterns left out": (
        "GS402", report(modules=(facts("a", "a.weight", calls=0),))),
    "a frozen norm in eval mode": (
        "GS403",
        report(parameters=(FROZEN, TRAINED),
               modules=(facts("a", "a.weight", kinds=BATCH_NORM, training=False),))),
    "dropout that drops nothing": (
        "GS403",
        report(parameters=(FROZEN, TRAINED),
               modules=(facts("a", "a.weight"),
                        facts("a.drop", kinds=("Dropout", "_DropoutNd"), settings={"p": 0.0})))),
    "dropout before a head that trains": (
        "GS403",
        report(parameters=(TRAINED,),
               modules=(facts("fc", "fc.weight"),
                        facts("drop", kinds=("_DropoutNd",), settings={"p": 0.5})))),
    "a model in which nothing trains": (
        "GS403",
        report(parameters=(FROZEN,),
               modules=(facts("a", "a.weight", kinds=BATCH_NORM, written=("a.running_mean",)),))),
    "no optimizer": ("GS404", report(parameters=(TRAINED,))),
    "frozen, and in none": ("GS404", report(parameters=(replace(FROZEN, in_optimizer=False),))),
    "flags that are right": ("GS405", report(parameters=(TRAINED,), modules=(facts("a"),))),
    "a freeze that held": (
        "GS406", report(config={"freeze": ["a.**"]}, parameters=(FROZEN, TRAINED))),
    "taken back by a later pattern": (
        "GS406", report(config={"freeze": ["**", "!fc.**"]}, parameters=(FROZEN, TRAINED))),
    "frozen behind something that trains": (
        "GS407",
        report(calls=(call("fc", 1), call("a", 2)), parameters=(FROZEN, TRAINED),
               modules=(facts("a", "a.weight"), facts("fc", "fc.weight")))),
    "frozen, and without a gradient": (
        "GS407",
        report(calls=(call("a", 1, None), call("fc", 2)), parameters=(FROZEN, TRAINED),
               modules=(facts("a", "a.weight"), facts("fc", "fc.weight")))),
    "attention's softmax": ("GS501", report(links=(link("Bmm", "LogSoftmax"), NLL))),
    "log-softmax and likelihood": ("GS501", report(links=(NLL,))),
    "a ReLU before something else": ("GS502", report(links=(link("Relu", "LogSoftmax"),))),
    "a clamp far away": (
        "GS502", report(links=(link("Clamp", "LogSoftmax"), NLL), calls=(call("net", 0),))),
    "raw scores": ("GS503", report(links=(link("Addmm", "BinaryCrossEntropyWithLogits"),))),
    "two pictures": ("GS504", norm((2, 3, 1, 1))),
    "one picture in eval mode": ("GS504", norm((1, 3, 8, 8), training=False)),
    "a bias that something else reads too": (
        "GS505",
        report(parameters=(parameter("conv.bias"),), modules=(facts("bn", kinds=BATCH_NORM),),
               links=(replace(BY_CONV[0], shared=True),))),
    "a norm in eval mode": (
        "GS505",
        report(parameters=(parameter("conv.bias"),),
               modules=(facts("bn", kinds=BATCH_NORM, training=False),), links=BY_CONV)),
    "no bias": ("GS505", report(modules=(facts("bn", kinds=BATCH_NORM),), links=BY_CONV)),
    "a guess": ("GS506", report(loss=math.log(10), links=(NLL,), calls=(LOGITS,))),
    "a sum over the batch": (
        "GS506", report(loss=32 * math.log(10), links=(NLL,), calls=(LOGITS,))),
    "a sum over five heads": (
        "GS506", report(loss=5 * math.log(10), links=(NLL,) * 5, calls=(LOGITS,))),
    "weights from elsewhere": (
        "GS506",
        report(config={"weights": "DEFAULT"}, loss=20.0, links=(NLL,), calls=(LOGITS,))),
    "another loss": ("GS506", report(run={"loss": "mse"}, loss=20.0, calls=(LOGITS,))),
}  # fmt: skip


@pytest.mark.parametrize(("code", "found"), SILENT.values(), ids=SILENT)
def test_what_must_not_be_said(code, found):
    assert said(code, found) == []


def test_advice_is_a_sentence():
    answer = replace(loses("a.weight", "detached", "b.weight"), advice="use the tensor itself")
    (found,) = diagnose(report(parameters=(LOST,), answers=(answer,)))
    assert found.advice == "Use the tensor itself."
    assert found.message == "cut; 2 parameters upstream get no gradient."
    assert found.cause == "detached"
    for code, made, _ in SAYS.values():
        for finding in diagnose(made, RuleSettings.of(select=[code])):
            assert finding.advice.endswith(".")
            assert finding.message.endswith(".")
            assert (finding.threshold is None) == (finding.source is None), finding


def test_what_is_asked_for():
    assert wanted(report(parameters=(LOST,))) == {"missing"}
    assert wanted(report(loss_nonfinite="nan")) == {"non_finite"}
    assert wanted(report(parameters=(parameter("a", 1e-13),))) == {"precision"}
    assert wanted(stack(1.0, 0.5, 0.1)) == frozenset()
