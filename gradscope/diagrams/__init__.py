"""AutogradGraph → str or bytes: one file per format, with ``suffix`` and ``render(graph, view)``.

A new format is a new file here; its name is what ``-f`` takes. What is drawn comes from ``_groups``
and ``_drawing``, so that no two formats can disagree.
"""

from gradscope.diagrams._view import GraphView

__all__ = ["GraphView"]
