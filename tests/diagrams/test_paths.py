"""Names in a graph and the paths between them, against a search of every path."""

from __future__ import annotations

import itertools
import random

import pytest
from diagrams import samples

from gradscope.diagrams._flow import flow
from gradscope.diagrams._paths import absent, find, main_path, routes, spots
from gradscope.errors import OptionError
from gradscope.records import AutogradGraph


def every_path(graph: AutogradGraph, source: int, target: int) -> list[tuple[int, ...]]:
    """All paths by trying all; edges between the same two nodes apart."""
    known = flow(graph)
    found: list[tuple[int, ...]] = []
    waiting: list[tuple[int, ...]] = [(source,)]
    while waiting:
        path = waiting.pop()
        if path[-1] == target:
            found.append(path)
        else:
            waiting += [(*path, child) for child in known.onward[path[-1]]]
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
    known = flow(graph)
    ops = {node.id for node in graph.nodes if node.kind == "function"}
    for source, target in itertools.product(known.order, repeat=2):
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
    names = [flow(graph).nodes[id].op for id in route.nodes]
    assert "MmBackward0" in names
    assert names.count("AccumulateGrad") == 1


def test_against_the_flow_there_is_no_path() -> None:
    graph = samples.mlp()
    assert routes(graph, find(graph, "fc1"), find(graph, "fc2")[0]) is None


@pytest.mark.parametrize("name", samples.ALL)
def test_the_main_path_is_a_longest_one(name: str) -> None:
    graph = samples.ALL[name]()
    known = flow(graph)
    path = main_path(known, known.order[0])
    assert all(b in known.onward[a] for a, b in itertools.pairwise(path))
    assert not known.onward[path[-1]]
    leaves = (id for id in known.order if known.is_leaf(id))
    longest = max(r.longest for leaf in leaves if (r := routes(graph, [path[0]], leaf)))
    assert sum(1 for id in path if not known.is_leaf(id)) == longest


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
    assert {spot.name for spot in spots(samples.mlp(), word)} == names


def test_a_module_is_its_entry() -> None:
    graph = samples.resnet()
    known = flow(graph)
    (entry,) = find(graph, "layer1")
    assert (known.nodes[entry].module, known.nodes[entry].op) == ("layer1.1", "AddBackward0")


def test_a_container_that_never_ran_has_an_entry_too() -> None:
    graph = samples.transformer()
    assert find(graph, "h") == find(graph, "h.11")


def test_a_call_is_named_by_its_number() -> None:
    graph = samples.cells()
    assert len(find(graph, "cell")) == 5
    assert [flow(graph).nodes[id].call for id in find(graph, "cell#3")] == [3]


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
    assert absent(graph, "stem.*") == ["stem.weight", "stem.bias"]
    assert absent(graph, "fc1.weight") == []
