"""The formats of a record that is made into a document: terminal, Markdown, page, and JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradscope import pages
from gradscope.pages import Page
from gradscope.plugins import Format
from gradscope.records import json as record_json
from gradscope.reporters.document import Document, texts
from gradscope.reporters.markdown import markdown
from gradscope.reporters.page import page
from gradscope.typeset.console import printed


def _dumped(record: Any, view: Any) -> str:
    """Return the record as JSON; a view chooses the display, not the record."""
    return record_json.dumps(record)


#: Strict JSON.
JSON = Format(".json", _dumped, _dumped)


def formats(document: Callable[..., Document], *names: str) -> dict[str, Format]:
    """Return all four formats of a record, or those in ``names``.

    Args:
        document: makes the document from the record, a view and the format's name, and any further
            arguments.
    """

    def paged(record: Any, view: Any, *more: Any) -> Page:
        return page(document(record, view, "html", *more))

    def shown(record: Any, view: Any, *more: Any) -> str:
        lines = texts(document(record, view, "terminal", *more), view.width)
        return printed(lines, width=view.width, color=view.color)

    every = {
        "html": Format(".html", lambda *given: pages.render(paged(*given)), page=paged),
        "json": JSON,
        "markdown": Format(".md", lambda *given: markdown(document(*given, "markdown"))),
        "terminal": Format(".txt", shown),
    }
    return {name: every[name] for name in names or every}
