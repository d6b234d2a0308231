"""Report → str: one file per format, which holds ``suffix`` and ``render(report, view)``.

A new format is a new file here; its name is what ``-f`` takes. Rows come from ``_tables``, so that
no two formats can disagree.
"""

from gradscope.reporters._view import View

__all__ = ["View"]
