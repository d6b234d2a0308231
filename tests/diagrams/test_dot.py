"""DOT that Graphviz reads back as the same graph; Mermaid and GraphML that their readers accept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from diagrams.samples import ALL, chain, mlp, resnet, transformer

from gradscope.diagrams import FORMATS, GraphView, graphml, mermaid
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph

HOSTILE = 'a"b\\N<b>&\n]--> x{|};%%#quot;\x00\x1b[31m\u202e€'
FULL = GraphView(full=True)
dot, json = FORMATS["dot"], FORMATS["json"]


def recorded(graph: AutogradGraph) -> Counter[tuple[str, str]]:
    return Counter(
        (f"n{node.id}", f"n{edge[0]}")
        for node in graph.nodes
        for edge in (*node.to, *node.inner)
        if edge
    )


def named(graph: AutogradGraph, name: str) -> AutogradGraph:
    """The graph with one hostile name wherever a user's text can stand."""
    nodes = tuple(
        replace(n, op=name if i == 1 else n.op, name=n.name and name, module=n.module and name)
        for i, n in enumerate(graph.nodes)
    )
    calls = tuple(replace(c, name=c.name and name, type=name) for c in graph.calls)
    return replace(graph, nodes=nodes, calls=calls, run=replace(graph.run, model=name), start=name)


@pytest.mark.parametrize("name", ALL)
def test_dot_is_read_back_with_the_same_nodes_and_edges(name: str) -> None:
    pygraphviz = pytest.importorskip("pygraphviz", reason="no Graphviz for this platform")
    graph = ALL[name]()
    read = pygraphviz.AGraph(string=dot.render(graph, FULL))
    assert set(read.nodes()) == {f"n{node.id}" for node in graph.nodes}
    assert Counter((str(a), str(b)) for a, b in read.edges()) == recorded(graph)


def test_an_edge_that_is_there_twice_is_read_back_twice() -> None:
    pygraphviz = pytest.importorskip("pygraphviz", reason="no Graphviz for this platform")
    graph = mlp()
    root = replace(graph.nodes[0], to=(*graph.nodes[0].to, *graph.nodes[0].to))
    twice = replace(graph, nodes=(root, *graph.nodes[1:]))
    read = pygraphviz.AGraph(string=dot.render(twice, FULL))
    found = Counter((str(a), str(b)) for a, b in read.edges())
    assert found == recorded(twice)
    assert found != recorded(graph)


@pytest.mark.parametrize("view", [FULL, GraphView(), GraphView(depth=0)])
def test_no_name_breaks_the_dot_text(view: GraphView) -> None:
    pygraphviz = pytest.importorskip("pygraphviz", reason="no Graphviz for this platform")
    graph = named(resnet(), HOSTILE)
    text = dot.render(graph, view)
    assert not any(c in text for c in "\x00\x1b\u202e")
    assert len(pygraphviz.AGraph(string=text).nodes()) >= 2


def test_dot_needs_no_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
    text = dot.render(mlp(), GraphView())
    assert text.startswith("digraph") and text.endswith("}\n")


@pytest.mark.parametrize("name", ALL)
def test_mermaid_has_balanced_subgraphs_and_plain_identifiers(name: str) -> None:
    lines = mermaid.render(ALL[name](), GraphView(depth=5)).splitlines()
    assert lines.count("  end") == sum(line.startswith("  subgraph ") for line in lines)
    boxes = {line.split("[")[0].split("(")[0].strip() for line in lines if ":::" in line}
    arrows = [line.split(" --") for line in lines if " -->" in line]
    for tail, rest in arrows:
        assert {tail.strip(), rest.split()[-1]} <= boxes


def test_mermaid_labels_keep_no_character_that_means_something() -> None:
    label = mermaid.escaped(HOSTILE)
    assert not set(label) & set('"<>`&\\{}|[]()\n\x00')
    assert mermaid.escaped('say "x"') == "say #34;x#34;"


def test_mermaid_stays_within_its_limits_and_says_so() -> None:
    said: list[str] = []
    text = mermaid.render(transformer(60), GraphView(full=True, say=said.append))
    assert len(text) <= mermaid.MAX_TEXT and text.count("-->") <= mermaid.MAX_EDGES
    assert len(said) == 1 and "500 arrows and 50,000 characters" in said[0]
    said.clear()
    mermaid.render(mlp(), GraphView(say=said.append))
    assert said == []


@pytest.mark.parametrize("name", ALL)
def test_graphml_has_every_node_and_every_edge(name: str) -> None:
    graph = ALL[name]()
    root = ET.fromstring(graphml.render(graph, GraphView()))
    space = {"g": "http://graphml.graphdrawing.org/xmlns"}
    assert {e.get("id") for e in root.iterfind(".//g:node", space)} == {
        f"n{node.id}" for node in graph.nodes
    }
    found = Counter((e.get("source"), e.get("target")) for e in root.iterfind(".//g:edge", space))
    assert found == recorded(graph)
    keys = {e.get("id") for e in root.iterfind("g:key", space)}
    assert {e.get("key") for e in root.iterfind(".//g:data", space)} <= keys


def test_graphml_keeps_hostile_names_readable() -> None:
    root = ET.fromstring(graphml.render(named(mlp(), HOSTILE), GraphView()))
    names = [e.text for e in root.iter() if e.get("key") == "name"]
    assert 'a"b\\N<b>&\\n]--> x{|};%%#quot;\\x00\\x1b[31m\\u202e€' in names


def test_json_is_the_record() -> None:
    graph = resnet()
    assert record_json.loads(json.render(graph, GraphView(depth=1)), AutogradGraph) == graph


def test_text_formats_take_a_long_chain() -> None:
    graph = chain(20_000)
    assert dot.render(graph, FULL).count(" -> ") == 20_000
    assert graphml.render(graph, FULL).count("<edge ") == 20_000
