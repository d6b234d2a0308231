"""Chains: straight runs stay straight, shared nodes stand once, and depth costs no recursion."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from gradscope.records.graph import Chain, GraphNode
from gradscope.reporters.report import ChainLine, lines


def build(edges: Sequence[Sequence[int | None]]) -> Chain:
    """A chain from each node's children; nodes without any are parameters called by their id."""
    nodes = [
        GraphNode(
            *(id, f"Op{id}" if to else "AccumulateGrad", "function" if to else "parameter"),
            name=None if to else f"p{id}",
            shape=None if to else (2, 3),
            to=tuple(None if child is None else (child, 0) for child in to),
        )
        for id, to in enumerate(edges)
    ]
    return Chain("layer", 0, "", tuple(nodes))


def operations(found: Sequence[ChainLine]) -> list[str]:
    """Each operation that has a line or stands beside a leaf; references do not count."""
    own = [re.sub(r"^#\d+ ", "", line.operation) for line in found]
    inline = [op for line in found for leaf in line.leaves for op in leaf.split(" → ")[1:]]
    return [op for op in own + inline if op.startswith("Op")]


def test_a_straight_run_stays_at_one_depth() -> None:
    size = 100
    found = lines(build([*([i + 1] for i in range(size)), []]))
    assert {line.strokes for line in found} == {""}
    assert sorted(operations(found)) == sorted(f"Op{i}" for i in range(size))


def test_ten_thousand_nodes_need_no_recursion() -> None:
    size = 10_000
    # Each block is x + f(x): a branch at every step.
    edges = [[2 * (i // 2) + 2, *([i + 1] if i % 2 == 0 else [])] for i in range(size)]
    found = lines(build([*edges, []]))
    assert len(set(operations(found))) == len(operations(found)) == size
    assert max(len(line.strokes) for line in found) <= 4


def test_a_sum_of_many_losses_does_not_drift_to_the_right() -> None:
    size = 500
    edges: list[list[int]] = []
    for i in range(size):  # s = s + f(x_i), the sum first
        edges.append([3 * (i + 1), 3 * i + 1])
        edges += [[3 * i + 2], []]
    found = lines(build([*edges, []]))
    assert max(len(line.strokes) for line in found) <= 4


def test_a_node_with_several_consumers_stands_once() -> None:
    found = lines(build([[1, 2], [3], [3], [4], [5, 6], [], []]))
    assert sorted(operations(found)) == [f"Op{i}" for i in range(5)]
    assert [line.strokes + line.operation for line in found] == [
        *("Op0", "├ Op2", "│ ↓ #1 Op3", "Op1", "#1 Op3", "Op4")
    ]


def test_a_value_used_twice_by_one_operation_is_one_child() -> None:
    found = lines(build([[1, 1], [2, 3], [], []]))
    assert [line.operation for line in found] == ["Op0", "Op1"]


def test_leaves_stand_beside_their_user_with_what_lies_between() -> None:
    (found,) = lines(build([[1, 2, None], [], [3], []]))
    assert found.leaves == ("p1 [2, 3]", "p3 [2, 3] → Op2")


def test_another_modules_operation_keeps_its_own_line() -> None:
    ops = [("bn", "BatchNorm", 1), ("conv", "Convolution", 2), (None, "AccumulateGrad", None)]
    nodes = [
        GraphNode(
            *(id, op, "function" if to else "parameter"),
            name=None if to else "conv.weight",
            module=module,
            to=((to, 0),) if to else (),
        )
        for id, (module, op, to) in enumerate(ops)
    ]
    found = lines(Chain("bn", 0, "", tuple(nodes)))
    assert [(line.operation, line.module, line.leaves) for line in found] == [
        ("BatchNorm", "bn", ()),
        ("Convolution", "conv", ("conv.weight",)),
    ]


def test_a_leaf_met_again_says_so() -> None:
    found = lines(build([[1, 2], [2, 3], [], []]))
    assert found[0].leaves == ("p2 [2, 3]",)
    assert found[1].leaves == ("p2 [2, 3] ↑", "p3 [2, 3]")


@pytest.mark.parametrize(
    "edges",
    {
        "itself": [[0, 1], []],
        "a circle": [[1], [2], [1, 3], []],
        "a circle through the root": [[1], [0]],
        "edges to nowhere": [[1, 99], [-5, None], []],
    }.values(),
)
def test_a_damaged_file_ends_too(edges: list[list[int | None]]) -> None:
    found = lines(build(edges))
    assert 1 <= len(found) <= 2 * len(edges)


def test_a_root_that_is_a_leaf() -> None:
    (found,) = lines(build([[]]))
    assert found.operation == "p0 [2, 3]"


def test_an_output_without_gradient() -> None:
    (found,) = lines(Chain("layer", 0, ""))
    assert "needs no gradient" in found.operation
