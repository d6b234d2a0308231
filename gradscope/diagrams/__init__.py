"""AutogradGraph → str or bytes: one file per format, with ``suffix`` and ``render(graph, view)``.

A new format is a new file here; its name is what ``-f`` takes. Everything that is drawn comes from
``graph``, every picture from ``picture``, so that no two formats can disagree.
"""

from gradscope.diagrams.graph.view import GraphView

__all__ = ["GraphView"]
