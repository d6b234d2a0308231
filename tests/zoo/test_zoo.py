"""One model of each kind through the full check, and the zoo's own checkers on what is wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import gradscope
from gradscope.records.report import Finding
from zoo import attempts, checks, running
from zoo.checks import check
from zoo.diagnosing import findings, training_loss
from zoo.entries import Entry, all_entries, matching
from zoo.own_failures import OWN
from zoo.running import known, run
from zoo.tables import print_results

pytestmark = pytest.mark.slow

KINDS = {
    "convolutions": "torchvision:resnet18",
    "depthwise convolutions": "torchvision:mobilenet_v2",
    "vision transformer": "timm:vit_wee_patch16_reg1_gap_256",
    "shifted windows": "transformers:swin",
    "segmentation": "torchvision:lraspp_mobilenet_v3_large",
    "detection": "transformers:detr",
    "video": "torchvision:mvit_v2_s",
    "optical flow": "torchvision:raft_small",
    "quantization-aware": "torchvision:shufflenet_v2_x0_5-qat",
    "hybrid": "timm:mobilevit_xxs",
    "encoder": "transformers:bert",
    "decoder": "transformers:llama",
    "encoder and decoder": "transformers:t5",
    "audio": "transformers:wav2vec2",
    "experts": "transformers:mixtral",
    "state space": "transformers:mamba",
}


@pytest.mark.filterwarnings("ignore")  # each library warns of its own coming changes
@pytest.mark.parametrize("label", KINDS.values(), ids=KINDS)
def test_one_of_each_kind(label: str) -> None:
    pytest.importorskip(label.split(":")[0])
    [entry] = matching(all_entries([label.split(":")[0]]), [label])
    result = check(entry)
    assert not result.reasons
    assert result.outcome == "ok"
    assert result.compared > 20
    if result.repeats:
        assert result.identical


def test_the_zoo_is_as_large_as_it_says() -> None:
    entries = all_entries()
    families = {group: set() for group in ("torchvision", "timm", "transformers")}
    for entry in entries:
        families[entry.group].add(entry.family)
    assert len(families["timm"]) >= 60
    assert len(families["transformers"]) >= 40
    kinds = {entry.kind for entry in entries if entry.group == "torchvision"}
    assert {"segmentation", "detection", "video", "optical flow", "quantization"} < kinds


def test_own_failures_are_of_the_zoo_and_few() -> None:
    labels = {entry.label for entry in all_entries()}
    assert labels >= OWN.keys()
    assert len(OWN) <= 0.02 * len(labels)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def entry_of(model: type[nn.Module], name: str = "small") -> Entry:
    return Entry("own", "kind", "family", name, lambda: (model(), torch.randn(2, 3)))


def test_a_sound_model_passes() -> None:
    result = check(entry_of(Small))
    assert (result.outcome, result.repeats, result.identical) == ("ok", True, True)
    assert (result.calls, result.parameters, result.precision) == (3, 26, "float32")


def test_a_step_that_does_not_repeat_is_counted_and_not_blamed() -> None:
    ticks = iter(range(100))

    class Restless(Small):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1 + next(ticks))

    result = check(entry_of(Restless))
    assert (result.repeats, result.identical) == (False, None)


def meddled(monkeypatch: pytest.MonkeyPatch, meddle: Any) -> checks.Result:
    """The result where gradscope does ``meddle(model)`` before, and returns what it makes after."""
    inspect = gradscope.inspect

    def inspected(model: nn.Module, inputs: Any, **options: Any) -> Any:
        after = meddle(model)
        report = inspect(model, inputs, **options)
        return after(report) if after else report

    monkeypatch.setattr(gradscope, "inspect", inspected, raising=False)
    return check(entry_of(Small))


def test_a_weight_that_moved_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def meddle(model: nn.Module) -> None:
        model.first.weight.data.add_(1.0)

    result = meddled(monkeypatch, meddle)
    assert result.outcome == "failed"
    assert any("a parameter moved" in reason for reason in result.reasons)
    assert result.identical is False


def test_a_mode_that_changed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = meddled(monkeypatch, lambda model: model.first.eval() and None)
    assert any(reason.startswith("left behind") for reason in result.reasons)


def test_a_wrong_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def after(report: Any) -> Any:
        first, *others = report.parameters
        wrong = dataclasses.replace(first.gradient, norm=first.gradient.norm * 1.0001)
        return dataclasses.replace(
            report, parameters=(dataclasses.replace(first, gradient=wrong), *others)
        )

    result = meddled(monkeypatch, lambda model: after)
    assert any("first.weight.gradient" in reason for reason in result.reasons)


def test_a_missing_call_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def after(report: Any) -> Any:
        return dataclasses.replace(report, calls=report.calls[:-1])

    result = meddled(monkeypatch, lambda model: after)
    assert any("second#0: call missing" in reason for reason in result.reasons)


def test_the_run_outlives_models_that_hang_crash_and_raise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The worker imports its own module: its entries do what the label says.

    It is a copied process here: an interpreter for each of three workers proves no more.
    """
    monkeypatch.setattr(running.multiprocessing, "get_context", lambda method: processes.context())
    (tmp_path / "behaving.py").write_text(BEHAVING)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    entries = [entry_of(Small, name) for name in ("fine", "hangs", "fine again", "dies", "last")]
    rows = list(run(entries, timeout=3.0, memory=16.0, attempt="behaving:attempt"))
    assert [row["outcome"] for row in rows] == ["ok", "timeout", "ok", "died", "ok"]
    assert rows[1]["reasons"] == ["took more than 3 s"]
    assert rows[3]["reasons"] == ["the process ended with 3"]


BEHAVING = """
import os, time

def attempt(group, label):
    if label.endswith("hangs"):
        time.sleep(60)
    if label.endswith("dies"):
        os._exit(3)
    return {"label": label, "outcome": "ok"}
"""


def test_what_a_model_raises_is_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        raise ValueError("no such\nsize")

    entry = Entry("own", "kind", "family", "broken", make)
    monkeypatch.setattr(attempts, "_entries", lambda group: {entry.label: entry})
    threads = torch.get_num_threads()
    row = attempts.attempt("own", entry.label)
    torch.set_num_threads(threads)
    assert row["outcome"] == "raised"
    assert row["reasons"][0].startswith("ValueError: no such size (tests/zoo/test_zoo.py:")


def test_results_are_read_back_the_last_of_each(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert known(file) == {}
    rows = [{"label": "a", "outcome": "failed"}, {"label": "b"}, {"label": "a", "outcome": "ok"}]
    rows += [{"label": "a", "diagnosis": {"outcome": "ok"}}]
    file.write_text("".join(json.dumps(row) + os.linesep for row in rows))
    both = {"label": "a", "outcome": "ok", "diagnosis": {"outcome": "ok"}}
    assert known(file) == {"b": {"label": "b"}, "a": both}


def test_the_table_counts(capsys: pytest.CaptureFixture[str]) -> None:
    good = check(entry_of(Small)).data()
    bad = {**good, "label": "own:bad", "outcome": "failed", "reasons": ["wrong"], "repeats": False}
    bad["identical"] = None
    late = {key: good[key] for key in ("group", "kind", "family")}
    late |= {"label": "own:late", "outcome": "timeout", "reasons": ["took more than 3 s"]}
    print_results([good, bad, late], {"own:late": "sleeps"}, Console(width=120, soft_wrap=True))
    lines = capsys.readouterr().out.splitlines()
    total = next(line.split() for line in lines if line.startswith("total"))
    assert total[1:8] == ["1", "3", "2", "1", "1", "1", "0"]
    assert "1 of 2 plain steps repeat bit for bit (50.0 %)" in lines
    assert "2 of 3 failed, 1 by themselves" in lines
    assert "  own:late: timeout (its own: sleeps)" in lines
    assert not any("findings" in line for line in lines)


def test_findings_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"label": "own:x", "group": "own", "kind": "kind", "family": "family"}
    counts = {"findings": {"warning": 2, "error": 1}, "codes": {"GS101": 2, "GS601": 1}}
    row = {**facts, "diagnosis": {"outcome": "ok", "errors": ["GS601 a: nan"], **counts}}
    nothing = {"outcome": "ok", "findings": {}, "codes": {}, "errors": []}
    clean = {**facts, "label": "own:y", "diagnosis": nothing}
    print_results([row, clean], {}, Console(width=120, soft_wrap=True))
    lines = capsys.readouterr().out.splitlines()
    total = next(line.split() for line in lines if line.startswith("own"))
    assert total == ["own", "2", "2", "1", "1", "1", "0", "GS101", "2,", "GS601", "1"]
    assert "  own:x: GS601 a: nan" in lines


class Saturated(Small):
    """Model with a first layer upstream of a ReLU that passes nothing."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.first.bias, -100.0)


def test_a_healthy_model_has_no_findings_and_a_broken_one_has() -> None:
    assert not findings(entry_of(Small))["errors"]
    assert findings(entry_of(Saturated))["codes"]


class Unused(Small):
    """With a layer that forward passes over."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)


def test_an_error_is_held_against_a_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    data = findings(entry_of(Unused))
    assert data["errors"] == []
    assert all("spare" in said for said in data["confirmed"])
    assert len(data["confirmed"]) == data["findings"].get("error", 0)
    wrong = Finding("GS401", "no-gradient", "error", "first.weight", "it has none", "look")
    report = SimpleNamespace(findings=[wrong], answers=())
    monkeypatch.setattr("zoo.diagnosing.check", lambda *args, **options: report)
    assert findings(entry_of(Small))["errors"] == ["GS401 first.weight: it has none"]


def test_every_output_is_in_the_training_loss() -> None:
    scores, maps = torch.randn(2, 5, requires_grad=True), torch.randn(2, 3, 4, requires_grad=True)
    loss = training_loss({"scores": scores, "maps": [maps], "ids": torch.ones(2), "name": "x"})
    loss.backward()
    assert scores.grad is not None
    assert bool((maps.grad != 0).all())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("label", OWN)
def test_own_failures_happen_in_plain_pytorch(label: str) -> None:
    pytest.importorskip(label.split(":")[0])
    assert OWN[label]()
