"""A graph as a picture: drawn as asked where that can be laid out in time, else with less in it."""

from __future__ import annotations

from gradscope.diagrams.graph.view import GraphView
from gradscope.diagrams.picture.boxes import Drawing
from gradscope.diagrams.picture.dot_text import written
from gradscope.diagrams.picture.drawing import coarser, draw
from gradscope.diagrams.picture.graphviz import Clock, TooLarge, TooSlow, require, run
from gradscope.diagrams.picture.strips import needs_strips, stripped
from gradscope.diagrams.picture.titles import with_clear_titles
from gradscope.errors import OptionError
from gradscope.records.graph import AutogradGraph
from gradscope.typeset.numbers import number


def laid_out(graph: AutogradGraph, view: GraphView, form: str) -> tuple[bytes, Drawing]:
    """The picture in a format of Graphviz, and what it shows.

    Each attempt may take ``view.timeout`` seconds; ``view.say`` hears what was drawn instead.

    Raises:
        OptionError: Graphviz is not there, failed, or is too slow even for the coarsest drawing.
    """
    require(form)
    slow: list[str] = []
    attempt: GraphView | None = view
    while attempt is not None:
        drawing = draw(graph, attempt)
        try:
            picture = _once(drawing, form, view.timeout)
        except TooSlow:
            slow.append(f"did not lay out in {number(view.timeout)} s")
        except TooLarge:
            slow.append(f"is too large for a {form} (not for svg, pdf or html)")
        else:
            if slow:
                asked = _words(view)
                view.say(f"{asked} {slow[0]}: drawn at depth {drawing.depth} instead")
            return picture, drawing
        attempt = coarser(drawing, attempt)
    raise OptionError(
        f"{_words(view)} {slow[0]}, and no coarser one was drawn either",
        help="a longer --layout-timeout, or a format that needs no layout: html, dot, mermaid, "
        "graphml",
    )


def _once(drawing: Drawing, form: str, seconds: float) -> bytes:
    clock = Clock.of(seconds)
    if needs_strips(drawing):
        return stripped(drawing, form, clock)
    return run(written(with_clear_titles(drawing, clock), tooltips=False), form, clock)


def _words(view: GraphView) -> str:
    if view.full:
        return "the full drawing"
    return f"the drawing at depth {view.depth}" if view.depth is not None else "the drawing"
