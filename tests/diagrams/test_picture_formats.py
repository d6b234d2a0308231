"""svg, png and pdf: full files, text inside its box, a time limit that holds, clear words."""

from __future__ import annotations

import importlib.util
import re
import struct
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from diagrams.samples import ALL, chain, mlp, resnet, transformer

from gradscope.diagrams import FORMATS, GraphView, svg
from gradscope.diagrams.picture import graphviz, layout
from gradscope.diagrams.picture.drawing import draw
from gradscope.errors import OptionError

needed = pytest.mark.skipif(
    importlib.util.find_spec("pygraphviz") is None, reason="no Graphviz for this platform"
)
pdf, png = FORMATS["pdf"], FORMATS["png"]
SPACE = {"s": "http://www.w3.org/2000/svg"}


def tooltips(text: str) -> list[str]:
    root = ET.fromstring(text)
    return [e.text or "" for e in root.iterfind(".//s:g[@class='node']/s:title", SPACE)]


@pytest.mark.slow
@needed
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("full", [False, True])
def test_an_svg_has_every_box_with_its_tooltip(name: str, full: bool) -> None:
    view = GraphView(full=full)
    drawing = draw(ALL[name](), view)
    found = [t for t in tooltips(svg.render(ALL[name](), view)) if t]
    assert sorted(found) == sorted(box.title for box in drawing.boxes)


@needed
def test_an_svg_is_one_named_file_that_fetches_nothing() -> None:
    text = svg.render(resnet(), GraphView())
    root = ET.fromstring(text)
    assert root.get("role") and "autograd graph" in (root.get("aria-label") or "")
    assert root.find("s:title", SPACE) is not None and root.find("s:desc", SPACE) is not None
    assert not re.search(r"(href|src|url\()", text)
    sizes = [float(e.get("font-size", "0")) for e in root.iter() if e.tag.endswith("}text")]
    scale = float(root.get("width", "0")) / float((root.get("viewBox") or "").split()[2])
    assert min(sizes) * scale >= 12


@needed
def test_names_that_look_like_markup_stay_text() -> None:
    graph = mlp()
    evil = "<script>alert(1)</script>&amp;\x00"
    nodes = tuple(replace(n, name=n.name and evil, op=evil) for n in graph.nodes)
    text = svg.render(replace(graph, nodes=nodes), GraphView())
    assert "<script" not in text
    assert any("<script>alert(1)</script>&amp;\\x00" in tip for tip in tooltips(text))


@needed
def test_a_png_and_a_pdf_are_whole_files() -> None:
    picture = png.render(resnet(), GraphView())
    assert picture.startswith(b"\x89PNG\r\n\x1a\n") and picture.endswith(b"IEND\xaeB`\x82")
    wide, tall = struct.unpack(">II", picture[16:24])
    assert 200 < wide < 1600 and 200 < tall < 4000
    page = pdf.render(resnet(), GraphView())
    assert page.startswith(b"%PDF-") and page.rstrip().endswith(b"%%EOF")


@needed
def test_a_full_drawing_of_a_deep_network_is_cut_into_columns() -> None:
    graph = transformer(20)
    assert layout.needs_strips(draw(graph, GraphView(full=True)))
    assert not layout.needs_strips(draw(graph, GraphView()))
    root = ET.fromstring(svg.render(graph, GraphView(full=True)))
    *_, wide, tall = (float(x) for x in (root.get("viewBox") or "").split())
    assert tall < 3 * wide
    edges = root.findall(".//s:g[@class='edge']/s:path", SPACE)
    assert len(edges) == sum(e is not None for n in graph.nodes for e in n.to)


@needed
def test_boxes_in_columns_do_not_cover_each_other() -> None:
    root = ET.fromstring(svg.render(transformer(20), GraphView(full=True)))
    groups = root.findall(".//s:g[@class='node']", SPACE)
    boxes = [group for group in groups if group.find("s:title", SPACE) is not None]
    spans = []
    for shape in (shape for box in boxes for shape in box.iterfind("s:polygon", SPACE)):
        points = [tuple(map(float, p.split(","))) for p in shape.get("points", "").split()]
        xs, ys = zip(*points, strict=True)
        spans.append((min(xs), max(xs), min(ys), max(ys)))

    def covers(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        return a[0] < b[1] - 1 and b[0] < a[1] - 1 and a[2] < b[3] - 1 and b[2] < a[3] - 1

    assert covers((0, 9, 0, 9), (5, 20, 5, 20))
    assert len(spans) > 200
    assert not any(covers(a, b) for i, a in enumerate(spans) for b in spans[i + 1 :])


@needed
def test_a_layout_that_takes_too_long_is_ended_and_a_coarser_one_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    run = graphviz.run

    def slow(dot: str, form: str, clock: graphviz.Clock, **more: str) -> bytes:
        if dot.count(" -> ") > 40:
            raise graphviz.TooSlow
        return run(dot, form, clock, **more)

    for module in (layout, layout):
        monkeypatch.setattr(module, "run", slow)
    view = GraphView(full=True, timeout=30, say=said.append)
    assert svg.render(transformer(), view).startswith("<svg")
    assert len(said) == 1
    assert re.fullmatch(
        r"the full drawing did not lay out in 30\.00 s: drawn at depth \d instead", said[0]
    )


@needed
def test_without_any_time_the_word_is_clear() -> None:
    with pytest.raises(OptionError, match="did not lay out in 0 s") as caught:
        svg.render(resnet(), GraphView(timeout=0.0))
    assert "--layout-timeout" in (caught.value.problems[0].help or "")


@needed
def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(graphviz.sys, "executable", str(program))
    with pytest.raises(graphviz.TooSlow):
        graphviz.run("digraph {}", "svg", graphviz.Clock.of(0.2))


@needed
def test_a_crash_of_graphviz_is_no_crash_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "crashes"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(graphviz.sys, "executable", str(program))
    with pytest.raises(OptionError, match="ended by signal 11"):
        svg.render(mlp(), GraphView())


@needed
def test_text_that_graphviz_cannot_read_is_an_error_with_its_words() -> None:
    with pytest.raises(OptionError, match="could not draw this graph as svg"):
        graphviz.run("digraph { a -> }", "svg", graphviz.Clock.of(30))


def test_without_pygraphviz_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphviz.importlib.util, "find_spec", lambda name: None)
    for form in (svg, png, pdf):
        with pytest.raises(OptionError, match="needs Graphviz") as caught:
            form.render(mlp(), GraphView())
        said = caught.value.problems[0].help or ""
        assert "pip install" in said and "html, dot, mermaid, graphml and json" in said


@pytest.mark.slow
@needed
def test_a_png_too_large_to_read_is_drawn_coarser() -> None:
    said: list[str] = []
    png.render(chain(12_000), GraphView(full=True, say=said.append))
    assert "too large for a png" in said[0]
