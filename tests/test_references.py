"""Values from the environment in a config are printed as their reference."""

from __future__ import annotations

import json
import os
from unittest import mock

import pytest
from hostile.commands import gradscope

from gradscope import references
from gradscope.errors import ConfigError, Problem
from gradscope.references import as_written, data_as_written

LONG = "hunter2-" + "x" * 80 + "-end"
ODD = 'top "secret" \x1b[31mé\nwith a second line'


@pytest.fixture
def noted():
    references.note(LONG, "${env:LONG}")
    references.note(ODD, "${env:ODD}")
    references.note("word", "${env:WORD}")
    references.note("cpu", "${env:CPU}")


TEXTS = {
    "whole": (f"`{LONG}` is not", "`${env:LONG}` is not"),
    "in a word": (f"a{LONG}b", "a${env:LONG}b"),
    "cut": (f'the text "{LONG[:40]}…"', 'the text "${env:LONG}"'),
    "cut twice": (f"{LONG[:9]}… and {LONG[:20]}…", "${env:LONG} and ${env:LONG}"),
    "its beginning alone": (LONG[:20], LONG[:20]),
    "another's end": ("a list, …", "a list, …"),
    "escaped by repr": (f"bad {ODD!r}", "bad '${env:ODD}'"),
    "escaped by ascii": (f"bad {ODD!a}", "bad '${env:ODD}'"),
    "in JSON": (json.dumps({"a": ODD}), '{"a": "${env:ODD}"}'),
    "a line of it": ("bad with a second line", "bad ${env:ODD}"),
    "a short value": ("`word` is no word", "`${env:WORD}` is no ${env:WORD}"),
    "a short value in a word": ("words and swords", "words and swords"),
    "a word of everybody": ("on the cpu", "on the cpu"),
    "nothing": ("no value", "no value"),
}


@pytest.mark.parametrize(("text", "written"), TEXTS.values(), ids=TEXTS)
def test_as_written(noted, text, written):
    assert as_written(text) == written


def test_errors_and_data(noted):
    error = ConfigError(Problem(f"`{LONG}`", None, f"not {LONG}", (f"of {LONG}",)))
    assert LONG not in error.render()
    assert LONG not in str(error)
    data = {"word": [LONG, 3, None, {"a": "word"}]}
    assert data_as_written(data) == {"word": ["${env:LONG}", 3, None, {"a": "${env:WORD}"}]}


NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, key, place=""):
        super().__init__()
        self.fc, self.key, self.place = nn.Linear(4, 2), key, place
        if place == "construction":
            raise ValueError(f"no key {key!r}")
    def forward(self, x):
        if self.place == "forward":
            raise KeyError(self.key)
        return self.fc(x)
"""
KEYS = [
    *("model={}", "model.x={}", "layers={}", "layers=re:({}", "freeze={}", "checkpoint={}"),
    *("checkpoint={}.pt", "weights={}", "loss={}", "loss._target_={}", "input.text={}"),
    *("input.image={}.png", "input.file={}", "input.fill={}", "input={{shape: [2], dtype: {}}}"),
    *("input={{shape: {}}}", "steps={}", "optimizer={}", "target={}", "device={}", "call={}"),
    *("rules.select={}", "replace.x={}", "autocast={}", "seed={}", "rules.preset={}"),
    *("interventions=[{{layers: {}, do: zero}}]", "interventions=[{{layers: a, do: {}}}]"),
]
#: Neighbours that may be before it, beside it, or a value that YAML reads as more than text.
VALUES = {"long": LONG, "short": "s3cr3t", "odd": ODD, "a number": "-48151623", "a path": "/x/y.pt"}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(v, id=k, marks=() if k == "odd" else pytest.mark.slow)
        for k, v in VALUES.items()
    ],
)
def test_no_error_tells_a_value(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key in KEYS:
        references.forget()
        reference = '"${env:GS_VALUE}"' if "{{" in key else "${env:GS_VALUE}"
        with mock.patch.dict(os.environ, {"GS_VALUE": value}):
            found = gradscope(["inspect", "demo", key.format(reference)])
        assert found.faults() == []
        if found.code != 2:  # a number may be a size
            continue
        assert "${env:GS_VALUE}" in found.err, key
        for secret in (value, value[:12], value.splitlines()[-1][-12:]):
            assert secret not in found.err + found.out, key


@pytest.mark.parametrize("place", ["construction", "forward", ""])
def test_nor_what_the_users_code_raises_nor_a_report(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.setenv("GS_VALUE", LONG)
    words = ["model.key=${env:GS_VALUE}", f"model.place={place}", "input.shape=[2,4]"]
    for end in (["-f", "json"], ["--debug"]):
        found = gradscope(["inspect", "./net.py:Net", *words, *end])
        assert found.code == (3 if place else 0)
        assert LONG[:12] not in found.out + found.err
    checked = gradscope(["check", "./net.py:Net", *words, "-f", "json"])
    assert LONG[:12] not in checked.out + checked.err
    assert '"key": "${env:GS_VALUE}"' in checked.out
