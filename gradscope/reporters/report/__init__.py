"""Formats of a report and of a check: each has ``suffix``, ``render`` and ``render_check``.

A new format is a new file here. Rows come from ``tables``, so that no two formats can disagree.
"""

from gradscope.reporters.report._view import View

__all__ = ["View"]
