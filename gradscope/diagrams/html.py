"""Renders a graph as one self-contained page.

It is readable without script; with script, its picture can be moved, opened and searched.
``page/assets`` has template, style and script; nothing is fetched. ``page.script_data`` makes the
script's data, ``page.static`` the text without script.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import re
from typing import Any

from gradscope.diagrams.graph.flow import read_flow
from gradscope.diagrams.graph.groups import grouped
from gradscope.diagrams.graph.lookup import between
from gradscope.diagrams.graph.view import GraphView
from gradscope.diagrams.page import script_data, static
from gradscope.errors import OptionError
from gradscope.records.graph import AutogradGraph
from gradscope.typeset.text import plain

suffix = ".html"
binary = False

#: Characters of a drawing that the page carries.
LARGEST = 2_000_000

#: Seconds that one attempt at the drawing may take: the page does without it.
PATIENCE = 10.0

#: In this order: each uses only the ones before it.
SCRIPTS = (
    "model",
    "words",
    "colours",
    "ranks",
    "layout",
    "pieces",
    "view",
    "panel",
    "search",
    "main",
)


def render(graph: AutogradGraph, view: GraphView) -> str:
    """Return the page of a graph.

    ``view`` sets the groups that are open at first, and the colours.
    """
    graph = between(graph, view)
    flow = read_flow(graph)
    root = grouped(graph, view, flow=flow)
    embedded = script_data.embed(graph, view, root, flow)
    picture = _picture(graph, view)
    heading = f"Autograd graph of {plain(graph.run.model)}"
    parts = {
        "title": static.escaped(heading),
        "heading": static.escaped(heading),
        "style": _resource("page.css"),
        "facts": static.facts(graph, flow),
        "picture": static.figure(picture),
        "answers": static.answers(graph),
        "outline": static.outline(root, flow, full=embedded["complete"]),
        "footer": static.footer(graph, complete=embedded["complete"]),
        "data": as_script(embedded),
        "script": "\n".join(_resource(f"{name}.js") for name in SCRIPTS),
    }
    # One pass: a part's own text is never read as a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _resource("page.html"))


def as_script(data: Any) -> str:
    """Return JSON that an HTML parser cannot mistake for markup."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _resource(name: str) -> str:
    files = importlib.resources.files("gradscope.diagrams.page") / "assets"
    return (files / name).read_text(encoding="utf-8")


def _picture(graph: AutogradGraph, view: GraphView) -> str:
    """Return the default drawing as an SVG element, or a sentence on why there is none."""
    from gradscope.diagrams import svg

    try:
        shorter = min(view.timeout, PATIENCE)
        drawn = svg.render(graph, dataclasses.replace(view, full=False, timeout=shorter))
    except OptionError as error:
        return plain(str(error))
    if len(drawn) > LARGEST:
        return "The drawing is too large to be a part of this page; the svg format has it."
    return _inline(drawn)


def _inline(drawn: str) -> str:
    """Convert a standalone SVG document to an element of a page: no prolog, no namespace
    addresses."""
    element = drawn[drawn.index("<svg") :]
    head, end, rest = element.partition(">")
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", head) + end + rest
