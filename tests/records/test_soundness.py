"""A saved graph that no backward could have left is refused, with the place of its fault."""

from __future__ import annotations

import json
from typing import Any

import pytest
from diagrams import samples

from gradscope.errors import ConfigError
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph

Steps = tuple[str | int, ...]


@pytest.mark.parametrize("sample", samples.ALL)
def test_a_sound_graph_comes_back(sample: str) -> None:
    graph = samples.ALL[sample]()
    assert record_json.loads(record_json.dumps(graph), AutogradGraph) == graph


#: Where a graph of fc1, relu and fc2 is changed, to what, the place that is named, a word of why.
DAMAGES: dict[str, tuple[Steps, Any, str, str]] = {
    "an id twice": (("nodes", 5, "id"), 8, "nodes[5].id", "8 is the id of"),
    "an edge to nowhere": (("nodes", 2, "to", 0), [99, 0], "nodes[2].to[0]", "no node has the id"),
    "an edge back": (("nodes", 6, "to", 0), [10, 0], "nodes[6].to[0]", "comes before all"),
    "an edge to itself": (("nodes", 2, "to", 0), [8, 0], "nodes[2].to[0]", "comes before all"),
    "an inner edge back": (("nodes", 5, "inner"), [[10, 0]], "nodes[5].inner[0]", "comes before"),
    "no such output": (("nodes", 0, "to", 0), [9, -1], "nodes[0].to[0][1]", "0 or more"),
    "a root below": (("root",), 9, "root", "the first node's id, 10"),
    "a root without nodes": (("nodes",), [], "root", "expected null"),
    "no root": (("root",), None, "root", "found null"),
    "a kind": (("nodes", 3, "kind"), "banana", "nodes[3].kind", "function or parameter or input"),
    "a status": (("status",), "fine", "status", "ok or failed"),
    "a call that is not listed": (("nodes", 2, "call"), 7, "nodes[2].module", "`fc2` #7"),
    "a call twice": (("calls", 2), {"name": "fc1", "call": 0, "type": ""}, "calls[2]", "twice"),
    "a call in itself": (("calls", 1, "parent"), 1, "calls[1].parent", "an earlier call"),
    "a call in a later one": (("calls", 1, "parent"), 3, "calls[1].parent", "an earlier call"),
    "a parent before all": (("calls", 1, "parent"), -2, "calls[1].parent", "an earlier call"),
    "a call's number": (("calls", 0, "call"), -1, "calls[0].call", "0 or more"),
    "a norm": (("nodes", 2, "grad_norm"), -0.5, "nodes[2].grad_norm", "0 or more"),
    "bytes": (("nodes", 2, "saved_bytes"), -1, "nodes[2].saved_bytes", "0 or more"),
    "bytes of all": (("saved_bytes",), -1, "saved_bytes", "0 or more"),
    "a count": (("nodes", 2, "grad_nonfinite"), -1, "nodes[2].grad_nonfinite", "0 or more"),
    "a size": (("nodes", 2, "shape"), [2, -4], "nodes[2].shape[1]", "0 or more"),
    "bytes of a tensor": (("nodes", 2, "saved", 0, "bytes"), -1, "nodes[2].saved[0].bytes", "0 or"),
    "a tensor's size": (("nodes", 2, "saved", 0, "shape"), [-1], "nodes[2].saved[0].shape[0]", "0"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_graph_is_named(case: str) -> None:
    steps, value, key, said = DAMAGES[case]
    data: Any = json.loads(record_json.dumps(samples.mlp()))
    place = data
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = value
    with pytest.raises(ConfigError, match=said) as caught:
        record_json.loads(json.dumps(data), AutogradGraph, file="g.json")
    assert str(caught.value.problems[0].place) == f"g.json ({key})"
