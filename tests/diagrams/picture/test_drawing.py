"""A picture loses no node, repeats none, has few boxes and readable colours."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from diagrams.samples import (
    ALL,
    Draft,
    _simple,
    cells,
    chain,
    checkpoint,
    cut,
    mlp,
    nans,
    resnet,
    transformer,
    wxy,
    zeros,
)

from gradscope.diagrams import GraphView
from gradscope.diagrams.picture.boxes import (
    INK,
    MISSING,
    NONFINITE,
    ZERO,
    Drawing,
    contrast,
    height,
    ramp,
    scale,
)
from gradscope.diagrams.picture.drawing import coarser, draw
from gradscope.errors import OptionError
from gradscope.records.graph import AutogradGraph

FULL = GraphView(full=True)


def ways(drawing: Drawing) -> Counter[tuple[str, str]]:
    """The arrows by the first lines of their boxes."""
    boxes = drawing.boxes
    return Counter(
        {(boxes[a.tail].lines[0], boxes[a.head].lines[0]): a.count for a in drawing.arrows}
    )


def arrows_up(drawing: Drawing, box: int) -> bool:
    """Does a way down from the box come back to it?"""
    todo, met = [a.head for a in drawing.arrows if a.tail == box], set()
    while todo:
        at = todo.pop()
        if at not in met:
            met.add(at)
            todo += [a.head for a in drawing.arrows if a.tail == at]
    return box in met


def edges(graph: AutogradGraph) -> Counter[tuple[int, int]]:
    """Every edge of the record."""
    return Counter(
        (node.id, edge[0]) for node in graph.nodes for edge in (*node.to, *node.inner) if edge
    )


@pytest.mark.parametrize("name", ALL)
def test_a_full_drawing_has_every_node_and_every_edge(name: str) -> None:
    graph = ALL[name]()
    drawing = draw(graph, FULL)
    assert [box.node for box in drawing.boxes] == [node.id for node in graph.nodes]
    found = Counter(
        (drawing.boxes[a.tail].node, drawing.boxes[a.head].node) for a in drawing.arrows
    )
    assert found == edges(graph)


def test_the_check_of_edges_tells_a_multiset_from_a_set() -> None:
    graph = wxy()
    twice = replace(graph.nodes[0], to=(*graph.nodes[0].to, graph.nodes[0].to[0]))
    assert edges(replace(graph, nodes=(twice, *graph.nodes[1:]))) != edges(graph)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("depth", [None, 0, 1, 5])
def test_every_arrow_joins_two_boxes_and_every_box_is_told_apart(
    name: str, depth: int | None
) -> None:
    drawing = draw(ALL[name](), GraphView(depth=depth))
    assert len({box.id for box in drawing.boxes}) == len(drawing.boxes)
    for arrow in drawing.arrows:
        assert arrow.tail != arrow.head
        assert max(arrow.tail, arrow.head) < len(drawing.boxes)
    for box in drawing.boxes:
        assert box.cluster is None or box.cluster < len(drawing.clusters)


def test_both_ways_to_x_are_drawn() -> None:
    assert ways(draw(wxy(), GraphView())) == {
        ("AddBackward0", "x"): 1,
        ("AddBackward0", "MulBackward0"): 1,
        ("MulBackward0", "x"): 1,
    }


def test_a_leaf_stands_in_the_operation_that_uses_it() -> None:
    boxes = {box.lines[0]: box for box in draw(resnet(), GraphView()).boxes}
    assert "weight [8, 8, 3, 3]" in boxes["ConvolutionBackward0"].lines or any(
        "weight [8, 3, 3, 3]" in box.lines for box in boxes.values()
    )
    assert not any(box.kind == "parameter" for box in boxes.values())


def test_a_closed_group_says_what_is_in_it() -> None:
    drawing = draw(resnet(), GraphView(depth=1))
    said = "\n".join(line for box in drawing.boxes for line in box.lines)
    assert "layer1 ×2 · BasicBlock\n6 ops · 1,152 parameters" in said


def test_repeats_are_drawn_once_and_their_inner_arrows_left_out() -> None:
    drawing = draw(transformer(), GraphView(expand=("h.**",)))
    labels = [cluster.label for cluster in drawing.clusters]
    assert any("×12" in label for label in labels)
    names = [box.lines[0] for box in drawing.boxes]
    assert names.count("NativeLayerNormBackward0") == 1
    # The way from one repeat to the next is no arrow: nothing leads back up, nothing is counted.
    assert not any(
        box.id.startswith("n") and arrows_up(drawing, i) for i, box in enumerate(drawing.boxes)
    )
    assert {arrow.count for arrow in drawing.arrows} == {1}


def test_a_parameter_that_many_calls_share_is_one_box_or_a_line() -> None:
    few = draw(cells(3), GraphView(full=True))
    assert [box.lines[0] for box in few.boxes].count("cell.weight") == 1


def test_a_long_chain_stays_within_a_page() -> None:
    drawing = draw(chain(5000), GraphView())
    assert len(drawing.boxes) <= 30
    assert any("5,000 ops" in line for box in drawing.boxes for line in box.lines)
    assert height(drawing) < 2000


def test_zero_missing_and_nonfinite_have_words_and_fills_of_their_own() -> None:
    zero = draw(zeros(), GraphView(depth=5))
    assert any(box.fill == ZERO and "gradient 0" in box.lines for box in zero.boxes)
    assert any("zero from here on" in box.lines and box.mark == "zero" for box in zero.boxes)
    bad = draw(nans(), GraphView(depth=5))
    assert any(box.fill == NONFINITE and "8 NaN or Inf" in box.lines[-2] for box in bad.boxes)
    graph = cut()
    none = replace(graph, nodes=tuple(replace(n, grad_norm=None) for n in graph.nodes))
    assert {box.fill for box in draw(none, GraphView()).boxes} == {MISSING}


def test_the_caption_says_what_is_not_in_the_graph() -> None:
    notes = draw(cut(), GraphView()).notes
    assert any("not in the graph: stem.weight and 1 more (detached" in note for note in notes)


def test_the_graph_of_a_checkpoint_is_joined_in() -> None:
    names = [box.lines[0] for box in draw(checkpoint(), GraphView(expand=("**",))).boxes]
    assert "MmBackward0" in names


def test_black_text_can_be_read_on_every_fill() -> None:
    fills = [ramp(i / 50) for i in range(51)] + [ZERO, MISSING, NONFINITE]
    assert min(contrast(INK, fill) for fill in fills) >= 4.5
    assert contrast(INK, "#440154") < 4.5  # viridis as it is would not do


def test_a_scale_is_logarithmic_and_a_decade_wide_at_least() -> None:
    wide = scale("gradient", [1e-6, 1e-3, 1.0, 0.0, None, float("inf")])
    assert wide.fill(1e-3) == ramp(0.5)
    close = scale("gradient", [1.0, 1.1])
    assert close.fill(1.0) != ramp(0.0)
    assert scale("saved", [0, None]).legend([]) == ()


def test_only_paths_between_two_names() -> None:
    drawing = draw(resnet(), GraphView(full=True, targets=("stem.weight",)))
    names = {box.lines[0] for box in drawing.boxes}
    assert "stem.weight" in names and "fc.weight" not in names
    assert drawing.notes[0].startswith("only paths from loss to stem.weight")
    with pytest.raises(OptionError, match=r"no path leads from stem to fc\.weight"):
        draw(resnet(), GraphView(sources=("stem",), targets=("fc.weight",)))


def test_coarser_views_come_to_an_end() -> None:
    graph, view, steps = resnet(), GraphView(full=True), 0
    attempt: GraphView | None = view
    while attempt is not None:
        attempt = coarser(draw(graph, attempt), attempt)
        steps += 1
    assert 2 <= steps <= 5


def test_a_graph_without_nodes_is_drawn_without_boxes() -> None:
    empty = replace(wxy(), nodes=())
    assert draw(empty, GraphView()).boxes == ()
    assert draw(empty, FULL).boxes == ()


def flat(n: int) -> AutogradGraph:
    """n layers that differ in turn, so that none fold; the last ten behind a dead one."""
    draft = Draft()
    draft.enter("", "Net")
    x = None
    for i in range(n):
        norm = 0.0 if i < 10 else 1.0
        name, op = ("ReLU", "Relu") if i % 3 else ("Tanh", "Tanh")
        x = _simple(draft, str(i), name, op, x, norm=norm)
        if i % 2:
            x = draft.op("Mul", x, draft.leaf(None, (4,), "input"), norm=norm)
    draft.leave()
    draft.op("Sum", x)
    return draft.graph()


@pytest.mark.parametrize("depth", [None, 1])
def test_a_long_row_of_modules_is_drawn_in_rows(depth: int | None) -> None:
    drawing = draw(flat(5000), GraphView(depth=depth))
    assert len(drawing.boxes) <= 60
    assert any(" … " in box.lines[0] for box in drawing.boxes)
    assert [box.mark for box in drawing.boxes if box.mark] == ["zero"]


def test_many_inputs_are_not_as_many_boxes() -> None:
    draft = Draft()
    x = draft.leaf("x", (4,), "input")
    for i in range(30):
        x = draft.op("Mul", x, draft.leaf(f"c{i}", (4,), "input"))
    few = draw(draft.graph(), GraphView())
    assert sum(box.kind == "input" for box in few.boxes) == 31
    for i in range(1000):
        x = draft.op("Mul", x, draft.leaf(f"d{i}", (4,), "input"))
    assert len(draw(draft.graph(), GraphView()).boxes) <= 5


def test_colours_span_every_positive_number() -> None:
    wide = scale("gradient", [5e-324, 1.0, 1.7e308])
    assert len({wide.fill(v) for v in (5e-324, 1.0, 1.7e308)}) == 3
    assert len(wide.ticks()) == 3
    assert len(set(wide.bar())) > 30
    assert scale("gradient", [5e-324]).fill(5e-324)
    graph = mlp()
    norms = {node.id: 1.7e308 if node.id % 2 else 5e-324 for node in graph.nodes}
    loud = replace(graph, nodes=tuple(replace(n, grad_norm=norms[n.id]) for n in graph.nodes))
    for view in (GraphView(), GraphView(depth=0), GraphView(full=True)):
        assert draw(loud, view).boxes


def test_the_legend_names_only_values_that_there_are() -> None:
    assert scale("gradient", [2.0, 4.0, 8.0]).ticks() == ("2.000", "4.000", "8.000")
    assert scale("gradient", [3.0, 3.0]).ticks() == ("3.000",)
    assert scale("gradient", [None, 0.0]).ticks() == scale("gradient", [None, 0.0]).bar() == ()


def test_signs_are_explained_where_they_stand() -> None:
    folded = draw(resnet(), GraphView(depth=1)).notes
    assert "×n after a name: n equal blocks, drawn as one" in folded
    assert not any("×n" in note for note in draw(mlp(), GraphView()).notes)
    hidden = draw(mlp(), GraphView(hidden=2)).notes
    assert "2 views and transposes hidden" in hidden


def test_arrows_to_the_right() -> None:
    from gradscope.diagrams import mermaid
    from gradscope.diagrams.picture.graphviz import written

    view = GraphView(direction="LR")
    assert 'rankdir="LR"' in written(draw(mlp(), view))
    assert "flowchart LR" in mermaid.render(mlp(), view)
    assert "flowchart TB" in mermaid.render(mlp(), GraphView())
