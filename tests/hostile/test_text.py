"""Text stays text: what does not print is written out, in every format and every message."""

from __future__ import annotations

import csv
import io
import json

import pytest
from fuzz.values import changed, paths

from gradscope.typeset.text import printable_json
from hostile.commands import gradscope, unprintable

NAMES = [
    "\x1b[2J",
    "b\u202e\u200b",
    "=cmd()",
    "+1",
    "c\rd\n",
    "\x07\x9b31m",
    '-x,"q',
    "@z\t",
    "é|`",
]
NET = f"""
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for name in {NAMES!r}:
            self.add_module(name, nn.Linear(4, 4))
        self.last = nn.Linear(4, 4)
    def forward(self, x):
        for module in self.children():
            x = module(x)
        return x
class Cut(Net):
    def forward(self, x):
        return super().forward(x).detach() + self.last(x)
class Wrong(Net):
    def forward(self, x):
        x = super().forward(x).exp()
        return x.add_(1) + self.last(x)
class Failing(Net):
    def forward(self, x):
        raise ValueError({NAMES!r}[0] + "\\u202e\\r\\x9b\\x00\\x7f\\u2028")
"""
REPORTS = ("terminal", "json", "csv", "markdown", "html", "github", "sarif")
DIAGRAMS = ("terminal", "json", "svg", "dot", "mermaid", "html", "graphml")
COMMANDS = [
    *(["inspect", "-f", format] for format in REPORTS),
    *(["check", "-f", format] for format in REPORTS),
    *(["graph", "-f", format] for format in DIAGRAMS),
    *(["why", "-f", format] for format in ("terminal", "json", "markdown", "html")),
    *(["layers", "-f", format] for format in ("terminal", "json")),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Net", "Failing"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_does_not_print_is_written_out(command, model, folder):
    words = [*command, f"./net.py:{model}", "input.shape=[2, 4]"]
    found = gradscope(words)
    assert found.faults() == []
    assert found.code == (3 if model == "Failing" and command[0] != "layers" else 0)
    if "json" in command and found.out:
        json.loads(found.out)


def test_json_keeps_names_exactly(folder):
    report = json.loads(
        gradscope(["inspect", "./net.py:Net", "input.shape=[2, 4]", "-f", "json"]).out
    )
    assert [name for name in NAMES if name in {call["name"] for call in report["calls"]}] == NAMES


def test_no_cell_of_a_table_is_a_formula_or_breaks_its_row(folder):
    text = gradscope(["inspect", "./net.py:Net", "input.shape=[2, 4]", "-f", "csv"]).out
    assert "\r" not in text.replace("\r\n", "")
    for row in csv.reader(io.StringIO(text, newline="")):
        for cell in row:
            number = cell.lstrip("-").replace(".", "").replace("e-", "").isdigit()
            assert number or not cell.startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "./\x1b[31m.py:Net"],
        ["inspect", "demo", "se\u202eed=1"],
        ["inspect", "demo", "-l", "\x9b31m"],
        ["show", "\x1b]0;x\x07.json"],
        ["nonsense\x1b"],
        ["inspect", "demo", "-o", "\x1b[2J/x.json"],
        ["saliency", "\u202egnp.a"],
    ],
)
def test_in_messages(words, folder):
    found = gradscope(words)
    assert (found.code, found.faults()) == (2, [])


HOSTILE = "\x1b]0;x\x07\u202e\x9b31m\r\n::error::x"
SAVED = {
    "report": (["inspect", "./net.py:Wrong"], "show", REPORTS),
    "check": (["check", "./net.py:Net", "./net.py:Failing", "./net.py:Wrong"], "show", REPORTS),
    "answers": (["why", "./net.py:Cut"], "why", ("terminal", "json", "markdown", "html")),
    "graph": (
        ["graph", "./net.py:Net"],
        "graph",
        ("terminal", "json", "dot", "mermaid", "graphml"),
    ),
    "comparison": (["diff", "./net.py:Net", "./net.py:Cut"], "diff", REPORTS),
}


def _texts(tree):
    """Each place in a record where a text stands, those of a list's items once."""
    seen = set()
    for path in paths(tree):
        kind = tuple("#" if isinstance(part, int) else part for part in path)
        text = tree
        for part in path:
            text = text[part]
        if isinstance(text, str) and kind not in seen:
            seen.add(kind)
            yield path


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAVED)
def test_any_text_of_a_saved_record(kind, folder):
    """A text that is no name of ours is shown with escapes, whatever it stands for."""
    make, command, formats = SAVED[kind]
    saved = json.loads(gradscope([*make, "input.shape=[2, 4]", "-f", "json"]).out)
    for path in _texts(saved):
        (folder / "saved.json").write_text(json.dumps(changed(saved, path, HOSTILE)))
        for format in formats:
            found = gradscope([command, "saved.json", "-f", format])
            assert found.faults() == [], (path, format)
            assert not any(line.startswith("::error::x") for line in found.out.splitlines())
            if found.code == 2:  # what is no record is none in any format
                break


def test_as_escapes_of_json():
    text = "\x7f\x85\u200b\u2028\U000e0001é×\n"
    assert printable_json(text) == "\\u007f\\u0085\\u200b\\u2028\\udb40\\udc01é×\n"
    assert json.loads(f'"{printable_json(text[:-1])}"') == text[:-1]
    assert unprintable(text) == ["\x7f", "\x85", "\u200b", "\u2028", "\U000e0001"]
