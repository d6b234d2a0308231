"""A document as a page for a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradscope.pages import Excerpt, Item, Page, Part, items, table_part
from gradscope.records.report import Finding
from gradscope.records.run import ErrorRecord
from gradscope.reporters import finding_lines
from gradscope.reporters.document import (
    Block,
    Document,
    Drawn,
    Entries,
    Found,
    Nothing,
    Remarks,
    Said,
)
from gradscope.reporters.finding_lines import Known, error_lines, nothing
from gradscope.typeset.tables import Table

#: Lines of code before and after the one that is meant, and the largest file that is read.
_AROUND, _LARGEST = 2, 1 << 20


def excerpt(location: str | None) -> Excerpt | None:
    """Return the code around a record's ``net.py:31``, if the file is available.

    Only Python files below the working directory count: a record may come from another person, and
    name any file of the reader.
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
    """Return the findings, similar ones as one; each has the rows that it concerns."""
    found = []
    for group in finding_lines.grouped(findings, known):
        first, *more = finding_lines.lines(group, known)
        names = tuple(finding_lines.place(one) for one in (group.first, *group.more))
        names = tuple(dict.fromkeys((*names, *known(group.first).names)))
        code = excerpt(group.first.location)
        found.append(Item(first.lead, first.text, first.tone, tuple(more), names, code))
    return tuple(found)


def page(document: Document) -> Page:
    """Return the page of a document: facts and all parts; blocks of one part are together."""
    title, facts = document.untitled
    parts: list[Part] = []
    if document.end is not None:
        parts.append(Part("status", items=items([document.end])))
    for block in document.blocks:
        part = _part(block)
        i = next((i for i, one in enumerate(parts) if part and one.title == part.title), None)
        if part is not None and i is not None and not isinstance(block, Table | Part):
            before = parts[i]
            parts[i] = replace(
                before,
                items=(*before.items, *part.items),
                remarks=(*before.remarks, *part.remarks),
            )
        elif part is not None:
            parts.append(part)
    return Page(document.kind, title, facts, document.notes, parts, document.versions)


def _part(block: Block) -> Part | None:
    match block:
        case Part():
            return block
        case ErrorRecord():
            return Part("error", items=items(error_lines(block)))
        case Table():
            return table_part(block)
        case Found():
            return Part(block.part, items=finding_items(block.findings, block.known))
        case Said():
            remarks = (" · ".join(block.facts),) if block.facts else ()
            return Part(block.part, items=items(block.lines), remarks=remarks)
        case Entries():
            found = (
                replace(item, excerpt=excerpt(entry.location))
                for entry in block.entries
                for item in items(entry.lines)
            )
            return Part(block.part, items=tuple(found))
        case Nothing():
            return Part(block.part, remarks=(block.text, *block.reasons))
        case Remarks():
            return Part(block.part, remarks=tuple(block.texts))
        case Drawn() if block.title:
            text = "\n".join(block.rows)
            return Part(block.title, text=text, remarks=tuple(block.remarks))
    return None
