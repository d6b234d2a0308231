"""Formats of a report and of a check: each has ``suffix``, ``render`` and ``render_check``.

A new format is a new file here, or an entry. Rows come from ``tables``, so that no two formats can
disagree.
"""

from __future__ import annotations

from dataclasses import replace

from gradscope.reporters import check
from gradscope.reporters.annotations import GITHUB, SARIF
from gradscope.reporters.formats import formats
from gradscope.reporters.report._document import document

__all__ = ["FORMATS"]

_OF_CHECKS = {"html": check.html, "markdown": check.markdown, "terminal": check.terminal}
FORMATS = {
    **{
        name: replace(one, render_check=_OF_CHECKS.get(name, one.render_check))
        for name, one in formats(document).items()
    },
    "github": GITHUB,
    "sarif": SARIF,
}
