"""No arrow crosses the title of a frame: seen in the layout itself."""

from __future__ import annotations

import pytest

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.picture.boxes import Arrow, Box, Cluster, Drawing
from gradscope.diagrams.picture.drawing import draw
from gradscope.diagrams.picture.graphviz import Clock, crossed_titles, with_clear_titles
from tests.diagrams.samples import mlp, resnet, transformer

pytest.importorskip("pygraphviz")

SAMPLES = {
    "mlp": (mlp, GraphView()),
    "resnet": (resnet, GraphView()),
    "resnet, stages": (resnet, GraphView(depth=1)),
    "transformer": (transformer, GraphView()),
    "transformer, to the right": (transformer, GraphView(direction="LR")),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "view"), SAMPLES.values(), ids=SAMPLES)
def test_titles_of_samples(make, view: GraphView) -> None:
    drawing = with_clear_titles(draw(make(), view), Clock.of(60))
    assert crossed_titles(drawing, Clock.of(60)) == []


def chain(title: str) -> Drawing:
    """A frame that is as narrow as its box, with an arrow from above to its middle."""
    boxes = tuple(
        Box(name, "operation", (name,), name, "#ffffff", cluster)
        for name, cluster in (("a", None), ("b", 0), ("c", 0))
    )
    return Drawing("t", (), boxes, (Arrow(0, 1), Arrow(1, 2)), (Cluster(title, title),))


def test_a_title_across_its_whole_frame_is_crossed_and_then_is_not() -> None:
    drawing = chain("a title as wide as the frame")
    assert [c.label for c in crossed_titles(drawing, Clock.of(60))] == [drawing.clusters[0].label]
    cleared = with_clear_titles(drawing, Clock.of(60))
    assert cleared.clusters[0].wide
    assert crossed_titles(cleared, Clock.of(60)) == []


def test_a_drawing_without_frames_is_laid_out_once_only() -> None:
    drawing = Drawing("t", (), chain("x").boxes[:1], (), ())
    assert with_clear_titles(drawing, Clock.of(0)) is drawing
