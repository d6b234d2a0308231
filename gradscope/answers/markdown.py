"""Answers as GitHub Markdown, for an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gradscope.answers._lines import Alike, alike, answer_lines, conclusion, error_lines, facts
from gradscope.answers._view import AnswerView
from gradscope.records.answers import WhyReport
from gradscope.typeset.console import Line
from gradscope.typeset.text import plain

suffix = ".md"


def render(report: WhyReport, view: AnswerView) -> str:
    """A list item for each cause, without a width."""
    return "\n\n".join(_blocks(report)) + "\n"


def _blocks(report: WhyReport) -> Iterator[str]:
    name, *further = facts(report)
    yield f"## why: {_escape(name)}"
    notes = [f"note: {plain(notice)}" for notice in report.run.notices]
    yield "\n".join(f"- {_escape(fact)}" for fact in (" · ".join(further), *notes))
    if report.error is not None:
        lines = list(error_lines(report))
        yield "### Error\n\n" + "\n".join(_item(line) for line in lines)
    items = [_answer(group) for group in alike(report)]
    if items:
        yield "\n".join(items)
    for line in conclusion(report):
        yield _said(line)


def _answer(group: Alike) -> str:
    return "\n".join(_item(line) for line in answer_lines(group))


def _item(line: Line) -> str:
    return f"{'  ' * line.indent}- {_said(line)}"


def _said(line: Line) -> str:
    text = _prose(line.text)
    return f"**{_escape(line.lead)}** {text}" if line.lead else text


def _prose(text: str) -> str:
    """A sentence: code spans stay what they are, the rest is shown as it stands."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if i % 2 else _escape(part) for i, part in enumerate(parts))


def _escape(text: str) -> str:
    return re.sub(r"[\\`*<>|~&$\[\]]|(?<!\w)_|_(?!\w)|#(?=\w)", r"\\\g<0>", text)
