"""Deep looks: taken only where something is wrong, harmless, and never at the report's expense."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradscope
from gradscope.api import full_samples
from gradscope.errors import ConfigError, Interrupted, LayerError, ModelError, OptionError
from gradscope.records.report import Report

Unchanged = Callable[[nn.Module], AbstractContextManager[None]]


class Sound(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.seen = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.head(self.stem(x).detach())


class Dead(nn.Module):
    """A rectifier that lets nothing through."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        nn.init.constant_(self.stem.bias, -1e3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.stem(x)))


class Rooted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sqrt(self.stem(x)))


class Exploding(nn.Module):
    """Fine at first; the step that an absurd learning rate takes leads to infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(self.head(x))


BROKEN: dict[str, tuple[type[nn.Module], str, str]] = {
    "missing": (Detached, "GS401", "answers"),
    "zero": (Dead, "GS103", "answers"),
    "non_finite": (Rooted, "GS301", "non_finite"),
}


def inputs() -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of the full samples that are taken."""
    found: list[str] = []

    def watched(look: Any) -> Any:
        def take(*arguments: Any) -> dict[str, Any]:
            found.append(look.words)
            return look.take(*arguments)

        return full_samples._FullSample(look.names, look.words, take)

    monkeypatch.setattr(
        full_samples, "_FULL_SAMPLES", tuple(map(watched, full_samples._FULL_SAMPLES))
    )
    return found


def test_a_sound_model_gets_no_deep_look(taken: list[str]) -> None:
    report = gradscope.check(Sound(), inputs())
    assert (report.status, report.findings, taken) == ("ok", (), [])
    assert not report.answers
    assert not report.non_finite


@pytest.mark.parametrize("which", BROKEN)
def test_only_what_is_wrong_is_looked_at(which: str, taken: list[str]) -> None:
    kind, code, field = BROKEN[which]
    report = gradscope.check(kind(), inputs())
    assert report.status == "findings"
    assert code in codes(report)
    assert getattr(report, field)
    assert taken
    taken.clear()
    assert code not in codes(gradscope.check(kind(), inputs(), ignore=[code]))


def test_zeros_that_have_a_cause_are_no_sign_of_dead_units(taken: list[str]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)), inputs().repeat(4, 1)
    nn.init.zeros_(model[2].weight)
    assert codes(gradscope.check(model, x)) == {"GS103"}
    assert taken == ["the cause of missing or zero gradients"]
    taken.clear()
    assert codes(gradscope.check(Dead(), x)) == {"GS103", "GS201"}
    assert taken == ["the cause of missing or zero gradients", "dead and saturated units"]


def test_a_rule_that_does_not_look_asks_for_nothing(taken: list[str]) -> None:
    gradscope.check(Detached(), inputs(), select=["GS505"])
    assert taken == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Sound, *(kind for kind, _, _ in BROKEN.values())])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_live_model_is_given_back_as_it_was(
    kind: type[nn.Module], steps: int, unchanged: Unchanged
) -> None:
    model = kind()
    model.eval()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    with unchanged(model):
        gradscope.check(model, inputs(), steps=steps, precision=True)
    with unchanged(model):
        gradscope.inspect(model, inputs(), steps=steps)


def test_inspect_and_check_say_the_same() -> None:
    for kind, _, _ in BROKEN.values():
        model = kind()
        one, other = gradscope.inspect(model, inputs()), gradscope.check(model, inputs())
        assert one.findings == other.findings
        assert one.answers == other.answers


def test_a_deep_look_that_fails_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> dict[str, Any]:
        raise ValueError("no such luck\nsecond line")

    looks = tuple(
        full_samples._FullSample(look.names, look.words, fail)
        for look in full_samples._FULL_SAMPLES
    )
    monkeypatch.setattr(full_samples, "_FULL_SAMPLES", looks)
    report = gradscope.check(Detached(), inputs())
    assert report.status == "findings"
    assert "GS401" in codes(report)
    said = "the cause of missing or zero gradients: the full sample failed: no such luck"
    assert said in report.run.notices


def test_ctrl_c_in_a_deep_look_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch, unchanged: Unchanged
) -> None:
    def interrupt(*arguments: Any) -> dict[str, Any]:
        raise KeyboardInterrupt

    looks = tuple(
        full_samples._FullSample(look.names, look.words, interrupt)
        for look in full_samples._FULL_SAMPLES
    )
    monkeypatch.setattr(full_samples, "_FULL_SAMPLES", looks)
    model = Detached()
    with unchanged(model), pytest.raises(Interrupted) as caught:
        gradscope.check(model, inputs())
    assert isinstance(caught.value.report, Report)
    assert "GS401" in codes(caught.value.report)


def test_the_step_that_broke_is_the_one_looked_at() -> None:
    """The origin is in the second step: the first one's figures are all finite."""
    torch.manual_seed(4)  # under some others every output falls to 0
    optimizer = {"_target_": "torch.optim.SGD", "lr": 1e30}
    report = gradscope.check(
        Exploding(), inputs(), loss=lambda output: output.mean(), optimizer=optimizer, steps=4
    )
    assert "GS301" in codes(report)
    assert report.non_finite[0].phase == "forward"
    assert report.non_finite[0].op is not None
    assert "exp" in report.non_finite[0].message


@pytest.mark.slow
def test_why_finds_the_origin_where_inspect_finds_it() -> None:
    """In the second of four steps; by the last one, the weights themselves are NaN."""
    overrides = ["steps=4", "optimizer={_target_: torch.optim.SGD, lr: 1e25}"]
    report = gradscope.inspect("demo", overrides=overrides)
    answers = gradscope.why("demo", overrides=overrides).answers
    assert report.non_finite[0].name == "conv2"
    assert report.non_finite[0].phase == "forward"
    assert [(a.state, a.module, a.message) for a in answers] == [
        ("non-finite", "conv2", report.non_finite[0].message)
    ]


def test_what_a_step_broke_is_told_from_what_was_broken_before() -> None:
    """The weights that the only step made infinite are not taken for the beginning."""
    optimizer = {"_target_": "torch.optim.SGD", "lr": 1e30}
    model = Rooted()
    before = copy.deepcopy(model.state_dict())
    report = gradscope.check(model, inputs(), optimizer=optimizer)
    assert report.non_finite[0].phase == "forward"
    assert "sqrt" in report.non_finite[0].message
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("ask", [gradscope.check, gradscope.why])
def test_a_nan_in_the_target_is_the_targets(ask: Callable[..., Any]) -> None:
    model, target = nn.Linear(8, 4), torch.zeros(6, 4)
    target[2, 3] = torch.nan
    found = ask(model, inputs(), target=target, loss="mse")
    [told] = found.non_finite if isinstance(found, Report) else found.answers
    assert "the target has NaN before the model runs: 1 of 24 values" in told.message
    bad = inputs()
    bad[0, 0] = torch.nan
    found = ask(model, bad, target=torch.zeros(6, 4), loss="mse")
    [told] = found.non_finite if isinstance(found, Report) else found.answers
    assert "the input has NaN before the model runs: 1 of 48 values" in told.message


def test_findings_come_with_an_error_of_the_model() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.log, self.head = nn.Linear(8, 8), Log(), nn.Linear(9, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.log(self.stem(x)))

    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x)

    with pytest.raises(ModelError) as caught:
        gradscope.check(Late(), inputs())
    report = caught.value.report
    assert isinstance(report, Report)
    assert report.status == "failed"
    assert report.error is not None
    assert codes(report) == {"GS301"}


def test_layers_narrow_the_findings() -> None:
    model = Detached()
    assert "GS401" in codes(gradscope.check(model, inputs(), layers=["stem"]))
    assert "GS401" not in codes(gradscope.check(model, inputs(), layers=["head"]))
    assert "GS401" not in codes(gradscope.check(model, inputs(), exclude=["stem"]))
    with pytest.raises(LayerError):
        gradscope.check(model, inputs(), layers=["nothing"])


def test_thresholds_and_presets() -> None:
    model, x = Dead(), inputs().repeat(4, 1)
    dead = ["dead-units"]
    assert codes(gradscope.check(model, x, select=dead)) == {"GS201"}
    own = {"dead-units": {"samples": 100, "values": 1000}}
    assert not gradscope.check(model, x, select=dead, thresholds=own).findings
    [finding] = gradscope.check(model, x, select=dead, preset="autotrainer").findings
    assert finding.threshold is not None
    with pytest.raises(OptionError, match="unknown rule"):
        gradscope.check(model, x, select=["GX9"])
    with pytest.raises(ConfigError, match="no threshold"):
        gradscope.check(model, x, thresholds={"GS201": {"sampels": 1}})
