"""Words of findings: the owner of a module, the one to put into eval mode, counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradscope.records.report import Finding, PrecisionForecast, Report
from gradscope.rules import RuleSettings, diagnose, lookup, wanted
from rules.made import facts, parameter, report
from rules.test_rules_reach import BATCH_NORM, TRAINED, loses


def of(code: str, found: Report) -> list[Finding]:
    return list(diagnose(found, RuleSettings.of(select=[code])))


@pytest.mark.parametrize(
    ("part", "call"),
    [
        ("backbone", "`model.backbone.eval()`"),
        ("net.encoder", "`model.net.encoder.eval()`"),
        ("net.0.stem", "`model.net[0].stem.eval()`"),
    ],
)
def test_the_frozen_part_is_named_in_the_advice(part, call):
    frozen = parameter(f"{part}.norm.weight", None, requires_grad=False)
    names = part.split(".")
    around = [facts(".".join(names[:i]), "fc.weight") for i in range(1, len(names))]
    for inner, more in (
        ("norm", {"kinds": BATCH_NORM, "written": (f"{part}.norm.running_mean",)}),
        ("drop", {"kinds": ("Dropout", "_DropoutNd"), "settings": {"p": 0.5}}),
    ):
        own = [frozen.name] if inner == "norm" else []
        modules = (facts(""), *around, facts(part, frozen.name), facts("fc", TRAINED.name))
        modules = (*modules, facts(f"{part}.{inner}", *own, **more))
        (found,) = of("GS403", report(parameters=(frozen, TRAINED), modules=modules))
        assert call in found.advice, inner
        assert "`model.train()`" in found.advice
    assert "backbone" not in lookup("GS403").fix


def test_a_bias_of_norm_zero_did_not_move_either():
    moved = replace(TRAINED, update_ratio=0.0, moved=False, effective_lr=0.0)
    bias = replace(parameter("fc.bias", shape=(4,)), moved=False, effective_lr=0.0)
    (found,) = of("GS104", report(parameters=(moved, bias)))
    assert found.message.startswith("2 parameters")
    assert not of("GS104", report(parameters=(replace(bias, moved=True),)))


def test_no_scale_is_advised_where_none_is_safe():
    def at(scale: float) -> tuple[PrecisionForecast, ...]:
        return (
            PrecisionForecast("fc.weight", "gradient", "float16", scale, 9, 0.6, 0.0),
            PrecisionForecast("**", "total", "float16", scale, 9, 0.6, 0.0),
        )

    (found,) = of("GS302", report(precision=(*at(65536.0), *at(2.0**24))))
    assert "no scale" in found.message
    assert "scale" not in found.advice
    safe = PrecisionForecast("**", "total", "float16", 2.0**24, 9, 0.0, 0.0)
    (found,) = of("GS302", report(precision=(*at(65536.0), safe)))
    assert "scale" in found.advice


def test_a_word_alone_is_one_word():
    assert RuleSettings.of(select="GS401") == RuleSettings.of(select=["GS401"])
    assert RuleSettings.of(ignore="GS4") == RuleSettings.of(ignore=["GS4"])


def test_another_look_is_asked_for_once_the_cause_is_known():
    lost = parameter("a.weight", None)
    for cause, asked in (("not-called", True), ("not-in-loss", True), ("detached", False)):
        found = report(
            parameters=(lost,), modules=(facts("a", lost.name, calls=0),),
            answers=(loses("a.weight", cause),),
        )  # fmt: skip
        assert ("elsewhere" in wanted(found)) == asked, cause


def test_an_inferred_loss_excuses_what_is_not_used_and_no_detach():
    lost = parameter("a.weight", None)
    run = {"loss_inferred": True}
    for cause, severity in (("not-in-loss", "warning"), ("detached", "error")):
        answers = (replace(loses("a.weight", cause), advice="add it to the loss"),)
        (found,) = of("GS401", report(run=run, parameters=(lost,), answers=answers))
        assert found.severity == severity
        (found,) = of(
            "GS401", report(run=run | {"loss": "sum"}, parameters=(lost,), answers=answers)
        )
        assert ("set `loss` to yours" in str(found.advice)) == (severity == "warning")
    assert "A cut path is an error." in lookup("GS401").what


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("cross_entropy", "another loss, `cross_entropy`"),
        ("sum", "a stand-in, the sum of the output"),
        ("output", "the sum of the others"),
        ("output[1]", "`output[1]` only"),
        ("own", "the sum of the others"),
    ],
)
def test_what_a_run_started_from_instead_of_a_cut_loss(loss, said):
    run = {"loss": loss, "loss_inferred": loss != "own", "without_graph": ("output.kl",)}
    (found,) = of("GS507", report(run=run))
    assert found.message.endswith(f". It started from {said}.")
