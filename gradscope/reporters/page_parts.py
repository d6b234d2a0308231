"""Findings, answers and errors as parts of a page, for every record that has some."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.pages import Item, Part, items
from gradscope.records.errors import ErrorRecord
from gradscope.records.report import Finding
from gradscope.reporters import finding_lines
from gradscope.reporters.errors import error_lines
from gradscope.reporters.finding_lines import Known, nothing
from gradscope.typeset.console import Line


def finding_items(findings: Sequence[Finding], known: Known = nothing) -> tuple[Item, ...]:
    """The findings, those alike as one; each knows the rows that it is about."""
    found = []
    for group in finding_lines.grouped(findings, known):
        first, *more = finding_lines.lines(group, known)
        names = tuple(finding_lines.place(one) for one in (group.first, *group.more))
        found.append(Item(first.lead, first.text, first.tone, tuple(more), names))
    return tuple(found)


def findings_part(findings: Sequence[Finding], known: Known = nothing) -> Part:
    """The findings under their title."""
    return Part("findings", items=finding_items(findings, known))


def error_parts(error: ErrorRecord | None) -> list[Part]:
    """Why the run failed; nothing where it did not."""
    return [Part("error", items=items(error_lines(error)))] if error else []


def said(*lines: Line | None) -> tuple[Item, ...]:
    """Each of the lines as an item."""
    return items(line for line in lines if line is not None)
