"""Findings as GitHub's workflow commands: annotations on the lines of a pull request.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.report import CheckedModel, CheckReport, Report
from gradscope.reporters import finding_lines
from gradscope.reporters.errors import error_lines
from gradscope.reporters.finding_lines import SimilarFindings
from gradscope.reporters.report import _checked
from gradscope.reporters.report._source_lines import SourceLine, source_line
from gradscope.reporters.report._view import View
from gradscope.typeset.text import plain

suffix = ".github"

_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def render(report: Report, view: View) -> str:
    """The findings of one run."""
    return render_check(_checked.alone(report), view)


def render_check(check: CheckReport, view: View) -> str:
    """A command for each finding, those alike on one line in one, and the sum as plain text.

    GitHub shows ten annotations of a level and a step, so that none may be spent on repetition.
    """
    lines = [command for model in check.models for command in _commands(model, view)]
    lines += _checked.stale(check)
    return "\n".join([*lines, _checked.summary(check), *map(plain, check.notes)]) + "\n"


def _commands(model: CheckedModel, view: View) -> Iterator[str]:
    name = _checked.title(model.run)
    if model.error is not None:
        error = [str(line).strip() for line in error_lines(model.error)]
        where = source_line(model.error.location, model.run, view.root)
        yield _command("error", plain(model.error.kind), where, [f"{name}: {error[0]}", *error[1:]])
    for group in finding_lines.grouped(model.findings):
        for part in _by_line(group):
            finding = part.first
            sentence, *details = finding_lines.lines(part)
            text = [f"{name}: {sentence.text}"]
            text += [str(line).strip() for line in details]
            where = source_line(finding.line, model.run, view.root)
            level = _LEVELS.get(finding.severity, "notice")
            yield _command(level, f"{plain(finding.code)} {plain(finding.rule)}", where, text)


def _by_line(group: SimilarFindings) -> Iterator[SimilarFindings]:
    """An annotation is on one line: those alike that are elsewhere get their own."""
    members: dict[str | None, SimilarFindings] = {}
    for finding in (group.first, *group.more):
        before = members.get(finding.location)
        more = (*before.more, finding) if before else ()
        members[finding.location] = SimilarFindings(before.first if before else finding, more)
    yield from members.values()


def _command(level: str, title: str, where: SourceLine | None, text: list[str]) -> str:
    properties = {"title": title}
    if where is not None:
        line = {} if where.line is None else {"line": str(where.line)}
        properties = {"file": plain(where.file), **line, **properties}
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{level} {written}::{_data(chr(10).join(text))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
