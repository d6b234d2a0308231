"""The page: one file that fetches nothing, holds the full graph, and takes no name for markup."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from diagrams import samples

from gradscope.diagrams import GraphView, html
from gradscope.diagrams.graph.flow import read_flow
from gradscope.diagrams.graph.groups import LONG, grouped
from gradscope.errors import OptionError
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph

EVIL = "<img src=x onerror=alert(1)>"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@pytest.fixture(autouse=True)
def _no_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a picture, unless a test asks for one: most have nothing to do with it."""
    from gradscope.diagrams import svg

    def render(graph: AutogradGraph, view: GraphView) -> str:
        raise OptionError("no layout here", help="none needed")

    monkeypatch.setattr(svg, "render", render)


class Page(HTMLParser):
    """Elements, attributes and texts as a browser's parser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in {"meta", "input", "br", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] not in {"script", "style"}:
            self.texts.append(data)


def page(graph: AutogradGraph, **view: object) -> str:
    return html.render(graph, GraphView(**view))  # type: ignore[arg-type]


def embedded(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="graph-data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def references(text: str) -> list[str]:
    """Return all that a browser would or could fetch."""
    parsed = Page(text)
    fetching = {"src", "href", "xlink:href", "action", "data", "poster", "srcset", "background"}
    found = [f"{tag} {name}={value}" for tag, name, value in parsed.attributes if name in fetching]
    found += re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)
    found += [f"url{m}" for m in re.findall(r"url\(([^)#][^)]*)\)", text)]
    return found + re.findall(r"@import|\bimport\s*\(|fetch\(|XMLHttpRequest|WebSocket", text)


@pytest.mark.parametrize("name", samples.ALL)
def test_a_page_is_balanced_and_fetches_nothing(name):
    text = page(samples.ALL[name]())
    parsed = Page(text)
    assert parsed.unbalanced == []
    assert parsed.open == []
    assert references(text) == []
    assert ("meta", "content", POLICY) in parsed.attributes
    assert "{{" not in text


@pytest.mark.parametrize(
    "markup",
    [
        '<script src="x.js"></script>',
        '<a href="x">',
        "<style>@import 'x.css'</style>",
        "<p>https://example.org</p>",
        "<style>p { background: url(x.png) }</style>",
        "<script>fetch('x')</script>",
    ],
)
def test_a_reference_is_found(markup):
    assert references(markup) != []


@pytest.mark.parametrize("name", samples.ALL)
def test_the_data_is_the_whole_graph(name):
    graph = samples.ALL[name]()
    data = embedded(page(graph))
    assert data["complete"]
    assert [node["id"] for node in data["nodes"]] == [node.id for node in graph.nodes]
    said = {n["id"]: n["to"] for n in data["nodes"]}
    assert said == {n.id: [e and list(e) for e in n.to] for n in graph.nodes}
    for written, node in zip(data["nodes"], graph.nodes, strict=True):
        assert written.get("norm") == node.grad_norm
        assert written.get("name") == node.name
        assert [tensor[3] for tensor in written.get("saved", ())] == [t.bytes for t in node.saved]


@pytest.mark.parametrize("name", samples.ALL)
@pytest.mark.parametrize("full", [False, True])
def test_every_operation_is_in_one_group(name, full):
    graph = samples.ALL[name]()
    data = embedded(page(graph, full=full))
    parts = [part for group in data["groups"] for part in group["parts"]]
    assert len(parts) == len(set(parts))
    drawn = {part for part in parts if part >= 0}
    assert drawn == {node.id for node in graph.nodes if node.kind == "function"}
    # Every group but the first is a part, of a group written before it.
    assert {-1 - part for part in parts if part < 0} == set(range(1, len(data["groups"])))
    for i, group in enumerate(data["groups"]):
        assert all(-1 - part > i for part in group["parts"] if part < 0)


def test_arrows_go_through_a_checkpoint():
    graph = samples.checkpoint()
    nodes = {node["id"]: node for node in embedded(page(graph))["nodes"]}
    flow = read_flow(graph)
    for id, ends in flow.onward.items():
        plainly = [end[0] for end in nodes[id]["to"] if end]
        assert nodes[id].get("on", plainly) == list(ends)
    assert any("on" in node for node in nodes.values())


def test_folds_open_into_their_members():
    data = embedded(page(samples.transformer(12)))
    (fold,) = [group for group in data["groups"] if group.get("times") == 12]
    assert len(fold["parts"]) == 12
    members = [data["groups"][-1 - part] for part in fold["parts"]]
    assert [m["label"] for m in members] == [str(i) for i in reversed(range(12))]
    assert fold["ops"] == sum(m["ops"] for m in members)


def shown(data: dict) -> int:
    """Boxes that the script draws at first."""
    boxes, stack = 0, [0]
    while stack:
        for part in data["groups"][stack.pop()]["parts"]:
            inner = part < 0 and "open" in data["groups"][-1 - part]
            stack += [-1 - part] if inner else []
            boxes += not inner
    return boxes


@pytest.mark.parametrize("view", [{}, {"depth": 9}, {"full": True}, {"expand": ("h.*",)}])
def test_no_more_is_open_at_first_than_can_be_drawn(view):
    data = embedded(page(samples.transformer(80), **view))
    assert 1 < shown(data) <= html.LIMIT


def test_a_depth_opens_so_many_levels():
    few, more = (shown(embedded(page(samples.resnet(), depth=d))) for d in (0, 2))
    assert few < more


def test_what_expand_names_is_open():
    data = embedded(page(samples.transformer(60), expand=("h.40",)))
    opened = {group.get("name") for group in data["groups"] if "open" in group}
    assert "h.40" in opened
    assert "h.20" not in opened


def test_long_rows_are_cut_so_that_each_can_be_opened():
    graph = samples.chain(7505)
    data = embedded(page(graph))
    assert max(len(group["parts"]) for group in data["groups"]) <= LONG
    ops = [part for group in data["groups"] for part in group["parts"] if part >= 0]
    assert sorted(ops) == sorted(node.id for node in graph.nodes if node.kind == "function")
    assert data["groups"][0]["ops"] == 7505
    rows = [data["groups"][-1 - part] for part in data["groups"][0]["parts"]]
    assert sum(row["ops"] for row in rows) == 7505


def test_a_very_large_graph_is_embedded_by_groups(monkeypatch):
    monkeypatch.setattr(html, "MOST_NODES", 50)
    monkeypatch.setattr(html, "MOST_GROUPS", 20)
    graph = samples.transformer(30)
    text = page(graph)
    data = embedded(text)
    flow = read_flow(graph)
    assert not data["complete"]
    assert len(data["groups"]) <= 20
    assert {node["kind"] for node in data["nodes"]} == {"bundle"}
    assert f"The graph has {len(graph.nodes)} nodes: this page holds its groups" in text
    # Bundles keep every arrow between operations, but for those inside one.
    ids = {node["id"] for node in data["nodes"]}
    arrows = sum(n for node in data["nodes"] for _, n in node["to"])
    edges = sum(not flow.is_leaf(end) for ends in flow.onward.values() for end in ends)
    assert 0 < arrows < edges
    assert all(end in ids for node in data["nodes"] for end, _ in node["to"])
    parts = [part for group in data["groups"] for part in group["parts"] if part >= 0]
    assert sorted(parts) == sorted(ids)


def test_parameters_are_found_in_a_page_by_groups(monkeypatch):
    monkeypatch.setattr(html, "MOST_NODES", 50)
    monkeypatch.setattr(html, "MOST_GROUPS", 20)
    graph = samples.transformer(30)
    text = page(graph)
    names = {name for node in embedded(text)["nodes"] for name in node.get("names", ())}
    assert names == {node.name for node in graph.nodes if node.kind != "function" and node.name}
    assert "the search finds a parameter by the box that uses it" in text


def test_bundles_of_single_operations_keep_every_arrow(monkeypatch):
    monkeypatch.setattr(html, "MOST_NODES", 1)
    graph = samples.resnet()
    data = embedded(page(graph))
    flow = read_flow(graph)
    inside = Counter()
    alone = {n["id"] for n in data["nodes"] if not n["op"].endswith(" operations")}
    written = Counter(
        {(n["id"], end): k for n in data["nodes"] for end, k in n["to"] if {n["id"], end} <= alone}
    )
    for id, ends in flow.onward.items():
        inside.update((id, end) for end in ends if {id, end} <= alone)
    assert written == inside
    assert written


def evil() -> AutogradGraph:
    """Markup, template marks and characters that turn text around, in every string."""
    draft = samples.Draft()
    draft.enter("", EVIL)
    draft.enter("</script><script>alert(2)</script>", "<svg onload=alert(3)>")
    weight = draft.leaf("<!--<script>alert(4)", (3,))
    y = draft.op("<b>", weight, saved=8, location='"><img src=x onerror=alert(5)>:3')
    draft.leave()
    draft.enter("\u2028\u202e\udc80{{data}}{{script}}", EVIL)
    y = draft.op("Mul", y, y, None)
    draft.leave()
    draft.leave()
    draft.op("Sum", y)
    graph = draft.graph()
    answer = Answer(EVIL, "parameter", "missing", EVIL, location=EVIL, upstream=(EVIL, f"x{EVIL}"))
    return replace(
        graph,
        run=replace(graph.run, model=EVIL, loss=EVIL),
        start="'\"`${x}",
        answers=(answer,),
        versions={EVIL: EVIL},
    )


def test_names_are_never_markup():
    text, plainly = page(evil()), page(samples.mlp())
    parsed = Page(text)
    assert parsed.tags["img"] == parsed.tags["b"] == 0
    assert parsed.tags["script"] == Page(plainly).tags["script"] == 2
    assert not [a for a in parsed.attributes if a[1].startswith("on")]
    assert parsed.unbalanced == []
    assert f"Autograd graph of {EVIL}" in parsed.texts
    text.encode("utf-8")
    assert "\u2028" not in text
    assert "\u202e" not in text
    # The marks of the template are text where a name has them.
    assert "\\u2028\\u202e\\udc80{{data}}{{script}}" in parsed.texts


def test_data_holds_no_markup():
    written = html.as_script({"name": "</script><!--<script>", "other": "a & b \u2028 \ud800"})
    assert not set("<>&\u2028") & set(written)
    assert json.loads(written) == {"name": "</script><!--<script>", "other": "a & b \u2028 \ud800"}


def test_scripts_write_no_markup():
    script = "\n".join(html._resource(f"{name}.js") for name in html.SCRIPTS)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script
    assert "</script" not in script
    assert html._resource("page.css").count("<") == 0


def test_the_outline_tells_the_whole_without_script():
    graph = samples.resnet()
    text = " ".join(Page(page(graph)).texts)
    for node in graph.nodes:
        if node.kind == "parameter" and "layer1.0" not in (node.name or ""):
            assert node.name in text
    assert "layer1 ×2" in text
    assert "The others have equal operations" in text
    assert "NllLossBackward0" in text


def test_the_outline_names_lost_gradients():
    text = " ".join(Page(page(samples.zeros())).texts)
    assert html.MARKS["zero"] in text
    assert "zero gradient" in text
    assert "8 × NaN/Inf" in " ".join(Page(page(samples.nans())).texts)


def test_answers_are_told():
    text = " ".join(Page(page(samples.cut())).texts)
    for words in ("Not in the graph", "is detached before fc1", "at net.py:19", "stem.bias"):
        assert words in text
    assert "take the .detach() away" in text
    assert "Not in the graph" not in page(samples.mlp())


def test_an_outline_of_many_members_says_how_many_more(monkeypatch):
    monkeypatch.setattr(html, "MEMBERS", 5)
    assert "and 6 more" in page(samples.transformer(12))


def test_an_outline_by_groups_names_no_operation():
    graph = samples.mlp()
    flow = read_flow(graph)
    root = grouped(graph, flow=flow)
    assert "AddmmBackward0" in html.outline(root, flow, full=True)
    brief = html.outline(root, flow, full=False)
    assert "AddmmBackward0" not in brief
    assert "fc1" in brief


def test_without_graphviz_a_sentence_stands_for_the_picture():
    text = page(samples.mlp())
    assert "no layout here" in text
    assert Page(text).tags["svg"] == 1  # the script's own, empty


def test_a_picture_is_inlined_without_addresses(monkeypatch):
    from gradscope.diagrams import svg

    drawn = (
        '<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" '
        '"http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">\n'
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        'width="10"><g/></svg>\n'
    )
    monkeypatch.setattr(svg, "render", lambda graph, view: drawn)
    text = page(samples.mlp())
    assert '<svg width="10"><g/></svg>' in text
    assert references(text) == []
    monkeypatch.setattr(html, "LARGEST", 10)
    text = page(samples.mlp())
    assert '<svg width="10">' not in text
    assert "too large to be a part of this page" in text


@pytest.mark.skipif(importlib.util.find_spec("pygraphviz") is None, reason="needs Graphviz")
def test_a_drawn_picture_fetches_nothing(monkeypatch):
    monkeypatch.undo()
    text = page(evil())
    parsed = Page(text)
    assert parsed.tags["svg"] == 2
    assert references(text) == []
    assert parsed.tags["img"] == 0
    assert parsed.unbalanced == []


def test_the_colours_are_those_of_the_view():
    assert embedded(page(samples.mlp(), by="saved"))["by"] == "saved"
    assert embedded(page(samples.mlp()))["by"] == "gradient"
