"""One error, in one set of lines, whatever shows it."""

from __future__ import annotations

import pytest

from gradscope import plugins
from gradscope.diagrams import GraphView, html
from gradscope.diagrams import terminal as graph_terminal
from gradscope.records.answers import WhyReport
from gradscope.records.graph import AutogradGraph
from gradscope.records.report import CheckedModel, CheckReport, Report
from gradscope.records.run import ErrorRecord, Frame, RelatedLine, RunInfo
from gradscope.records.tensors import TensorStats
from gradscope.reporters.finding_lines import error_lines
from gradscope.reporters.views import TextView, View
from gradscope.typeset.text import markup

github = plugins.load("gradscope.reporters.report", "github")
sarif = plugins.load("gradscope.reporters.report", "sarif")
why_markdown = plugins.load("gradscope.reporters.answers", "markdown")
why_terminal = plugins.load("gradscope.reporters.answers", "terminal")
markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

RUN = RunInfo("net.yaml", "cpu", "float32", "train", seed=0, steps=1, loss="sum")
ERROR = ErrorRecord(
    kind="inplace-modification",
    message="a variable was modified by an inplace operation",
    phase="backward",
    name="block",
    call=1,
    advice="write `y = y.add(1)`",
    exception="RuntimeError",
    inputs=(TensorStats((2, 6), "float32", 12),),
    frames=(Frame("train.py", 7, "step", "loss.backward()"),),
    details=("`exp` saved its result.", "`add_` then wrote to it."),
    related=(
        RelatedLine("saved", "net.py", 3, "y = x.exp()", "block", 1),
        RelatedLine("mutated", "net.py", 4, "y.add_(1)"),
    ),
)
LINES = [
    "error: inplace-modification, in the backward of block #1",
    "  RuntimeError: a variable was modified by an inplace operation",
    "  why: `exp` saved its result.",
    "  why: `add_` then wrote to it.",
    "  saved net.py:3 in block #1",
    "    y = x.exp()",
    "  mutated net.py:4",
    "    y.add_(1)",
    "  inputs: [2, 6] float32",
    "  at train.py:7 in step",
    "    loss.backward()",
    "  help: write `y = y.add(1)`",
]

REPORT = Report("failed", RUN, error=ERROR)
CHECK = CheckReport(status="failed", models=(CheckedModel("failed", RUN, error=ERROR),))
WHY = WhyReport(RUN, status="failed", error=ERROR)
GRAPH = AutogradGraph(RUN, status="failed", error=ERROR)

TEXTS = {
    "inspect": lambda: terminal.render(REPORT, View()),
    "inspect as markdown": lambda: markdown.render(REPORT, View()),
    "check": lambda: terminal.render_check(CHECK, View()),
    "check as markdown": lambda: markdown.render_check(CHECK, View()),
    "why": lambda: why_terminal.render(WHY, TextView()),
    "why as markdown": lambda: why_markdown.render(WHY, TextView()),
    "graph": lambda: graph_terminal.render(GRAPH, GraphView()),
}


def test_the_lines():
    assert [str(line) for line in error_lines(ERROR)] == LINES


def test_no_error_has_no_lines():
    assert error_lines(None) == []


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_text_shows_all_of_them(text):
    assert "\n".join(LINES) in text()


def test_formats_for_machines_hold_all_of_them():
    for line in LINES:
        assert line.strip() in github.render_check(CHECK, View()).replace("%0A", "\n")
        assert line.strip() in sarif.render_check(CHECK, View())


def test_the_page_holds_all_of_them():
    page = html.render(GRAPH, GraphView())
    for line in LINES:
        assert f"<p>{markup(line.strip())}</p>" in page


def test_a_location_stands_for_frames_that_are_not_there():
    error = ErrorRecord("model-error", "no", "forward", location="net.py:3")
    lines = [str(line) for line in error_lines(error)]
    assert lines == ["error: raised in the forward", "  no", "  at net.py:3"]
