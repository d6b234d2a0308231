"""Formats of a training run: each has ``suffix`` and ``render(history, view)``.

All are functions of a ``RunHistory``, with the ``View`` that reports take. What is reported of a
run is in ``sentences/``, its tables are in ``tables/``.
"""

from __future__ import annotations

from gradscope.reporters.annotations import of_checks
from gradscope.reporters.formats import formats
from gradscope.reporters.run.findings import as_check
from gradscope.reporters.training._document import document, page

__all__ = ["FORMATS", "page"]


#: The findings, the sum, and what could not be judged are those of a check.
FORMATS = {**formats(document, "html", "markdown", "terminal"), **of_checks(as_check)}
