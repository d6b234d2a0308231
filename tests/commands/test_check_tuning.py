"""The audit of fine-tuning, end to end: a config in, findings out; each with its mended twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope import cli

pytestmark = pytest.mark.slow

NETS = '''
import torch
from torch import nn


class Tuned(nn.Module):
    """A convolutional body with BatchNorm and dropout, and a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Asleep(Tuned):
    """The body stays in eval mode, whatever `train` says."""

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self


class Thawing(Asleep):
    """Undoes the freeze in forward."""

    def forward(self, x):
        self.body.requires_grad_(True)
        return super().forward(x)


class Misspelt(Asleep):
    def __init__(self):
        super().__init__()
        for parameter in self.body.parameters():
            parameter.require_grad = False


class Adapted(nn.Module):
    """A low-rank adapter beside a frozen layer; one factor begins at zero, as it should."""

    def __init__(self, both=False):
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.head = nn.Linear(8, 4)
        self.head.requires_grad_(False)
        nn.init.zeros_(self.up.weight)
        if both:
            nn.init.zeros_(self.down.weight)

    def forward(self, x):
        return self.head(torch.relu(self.base(x))) + self.up(self.down(x))


def head_only(parameters, lr):
    """The optimizer that was made for another head."""
    return torch.optim.SGD(list(parameters)[:-2], lr=lr)


def all_of_them(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr)
'''
CONFIG = """
model: {{_target_: ./nets.py:{model}}}
input: {{shape: {shape}}}
target: [0, 1, 2, 3]
{more}
"""
#: model, the rest of the config, the code, the name; then the same mended
AUDIT: dict[str, tuple[tuple[str, str], str, str, str, tuple[str, str]]] = {
    "BatchNorm still moves": (
        ("Tuned", "freeze: [body.**]"),
        *("GS403", "body.1", "batch-norm"),
        ("Asleep", "freeze: [body.**]"),
    ),
    "dropout is left on": (
        ("Tuned", "freeze: [body.**]"),
        *("GS403", "body.3", "dropout"),
        ("Asleep", "freeze: [body.**]"),
    ),
    "the freeze is undone": (
        ("Thawing", "freeze: [body.**]"),
        *("GS406", "body", ""),
        ("Asleep", "freeze: [body.**]"),
    ),
    "a flag is misspelt": (
        ("Misspelt", ""),
        *("GS405", "body", ""),
        ("Asleep", ""),
    ),
    "no group holds the head": (
        ("Asleep", "optimizer: {_target_: ./nets.py:head_only, lr: 0.01}"),
        *("GS404", "head", ""),
        ("Asleep", "optimizer: {_target_: ./nets.py:all_of_them, lr: 0.01}"),
    ),
    "both factors of an adapter are zero": (
        ("Adapted, both: true", ""),
        *("GS103", "down.weight", "zero-weight"),
        ("Adapted", ""),
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, model: str, more: str) -> None:
    shape = "[4, 8]" if model.startswith("Adapted") else "[4, 3, 8, 8]"
    target, comma, arguments = model.partition(", ")
    text = CONFIG.format(model=target + comma + arguments, shape=shape, more=more)
    Path(name).write_text(text, encoding="utf-8")


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Any:
        monkeypatch.setattr("sys.argv", ["gradscope", "check", *arguments, "-f", "json"])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        assert stop.value.code in (0, 1), err
        return json.loads(out)["models"]

    return run


@pytest.mark.parametrize("case", AUDIT)
def test_the_audit(case: str, check: Any) -> None:
    broken, code, name, cause, mended = AUDIT[case]
    write("broken.yaml", *broken)
    write("mended.yaml", *mended)
    found, silent = check("broken.yaml", "mended.yaml")
    said = [(f["code"], f["name"].partition(".weight")[0]) for f in found["findings"]]
    assert any(c == code and n.startswith(name.partition(".weight")[0]) for c, n in said), said
    if cause:
        assert cause in [f["cause"] for f in found["findings"] if f["code"] == code]
    loud = [f for f in silent["findings"] if f["code"] == code and f["severity"] == "error"]
    loud += [f for f in silent["findings"] if f["code"] == code and code != "GS103"]
    assert loud == []


def test_a_zero_partner_is_told_from_a_bug(check: Any) -> None:
    write("broken.yaml", "Adapted, both: true", "")
    write("mended.yaml", "Adapted", "")
    broken, mended = check("broken.yaml", "mended.yaml")
    assert [a["recovers"] for a in mended["answers"] if a["cause"] == "zero-weight"] == [True]
    assert not any(a.get("recovers") for a in broken["answers"])
    severities = {
        model["run"]["file"]: [f["severity"] for f in model["findings"] if f["code"] == "GS103"]
        for model in (broken, mended)
    }
    assert set(severities["broken.yaml"]) == {"error"}
    assert "error" not in severities["mended.yaml"]
