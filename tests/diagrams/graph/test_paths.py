"""Names in a graph and the paths between them, against a search of every path."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from diagrams import samples

from gradscope import plugins
from gradscope.diagrams import GraphView, html
from gradscope.diagrams.graph.flow import main_path, read_flow, routes
from gradscope.diagrams.graph.lookup import Lookup, between, find
from gradscope.errors import OptionError
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph, GraphCall


def every_path(graph: AutogradGraph, source: int, target: int) -> list[tuple[int, ...]]:
    """All paths by trying all; edges between the same two nodes apart."""
    flow = read_flow(graph)
    found: list[tuple[int, ...]] = []
    waiting: list[tuple[int, ...]] = [(source,)]
    while waiting:
        path = waiting.pop()
        if path[-1] == target:
            found.append(path)
        else:
            waiting += [(*path, child) for child in flow.onward[path[-1]]]
    return found


def tangled(seed: int) -> AutogradGraph:
    """A random graph with several edges between the same nodes."""
    chance = random.Random(seed)
    draft = samples.Draft()
    ids = [draft.leaf("x", (1,), "input")]
    for _ in range(9):
        ids.append(draft.op("Add", *(chance.choice(ids) for _ in range(chance.randint(1, 3)))))
    return draft.graph()


@pytest.mark.parametrize("seed", range(20))
def test_paths_equal_a_search_of_all(seed: int) -> None:
    graph = tangled(seed)
    flow = read_flow(graph)
    ops = {node.id for node in graph.nodes if node.kind == "function"}
    for source, target in itertools.product(flow.order, repeat=2):
        paths = every_path(graph, source, target)
        route = routes(graph, [source], target)
        if not paths:
            assert route is None
            continue
        assert route is not None
        lengths = [len(ops.intersection(path)) for path in paths]
        assert (route.count, route.shortest, route.longest) == (
            len(paths),
            min(lengths),
            max(lengths),
        )
        assert route.nodes in paths
        assert len(route.nodes) == min(map(len, paths))


def test_w_has_two_ways_to_x() -> None:
    graph = samples.wxy()
    route = routes(graph, find(graph, "w"), find(graph, "x")[0])
    assert route is not None
    assert (route.count, route.shortest, route.longest) == (2, 1, 2)


def test_thousands_of_forks_are_counted_exactly() -> None:
    draft = samples.Draft()
    x = draft.leaf("x", (1,), "input")
    for _ in range(20_000):
        x = draft.op("Mul", x, x)
    graph = draft.graph()
    route = routes(graph, [x], 0)
    assert route is not None
    assert route.count == 2**20_000


def test_a_checkpoint_is_passed_through() -> None:
    graph = samples.checkpoint()
    route = routes(graph, find(graph, "loss"), find(graph, "stem.weight")[0])
    assert route is not None
    names = [read_flow(graph).nodes[id].op for id in route.nodes]
    assert "MmBackward0" in names
    assert names.count("AccumulateGrad") == 1


def test_against_the_flow_there_is_no_path() -> None:
    graph = samples.mlp()
    assert routes(graph, find(graph, "fc1"), find(graph, "fc2")[0]) is None


@pytest.mark.parametrize("name", samples.ALL)
def test_the_main_path_is_a_longest_one(name: str) -> None:
    graph = samples.ALL[name]()
    flow = read_flow(graph)
    path = main_path(flow, flow.order[0])
    assert all(b in flow.onward[a] for a, b in itertools.pairwise(path))
    assert not flow.onward[path[-1]]
    leaves = (id for id in flow.order if flow.is_leaf(id))
    longest = max(r.longest for leaf in leaves if (r := routes(graph, [path[0]], leaf)))
    assert sum(1 for id in path if not flow.is_leaf(id)) == longest


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("loss", {"loss"}),
        ("fc1.weight", {"fc1.weight"}),
        ("fc1", {"fc1"}),
        ("*.weight", {"fc1.weight", "fc2.weight"}),
        ("fc1.**", {"fc1", "fc1.weight", "fc1.bias"}),
        ("type:Linear", {"fc1", "fc2"}),
        ("re:fc[12]", {"fc1", "fc2"}),
    ],
)
def test_names_and_patterns(word: str, names: set[str]) -> None:
    assert {spot.name for spot in Lookup(samples.mlp()).nodes(word)} == names


def test_a_module_is_its_entry() -> None:
    graph = samples.resnet()
    flow = read_flow(graph)
    (entry,) = find(graph, "layer1")
    assert (flow.nodes[entry].module, flow.nodes[entry].op) == ("layer1.1", "AddBackward0")


def test_a_container_that_never_ran_has_an_entry_too() -> None:
    graph = samples.transformer()
    assert find(graph, "h") == find(graph, "h.11")


def test_a_call_is_named_by_its_number() -> None:
    graph = samples.cells()
    assert len(find(graph, "cell")) == 5
    assert [read_flow(graph).nodes[id].call for id in find(graph, "cell#3")] == [3]


def test_an_unknown_name_gets_the_closest() -> None:
    with pytest.raises(OptionError) as caught:
        find(samples.mlp(), "fc1.wieght")
    assert "did you mean `fc1.weight`" in (caught.value.problems[0].help or "")


def test_a_pattern_that_does_not_parse_is_an_error_of_the_option() -> None:
    with pytest.raises(OptionError, match="regular expression"):
        find(samples.mlp(), "re:(")


def test_parameters_that_are_not_in_the_graph_are_told_apart() -> None:
    graph = samples.cut()
    assert find(graph, "stem.weight") == []
    assert Lookup(graph).absent("stem.*") == ["stem.weight", "stem.bias"]
    assert Lookup(graph).absent("fc1.weight") == []


def test_a_name_is_offered_once() -> None:
    with pytest.raises(OptionError) as caught:
        find(samples.mlp(), "fc1.wieght")
    assert (caught.value.problems[0].help or "").count("`fc1.weight`") == 1


def test_the_empty_name_is_the_model() -> None:
    graph = samples.resnet()
    (spot,) = Lookup(graph).nodes("")
    node = next(node for node in graph.nodes if node.id == spot.id)
    assert (spot.name, node.module) == ("(model)", "fc")


def named_loss() -> AutogradGraph:
    draft = samples.Draft()
    draft.enter("", "Net")
    x = samples._linear(draft, "loss", None)
    draft.leave()
    draft.op("Sum", x)
    return draft.graph()


def test_the_start_wins_over_a_module_of_its_name() -> None:
    graph = named_loss()
    assert find(graph, "loss") == [graph.root]
    (inner,) = find(graph, "re:loss")
    assert inner != graph.root
    assert find(graph, "loss#0") == [inner]
    with pytest.raises(OptionError, match=re.escape("`loss#1`")) as caught:
        find(graph, "loss#1")
    assert str(caught.value.problems[0].help).count("`loss`") <= 1


def test_a_layer_without_a_place_stands_for_its_parameters() -> None:
    names = Lookup(samples.cut())
    for word in ("stem", "st*", "re:ste."):
        assert names.nodes(word) == []
        assert names.absent(word) == ["stem.weight", "stem.bias"]
    assert names.absent("fc1") == []


def test_a_layer_that_left_no_operation_is_told_where_it_ran() -> None:
    graph = samples.mlp()
    calls = (*graph.calls, GraphCall("drop", 0, "Dropout", 0))
    names = Lookup(replace(graph, calls=calls))
    assert names.nodes("drop") == []
    assert names.absent("drop") == names.absent("type:Dropout") == ["drop"]
    assert names.absent("**") == []
    with pytest.raises(OptionError):
        Lookup(graph).nodes("drop")


def parted(graph: AutogradGraph, **words: tuple[str, ...]) -> AutogradGraph:
    return between(graph, GraphView(**words), answers=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("sample", samples.ALL.values())
def test_a_part_is_a_graph_like_any_other(sample: Callable[[], AutogradGraph]) -> None:
    graph = sample()
    for node in graph.nodes:
        if node.kind != "function" and node.name:
            part = parted(graph, targets=(node.name,))
            assert record_json.loads(record_json.dumps(part), AutogradGraph) == part
            assert part.part == f"paths from {graph.start} to {node.name}"


def test_a_part_speaks_of_itself_alone() -> None:
    graph = samples.cut()
    part = parted(graph, targets=("fc2.weight",))
    assert (part.names, part.frozen, part.answers) == (("fc2.weight",), (), ())
    assert {call.name for call in part.calls} == {"", "fc2"}
    assert part.saved_bytes == 32 + 32
    asked = parted(graph, targets=("fc2.weight", "stem", "scale"))
    assert asked.nodes == part.nodes
    assert asked.answers == graph.answers
    assert (asked.names, asked.frozen) == (
        ("stem.weight", "stem.bias", "scale", "fc2.weight"),
        ("scale",),
    )


def test_a_part_with_a_source_starts_there() -> None:
    part = parted(samples.resnet(), sources=("layer1.0",))
    assert (part.start, part.loss) == ("layer1.0", None)
    assert part.part == "paths from layer1.0 to any leaf"
    again = parted(part, targets=("stem.weight",))
    assert again.part == (
        "paths from layer1.0 to stem.weight, of the paths from layer1.0 to any leaf"
    )


def test_bytes_that_a_part_does_not_know_are_not_zero() -> None:
    graph = samples.mlp()
    nodes = tuple(replace(n, saved_bytes=None) if n.module == "relu" else n for n in graph.nodes)
    unknown = replace(graph, nodes=nodes)
    assert parted(unknown, targets=("fc1.weight",)).saved_bytes is None
    assert parted(unknown, targets=("fc2.weight",)).saved_bytes == 64


@pytest.mark.parametrize("format", ["terminal", "dot", "mermaid", "graphml", "html"])
def test_every_format_says_that_it_shows_a_part(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "_picture", lambda *_: "no picture")
    part = parted(samples.mlp(), targets=("fc1.weight",))
    text = plugins.load("gradscope.diagrams", format).render(part, GraphView())
    plainly = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), text)
    assert "paths from loss to fc1.weight" in plainly


def test_a_cut_place_is_refused_with_its_cause() -> None:
    for word, said in (
        ("stem", "`stem.weight` is not in the graph: the output of stem is detached before fc1"),
        ("scale", "frozen"),
    ):
        with pytest.raises(OptionError, match=re.escape(said)):
            between(samples.cut(), GraphView(targets=(word,)))
