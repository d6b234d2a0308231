"""Groups by module: the tree, folds, figures, frontiers, and what is shown open."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from diagrams import samples

from gradscope.diagrams import terminal
from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.flow import read_flow
from gradscope.diagrams.graph.groups import (
    Group,
    below,
    grouped,
    opened,
    operations_below,
    shown,
    sizes,
)
from gradscope.diagrams.picture.drawing import draw
from gradscope.errors import LayerError
from gradscope.records.graph import AutogradGraph, GraphNode

FULL = GraphView(full=True)


def named(root: Group, key: str) -> Group:
    return next(group for group in below(root) if group.key == key)


def outline(group: Group, graph: AutogradGraph) -> list[object]:
    """Labels and operations, nested."""
    ops = {node.id: node.op.removesuffix("Backward0") for node in graph.nodes}
    return [
        ops[part] if isinstance(part, int) else {part.label: outline(part, graph)}
        for part in group.parts
    ]


def test_modules_nest_as_their_calls_and_the_loss_stands_beside_them() -> None:
    graph = samples.mlp()
    root = grouped(graph)
    assert outline(root, graph) == [
        "NllLoss",
        "LogSoftmax",
        {"Net": [{"fc2": ["Addmm", "T"]}, {"relu": ["Relu"]}, {"fc1": ["Addmm", "T"]}]},
    ]
    model = named(root, "Net")
    assert (model.name, model.type) == ("", "Net")
    assert (root.name, root.ops, root.leaves, root.parameters) == (None, 7, 4, 40)


def test_operations_outside_every_module_need_no_model() -> None:
    graph = samples.wxy()
    assert outline(grouped(graph), graph) == ["Add", "Mul"]


def test_a_container_that_never_ran_is_a_group_without_a_type() -> None:
    root = grouped(samples.transformer(), FULL)
    h = named(root, "h")
    assert (h.label, h.name, h.type) == ("h", "h", None)
    assert [part.label for part in h.groups()] == [str(i) for i in reversed(range(12))]


def test_a_container_of_equal_blocks_alone_folds_into_one() -> None:
    h = named(grouped(samples.transformer()), "h")
    assert (h.label, h.times, h.type, len(h.members)) == ("h", 12, "Block", 12)
    assert [member.label for member in h.members[:2]] == ["11", "10"]
    assert h.ops == 12 * 7
    assert h.parts is h.members[0].parts
    assert (h.grad_norm, h.grad_low, h.grad_high) == (0.12, 0.01, 0.12)


def test_calls_of_one_module_are_numbered_and_fold() -> None:
    model = named(grouped(samples.cells()), "Rnn")
    assert [(g.label, g.times) for g in model.groups()] == [("cell #1 … #4", 4), ("cell #0", 1)]
    assert "cell#3" in {group.key for group in below(grouped(samples.cells(), FULL))}


@pytest.mark.parametrize(
    ("module", "change"),
    [
        ("layer1.0.relu", lambda node: replace(node, op="GeluBackward0")),
        ("layer1.0", lambda node: replace(node, to=(node.to[0],))),
        ("layer1.0", lambda node: replace(node, to=(node.to[0], node.to[0]))),
    ],
    ids=["another operation", "an edge less", "another wiring"],
)
def test_blocks_that_differ_do_not_fold(
    module: str, change: Callable[[GraphNode], GraphNode]
) -> None:
    graph = samples.resnet()
    odd = change(next(node for node in graph.nodes if node.module == module))
    nodes = tuple(odd if node.id == odd.id else node for node in graph.nodes)
    layer = named(grouped(replace(graph, nodes=nodes)), "layer1")
    assert layer.times == 1


def test_blocks_whose_parameters_differ_in_shape_do_not_fold() -> None:
    graph = samples.resnet()
    nodes = tuple(
        replace(n, shape=(8, 8, 5, 5)) if n.name == "layer1.0.conv.weight" else n
        for n in graph.nodes
    )
    assert named(grouped(graph), "layer1").times == 2
    assert named(grouped(replace(graph, nodes=nodes)), "layer1").times == 1


def test_equals_between_which_no_way_leads_fold_side_by_side() -> None:
    graph = samples.experts()
    flow = read_flow(graph)
    root = grouped(graph, flow=flow)
    (fold,) = [group for group in below(root) if group.times > 1]
    assert (fold.label, fold.times, fold.parallel) == ("experts", 4, True)
    assert fold.repeats == " ×4, side by side"
    assert [sizes(flow, part) for part in fold.operations()] == ["[5…9, 4]", "[5…9, 4]"]
    assert [flow.nodes[part].shape for part in fold.operations()] == [(7, 4), (7, 4)]


def test_side_by_side_is_said_wherever_a_fold_is_named() -> None:
    graph = samples.experts()
    text = terminal.render(graph, GraphView())
    assert "experts ×4, side by side" in text and "×n, side by side: n equal blocks" in text
    assert "in a row" not in text and "[5…9, 4]" in text
    drawing = draw(graph, GraphView(depth=1))
    (box,) = [box for box in drawing.boxes if box.kind == "repeats"]
    assert box.lines[0] == "experts ×4, side by side · Expert"
    assert "no path leads from one to another" in box.title
    whole = draw(graph, GraphView())
    assert any("output [5…9, 4]" in line for box in whole.boxes for line in box.lines)


def test_equal_blocks_with_something_between_them_do_not_fold() -> None:
    draft = samples.Draft()
    draft.enter("", "Net")
    x = draft.leaf("x", (2, 4), "input")
    for i in range(3):
        x = draft.op("Relu", samples._linear(draft, f"fc{i}", x))
    draft.leave()
    assert all(group.times == 1 for group in below(grouped(draft.graph())))


def test_a_chain_whose_shapes_differ_does_not_fold() -> None:
    graph = samples.cells(3)
    ids = [node.id for node in graph.nodes if node.call == 2]
    nodes = tuple(replace(n, shape=(9, 4)) if n.id in ids else n for n in graph.nodes)
    assert any(group.times > 1 for group in below(grouped(graph)))
    assert all(group.times == 1 for group in below(grouped(replace(graph, nodes=nodes))))


def test_a_zero_is_a_frontier_only_where_a_whole_gradient_is_zero() -> None:
    graph = samples.recurrent()
    assert read_flow(graph).marks == {}
    nodes = tuple(replace(n, grad_norm=0.0) if n.name == "cell.weight" else n for n in graph.nodes)
    assert set(read_flow(replace(graph, nodes=nodes)).marks.values()) == {"zero"}


def test_full_folds_nothing() -> None:
    assert all(group.times == 1 for group in below(grouped(samples.transformer(), FULL)))


def test_a_block_named_by_expand_stays_apart() -> None:
    view = GraphView(expand=("h.3",))
    h = named(grouped(samples.transformer(), view), "h")
    assert [(g.label, g.times) for g in h.groups()] == [("4 … 11", 8), ("3", 1), ("0 … 2", 3)]


def test_blocks_that_expand_names_all_stay_folded() -> None:
    assert named(grouped(samples.transformer(), GraphView(expand=("h.*",))), "h").times == 12


def test_expand_that_names_nothing_is_an_error() -> None:
    with pytest.raises(LayerError, match=r"h\.99"):
        grouped(samples.transformer(), GraphView(expand=("h.99",)))


@pytest.mark.parametrize("name", samples.ALL)
def test_figures_add_up(name: str) -> None:
    graph = samples.ALL[name]()
    flow = read_flow(graph)
    for view in (None, FULL):
        for group in below(grouped(graph, view)):
            inside = list(operations_below(group))
            assert len(set(inside)) == len(inside) == group.ops
            kept = {t.storage: t.bytes for i in inside for t in flow.nodes[i].saved}
            assert group.saved_bytes == sum(kept.values())


def test_a_storage_that_two_blocks_share_counts_once() -> None:
    graph = samples.mlp()
    shared = tuple(
        replace(n, saved=(replace(n.saved[0], storage=7),)) if n.saved else n for n in graph.nodes
    )
    assert grouped(replace(graph, nodes=shared)).saved_bytes == 32


def test_bytes_that_could_not_be_read_are_not_zero() -> None:
    graph = samples.mlp()
    unread = tuple(replace(n, saved_bytes=None, saved=()) for n in graph.nodes)
    assert grouped(replace(graph, nodes=unread)).saved_bytes is None


def test_the_gradient_of_a_group_is_what_enters_from_outside() -> None:
    root = grouped(samples.resnet(), FULL)
    assert named(root, "layer1").grad_norm == 0.1
    assert named(root, "fc").grad_norm == 0.5
    assert root.grad_norm == 1.0


def test_two_entries_make_one_norm() -> None:
    draft = samples.Draft()
    draft.enter("", "Net")
    a = draft.op("Sin", norm=3.0)
    b = draft.op("Cos", norm=4.0)
    draft.leave()
    draft.op("Add", a, b, norm=1.0)
    assert named(grouped(draft.graph()), "Net").grad_norm == 5.0


@pytest.mark.parametrize(("sample", "mark"), [(samples.zeros, "zero"), (samples.nans, "nonfinite")])
def test_the_frontier_is_marked_once(sample: Callable[[], AutogradGraph], mark: str) -> None:
    root = grouped(sample())
    marked = {group.key: group.mark for group in below(root) if group.mark}
    assert marked == {"fc1": mark}
    assert named(root, "Net").within == (mark,)


def test_a_missing_gradient_is_a_frontier_of_its_own() -> None:
    graph = samples.mlp()
    nodes = samples._behind(graph, "relu", grad_norm=None)
    assert named(grouped(replace(graph, nodes=nodes)), "fc1").mark == "missing"


def test_a_graph_without_a_backward_has_no_frontier() -> None:
    graph = samples.mlp()
    nodes = tuple(replace(n, grad_norm=None) for n in graph.nodes)
    assert read_flow(replace(graph, nodes=nodes)).marks == {}


def test_a_small_graph_is_open() -> None:
    graph = samples.mlp()
    root = grouped(graph)
    is_open = opened(root, graph, GraphView(), limit=40)
    assert all(is_open(group) for group in below(root))


@pytest.mark.parametrize(("depth", "keys"), [(0, set()), (1, {"Gpt"}), (2, {"Gpt", "h"})])
def test_depth_counts_modules(depth: int, keys: set[str]) -> None:
    graph = samples.transformer()
    root = grouped(graph)
    is_open = opened(root, graph, GraphView(depth=depth), limit=40)
    assert {group.key for group in below(root) if group is not root and is_open(group)} == keys


def test_expand_opens_down_to_operations_and_all_around() -> None:
    graph = samples.transformer()
    view = GraphView(depth=0, expand=("h.3",))
    root = grouped(graph, view)
    is_open = opened(root, graph, view, limit=40)
    opens = {group.key for group in below(root) if is_open(group)}
    assert opens == {"", "Gpt", "h", "h/3", "h/3/mlp", "h/3/attn", "h/3/norm"}


def test_layers_that_are_not_named_stay_closed() -> None:
    graph = samples.resnet()
    view = GraphView(layers=("layer1.**",), full=True)
    root = grouped(graph, view)
    is_open = opened(root, graph, view, limit=40)
    assert is_open(named(root, "layer1/0/conv"))
    assert not is_open(named(root, "fc"))


def test_the_deepest_level_that_fits_is_shown() -> None:
    graph = samples.transformer()
    root = grouped(graph, FULL)
    for limit, inside in ((5, False), (20, True)):
        is_open = opened(root, graph, GraphView(), limit=limit)
        assert is_open(named(root, "Gpt"))
        assert is_open(named(root, "h")) is inside


@pytest.mark.parametrize("name", samples.ALL)
@pytest.mark.parametrize("depth", [None, 0, 1, 2, 3])
def test_every_operation_is_stood_for(name: str, depth: int | None) -> None:
    graph = samples.ALL[name]()
    root = grouped(graph)
    places = shown(root, opened(root, graph, GraphView(depth=depth), limit=40))
    assert set(places) == set(operations_below(root))


def test_the_operations_of_equal_blocks_are_stood_for_by_the_first() -> None:
    graph = samples.resnet()
    root = grouped(graph)
    places = shown(root, lambda group: True)
    nodes = {node.id: node for node in graph.nodes}
    for id, place in places.items():
        assert isinstance(place, int)
        assert nodes[id].op == nodes[place].op
    assert {nodes[p].module for p in places.values() if isinstance(p, int)}.isdisjoint(
        {"layer1.0", "layer1.0.conv"}
    )


def test_many_operations_of_a_groups_own_share_a_group() -> None:
    draft = samples.Draft()
    draft.enter("", "Net")
    x = draft.leaf("x", (2,), "input")
    for i in range(30):
        x = draft.op("Mul" if i % 2 else "Add", x)
    x = samples._simple(draft, "fc", "Linear", "Addmm", x)
    draft.leave()
    for _ in range(30):
        x = draft.op("Sin", x)
    graph = draft.graph()
    root = grouped(graph)
    assert [group.label for group in below(root)][1:] == [
        "(operations of the loss)",
        "Net",
        "fc",
        "(its own operations)",
    ]
    assert grouped(graph, FULL).ops == 61
    assert {g.label for g in below(grouped(graph, FULL))} == {"(loss)", "Net", "fc"}


def test_a_checkpoints_inner_graph_is_joined_in() -> None:
    graph = samples.checkpoint()
    flow = read_flow(graph)
    ops = [flow.nodes[id].op for id in flow.order if not flow.is_leaf(id)]
    assert ops.index("CheckpointFunctionBackward0") < ops.index("MmBackward0")
    assert "body.weight" in {flow.nodes[id].name for id in flow.home}
    assert None not in {flow.nodes[id].name for id in flow.home}


@pytest.mark.parametrize("name", samples.ALL)
def test_the_order_is_topological_whatever_the_file_says(name: str) -> None:
    graph = samples.ALL[name]()
    mixed = list(graph.nodes)
    random.Random(0).shuffle(mixed)
    flow = read_flow(replace(graph, nodes=tuple(mixed)))
    place = {id: i for i, id in enumerate(flow.order)}
    assert all(place[id] < place[child] for id in flow.order for child in flow.onward[id])


def test_a_damaged_file_in_a_circle_ends() -> None:
    graph = samples.mlp()
    last = graph.nodes[-1]
    for op, ops in (("MulBackward0", 8), ("AccumulateGrad", 7)):
        circle = replace(last, op=op, kind="function", to=((graph.root or 0, 0), (last.id, 0)))
        damaged = replace(graph, nodes=(*graph.nodes[:-1], circle))
        assert grouped(damaged).ops == ops
        assert "Addmm" in terminal.render(damaged, GraphView(targets=("fc1",)))


@pytest.mark.slow
def test_a_long_chain_does_not_recurse() -> None:
    graph = samples.chain(50_000)
    root = grouped(graph)
    places = shown(root, opened(root, graph, GraphView(), limit=40))
    assert len(places) == root.ops == 50_000
    assert math.isfinite(root.grad_norm or math.nan)


def test_without_a_graph_there_is_an_empty_group() -> None:
    root = grouped(AutogradGraph(samples.RUN))
    assert (root.parts, root.ops, root.grad_norm) == ([], 0, None)


def test_many_operations_and_no_module_are_one_part() -> None:
    graph = samples.chain(100)
    root = grouped(graph)
    assert [(group.label, group.ops) for group in root.groups()] == [("(operations)", 100)]
    assert not list(grouped(graph, FULL).groups())


def test_expanding_a_module_closes_no_other() -> None:
    graph = samples.resnet()

    def open_keys(view: GraphView) -> set[str]:
        root = grouped(graph, view)
        is_open = opened(root, graph, view, limit=11)
        return {group.key for group in below(root) if is_open(group)}

    usual, expanded = open_keys(GraphView()), open_keys(GraphView(expand=("layer1.1",)))
    assert "layer1" in usual
    assert "layer1/1" in expanded - usual
    assert usual <= expanded
