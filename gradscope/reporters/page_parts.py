"""Findings, answers and errors as parts of a page, for every record that has some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradscope.pages import Excerpt, Item, Part, items
from gradscope.records.report import Finding
from gradscope.records.run import ErrorRecord
from gradscope.reporters import finding_lines
from gradscope.reporters.errors import error_lines
from gradscope.reporters.finding_lines import Known, nothing
from gradscope.typeset.console import Line

#: Lines of code before and after the one that is meant, and the largest file that is read.
_AROUND, _LARGEST = 2, 1 << 20


def excerpt(location: str | None) -> Excerpt | None:
    """The code around a record's ``net.py:31``, where the file is at hand.

    Only Python files below the working directory are: a record may be somebody else's, and name any
    file of the reader's.
    """
    file, _, number = (location or "").rpartition(":")
    if not file.endswith(".py") or not number.isdecimal():
        return None
    try:
        path, line = Path(file).resolve(), int(number)
        known = path.is_relative_to(Path.cwd()) and path.is_file()
        if not known or path.stat().st_size > _LARGEST:
            return None
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    first = max(1, line - _AROUND)
    if not 1 <= line <= len(lines):
        return None
    return Excerpt(first, tuple(lines[first - 1 : line + _AROUND]), line)


def finding_items(findings: Sequence[Finding], known: Known = nothing) -> tuple[Item, ...]:
    """The findings, those alike as one; each knows the rows that it is about."""
    found = []
    for group in finding_lines.grouped(findings, known):
        first, *more = finding_lines.lines(group, known)
        names = tuple(finding_lines.place(one) for one in (group.first, *group.more))
        names = tuple(dict.fromkeys((*names, *known(group.first).names)))
        code = excerpt(group.first.location)
        found.append(Item(first.lead, first.text, first.tone, tuple(more), names, code))
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
