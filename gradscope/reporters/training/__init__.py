"""Formats of a training run: each has ``suffix`` and ``render(history, view)``.

All are functions of a ``RunHistory``, with the ``View`` that reports take. What is reported of a
run is in ``sentences/``, its tables are in ``tables/``.
"""

from __future__ import annotations

from gradscope.plugins import Format
from gradscope.records.history import RunHistory
from gradscope.reporters.annotations import GITHUB, SARIF
from gradscope.reporters.formats import formats
from gradscope.reporters.run.findings import as_check
from gradscope.reporters.training._document import document, page
from gradscope.reporters.views import View

__all__ = ["FORMATS", "page"]


def _as_findings(of: Format) -> Format:
    """A format of checks for the findings, the sum, and what could not be judged."""

    def render(history: RunHistory, view: View) -> str:
        text: str = of.render_check(as_check(history), view)
        return text

    return Format(of.suffix, render)


FORMATS = {
    **formats(document, "html", "markdown", "terminal"),
    "github": _as_findings(GITHUB),
    "sarif": _as_findings(SARIF),
}
