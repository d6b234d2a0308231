"""Formats of a comparison of two runs: each has ``suffix`` and ``render(report, view)``.

Rows come from ``_tables``, sentences from ``_lines``.
"""

from gradscope.reporters.diff._view import DiffView

__all__ = ["DiffView"]
