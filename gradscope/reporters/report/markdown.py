"""A report as GitHub Markdown: the terminal's tables, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.records.graph import Chain
from gradscope.records.report import CheckReport, Finding, Report
from gradscope.reporters.errors import error_lines
from gradscope.reporters.header import notes
from gradscope.reporters.markdown_text import code, escaped, fenced, sentence
from gradscope.reporters.report import (
    _chains,
    _checked,
    _findings,
    _histograms,
    _precision,
    _summary,
)
from gradscope.reporters.report._view import View
from gradscope.reporters.report.tables import derive
from gradscope.typeset.tables import Table
from gradscope.typeset.text import plain

suffix = ".md"


def render(report: Report, view: View) -> str:
    """Every table at its full width."""
    return "\n\n".join(_blocks(report, view)) + "\n"


def render_check(check: CheckReport, view: View) -> str:
    """The sum first, then each model: a comment on a pull request."""
    return "\n\n".join(_verdicts(check, view)) + "\n"


def _blocks(report: Report, view: View) -> Iterator[str]:
    first, *further = _summary.facts(report)
    yield f"## {escaped(first[0])}"
    facts = [" · ".join(first[1:]), *(" · ".join(line) for line in further), *notes(report.run)]
    yield "\n".join(f"- {escaped(fact)}" for fact in facts)
    if report.error:
        yield "### Error\n\n" + fenced(map(str, error_lines(report.error)))
    if view.table in (None, "calls"):
        yield (_table(derive.calls(report, view)) if report.calls else "No calls were recorded.")
    if view.table in (None, "parameters"):
        owned = derive.parameters(report, view)
        if owned.rows:
            yield _table(owned)
    if view.table is None:
        steps = derive.history(report)
        if steps:
            yield _table(steps)
    for table in _histograms.tables(report.histograms):
        yield _table(table)
    for chain in report.chains:  # somebody asked for each of them
        yield f"### C{escaped(_chains.title(chain))[1:]}\n\n{fenced(_chain(chain))}"
    yield escaped(" · ".join(_summary.totals(report)))
    proof = _summary.verified(report)
    if proof:
        yield f"**{escaped(proof.lead)}** {escaped(proof.text)}"
    if report.findings:
        yield "### Findings\n\n" + "\n".join(_found(report.findings))


def _verdicts(check: CheckReport, view: View) -> Iterator[str]:
    yield "## gradscope check"
    yield escaped(_checked.summary(check))
    for model in check.models:
        verdict = _checked.verdict(model)
        yield f"### {escaped(verdict.lead)} {escaped(verdict.text)}"
        if _checked.notes(model):
            yield "\n".join(f"- {escaped(note)}" for note in _checked.notes(model))
        if model.error is not None:
            yield fenced(map(str, error_lines(model.error)))
        if model.findings:
            yield "\n".join(_found(model.findings))
        for table in _precision.tables(model.precision, view.top):
            if table.rows:
                yield _table(table).replace("### ", "#### ", 1)
            else:
                caption = " · ".join((table.caption, *table.legend))
                yield f"#### {table.title.capitalize()} ({escaped(caption)})"
        if model.precision:
            yield "\n\n".join(map(escaped, _precision.LEGEND))
    yield from map(escaped, _checked.stale(check))


def _table(table: Table) -> str:
    lines = [
        "| " + " | ".join(escaped(c.key) for c in table.columns) + " |",
        "| " + " | ".join("---:" if c.right else "---" for c in table.columns) + " |",
    ]
    for row in table.rows:
        cells = (
            code(cell.text) if column.wraps and cell.text else escaped(cell.text)
            for column, cell in zip(table.columns, row, strict=True)
        )
        lines.append("| " + " | ".join(cells) + " |")
    caption = f" ({escaped(table.caption)})" if table.caption else ""
    legend = "".join(f"\n\n{escaped(remark)}" for remark in table.legend)
    return f"### {table.title.capitalize()}{caption}\n\n" + "\n".join(lines) + legend


def _found(findings: Sequence[Finding]) -> Iterator[str]:
    for group in _findings.grouped(findings):
        _, *details = _findings.lines(group)
        place, message = code(_findings.place(group.first)), sentence(plain(group.first.message))
        yield f"- **{escaped(_findings.lead(group.first))}** {place}: {message}"
        yield from (f"  - {sentence(str(replace(line, indent=0)))}" for line in details)


def _chain(chain: Chain) -> Iterator[str]:
    lines = _chains.lines(chain)
    for line in lines:
        parts = (line.strokes + line.operation, line.module, " · ".join(line.leaves))
        yield "  ".join(part for part in parts if part)
    yield from _chains.legend(lines)
