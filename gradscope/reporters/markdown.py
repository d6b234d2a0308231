"""A report as GitHub Markdown: the terminal's tables, for an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.records.findings import CheckReport, Finding
from gradscope.records.graph import Chain
from gradscope.records.report import Report
from gradscope.reporters import _chains, _checked, _findings, _precision, _summary, _tables
from gradscope.reporters._view import View
from gradscope.typeset.console import Line
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
    first, *further = _summary.header(report)
    yield f"## {_escape(first[0])}"
    notes = [f"note: {notice}" for notice in _summary.notices(report)]
    facts = [" · ".join(first[1:]), *(" · ".join(line) for line in further), *notes]
    yield "\n".join(f"- {_escape(fact)}" for fact in facts)
    if report.error:
        yield "### Error\n\n" + _fenced(_prose(line) for line in _summary.error(report))
    if view.table in (None, "calls"):
        yield _table(_tables.calls(report, view)) if report.calls else "No calls were recorded."
    if view.table in (None, "parameters") and report.parameters:
        yield _table(_tables.parameters(report, view))
    if view.table is None:
        steps = _tables.history(report)
        if steps:
            yield _table(steps)
    for chain in report.chains:  # somebody asked for each of them
        yield f"### C{_escape(_chains.title(chain))[1:]}\n\n{_fenced(_chain(chain))}"
    yield _escape(" · ".join(_summary.totals(report)))
    proof = _summary.verified(report)
    if proof:
        yield f"**{_escape(proof.lead)}** {_escape(proof.text)}"
    if report.findings:
        yield "### Findings\n\n" + "\n".join(_found(report.findings))


def _verdicts(check: CheckReport, view: View) -> Iterator[str]:
    yield "## gradscope check"
    yield _escape(_checked.summary(check))
    for model in check.models:
        verdict = _checked.verdict(model)
        yield f"### {_escape(verdict.lead)} {_escape(verdict.text)}"
        if _checked.notes(model):
            yield "\n".join(f"- note: {_escape(notice)}" for notice in _checked.notes(model))
        if model.error is not None:
            yield _fenced(_prose(line) for line in _checked.failure(model))
        if model.findings:
            yield "\n".join(_found(model.findings))
        for table in _precision.tables(model.precision, view.top):
            if table.rows:
                yield _table(table).replace("### ", "#### ", 1)
            else:
                said = " · ".join((table.caption, *table.legend))
                yield f"#### {table.title.capitalize()} ({_escape(said)})"
        if model.precision:
            yield "\n\n".join(map(_escape, _precision.LEGEND))
    yield from map(_escape, _checked.stale(check))


def _table(table: Table) -> str:
    lines = [
        "| " + " | ".join(_escape(c.key) for c in table.columns) + " |",
        "| " + " | ".join("---:" if c.right else "---" for c in table.columns) + " |",
    ]
    for row in table.rows:
        cells = (
            _code(cell.text) if column.wraps and cell.text else _escape(cell.text)
            for column, cell in zip(table.columns, row, strict=True)
        )
        lines.append("| " + " | ".join(cells) + " |")
    caption = f" ({_escape(table.caption)})" if table.caption else ""
    legend = "".join(f"\n\n{_escape(remark)}" for remark in table.legend)
    return f"### {table.title.capitalize()}{caption}\n\n" + "\n".join(lines) + legend


def _found(findings: Sequence[Finding]) -> Iterator[str]:
    for group in _findings.grouped(findings):
        _, *details = _findings.lines(group)
        place, said = _code(_findings.place(group.first)), _spans(plain(group.first.message))
        yield f"- **{_escape(_findings.lead(group.first))}** {place}: {said}"
        yield from (f"  - {_spans(_prose(replace(line, indent=0)))}" for line in details)


def _chain(chain: Chain) -> Iterator[str]:
    lines = _chains.lines(chain)
    for line in lines:
        parts = (line.strokes + line.operation, line.module, " · ".join(line.leaves))
        yield "  ".join(part for part in parts if part)
    yield from _chains.legend(lines)


def _prose(line: Line) -> str:
    return "  " * line.indent + (f"{line.lead} {line.text}" if line.lead else line.text)


def _spans(text: str) -> str:
    """A sentence: its code spans stay what they are, the rest is shown as it stands."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if i % 2 else _escape(part) for i, part in enumerate(parts))


def _escape(text: str) -> str:
    """Text that Markdown shows as it stands, in a table too, and that reads well unrendered."""
    text = re.sub(r"[\\`*<>|~&$]|(?<!\w)_|_(?!\w)|#(?=\w)", r"\\\g<0>", text)
    # Brackets make a link only where something follows them: shapes stay as they are.
    return re.sub(r"[\[\]]", r"\\\g<0>", text) if re.search(r"\][(\[:]", text) else text


def _code(text: str) -> str:
    """A code span; a table still reads a bare ``|`` in it as a border."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    # A code span drops plain spaces at its ends: the indent of a further tensor's row must stay.
    kept = re.sub(r"^ +", lambda m: "\u00a0" * len(m[0]), text)
    return f"{ticks}{space}{kept}{space}{ticks}".replace("|", "\\|")


def _fenced(lines: Iterator[str]) -> str:
    body = "\n".join(lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", body)), default=0))
    return f"{fence}text\n{body}\n{fence}"
