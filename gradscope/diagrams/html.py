"""Renders a graph as one self-contained page.

It is readable without script; with script, its picture can be moved, opened and searched.
``assets`` has template, style and script; nothing is fetched. ``markup`` handles every string from
outside. In the script's data, a group's ``parts`` are ids of operations (0 and up) and of groups
(-1 for the first).
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.flow import Flow, read_flow
from gradscope.diagrams.graph.groups import (
    Group,
    grouped,
    opened,
    operations_below,
    rows,
    saved_bytes,
)
from gradscope.diagrams.graph.lookup import between
from gradscope.diagrams.picture import boxes
from gradscope.errors import OptionError
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.records.tensors import finite_or_none
from gradscope.reporters.finding_lines import error_lines
from gradscope.typeset.numbers import count, number, plural, shape, size
from gradscope.typeset.text import markup, plain

#: Members of a fold that have a line in the outline.
MEMBERS = 1_000

#: Words for a group at which a gradient is first lost.
MARKS = {
    "zero": "the gradient first becomes zero here",
    "missing": "the gradient ends before it",
    "nonfinite": "NaN or Inf first appears here",
}


def facts(graph: AutogradGraph, flow: Flow) -> str:
    """Return the header's figures."""
    run = graph.run
    kinds = [node.kind for node in graph.nodes]
    edges = sum(end is not None for node in graph.nodes for end in node.to)
    loss = number(graph.loss) if graph.loss is not None else graph.loss_nonfinite
    rows = [
        ("only", graph.part),
        ("starts at", graph.start if loss is None else f"{graph.start} = {loss}"),
        ("loss function", run.loss),
        ("operations", count(kinds.count("function"))),
        ("parameter tensors", count(kinds.count("parameter"))),
        ("inputs", count(kinds.count("input"))),
        ("arrows", count(edges)),
        ("saved for backward", None if graph.saved_bytes is None else size(graph.saved_bytes)),
        ("frozen", count(len(graph.frozen)) if graph.frozen else None),
        ("run", f"{run.mode}, {run.device}, {run.dtype}, seed {run.seed}"),
        *((word, plural(n, "operation")) for word, n in _troubles(flow) if graph.complete),
    ]
    return "\n".join(
        f"<div><dt>{markup(name)}</dt><dd>{markup(value)}</dd></div>"
        for name, value in rows
        if value
    )


def _troubles(flow: Flow) -> Iterator[tuple[str, int]]:
    """Count operations without a gradient, with a zero one, and with a non-finite one."""
    own = [node for node in flow.nodes.values() if node.kind == "function"]
    counts = {
        "no gradient": sum(node.grad_norm is None for node in own),
        "zero gradient": sum(node.grad_norm == 0 and not node.grad_nonfinite for node in own),
        "NaN or Inf in the gradient": sum(bool(node.grad_nonfinite) for node in own),
    }
    return ((word, n) for word, n in counts.items() if n)


def figure(picture: str) -> str:
    """Return the picture for the page without script, or a sentence."""
    drawn = picture.startswith("<svg")
    inner = f'<div class="sheet-of-paper">{picture}</div>' if drawn else f"<p>{markup(picture)}</p>"
    return f'<section id="picture" aria-label="Picture">\n{inner}\n</section>'


def answers(graph: AutogradGraph) -> str:
    """Return the parameters that are not in the graph, with causes, and a failure of the run."""
    sections = ""
    if graph.error is not None:
        lines = "".join(f"<p>{markup(str(line).strip())}</p>" for line in error_lines(graph.error))
        sections = (
            f'<section><h2>The run failed</h2><ul class="answers"><li>{lines}</li></ul></section>\n'
        )
    if graph.answers and graph.complete:
        items = "\n".join(map(_answer, graph.answers))
        sections += (
            '<section aria-labelledby="answers-title">\n'
            '<h2 id="answers-title">Not in the graph</h2>\n'
            f'<ul class="answers">\n{items}\n</ul>\n</section>'
        )
    return sections


def _answer(answer: Answer) -> str:
    others = [name for name in answer.upstream if name != answer.name]
    lines = [f"<strong>{markup(answer.name)}</strong> {markup(answer.message)}"]
    if answer.location:
        lines.append(f'<p class="soft">at {markup(answer.location)}</p>')
    if others:
        shown = ", ".join(map(markup, others[:30]))
        more = f" and {count(len(others) - 30)} more" if len(others) > 30 else ""
        lines.append(f'<p class="soft">the same for {shown}{more}</p>')
    if answer.advice:
        lines.append(f"<p>{markup(answer.advice)}</p>")
    return f"<li>{''.join(lines)}</li>"


def outline(root: Group, flow: Flow, *, full: bool) -> str:
    """Return nested groups down to the operations; with ``full`` false, groups only.

    A fold shows its first member in full, and a line for each other member.
    """
    parts: list[str] = []
    stack: list[Group | int | str] = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            parts.append(item)
        elif isinstance(item, int):
            parts.append(f"<li>{_operation(flow.nodes[item], flow)}</li>")
        elif not full and not item.members and not any(True for _ in item.groups()):
            parts.append(f"<li>{_summary(item)}</li>")
        else:
            opened = " open" if item.parent is None or item.parent.parent is None else ""
            parts.append(f"<li><details{opened}><summary>{_summary(item)}</summary><ul>")
            stack.append("</ul></details></li>")
            inside = item.parts if full else list(item.groups())
            if item.members:
                more = len(item.members) - 1 - MEMBERS
                if more > 0:
                    stack.append(f'<li class="soft">and {count(more)} more</li>')
                others = reversed(item.members[1 : 1 + MEMBERS])
                stack.extend(f"<li>{_summary(one)}</li>" for one in others)
                stack.append('<li class="soft">The others have equal operations:</li>')
            stack.extend(reversed(inside))
    return f"<ul>{''.join(parts)}</ul>"


def _summary(group: Group) -> str:
    kind = f' <span class="soft">{markup(group.type)}</span>' if group.type else ""
    figures = [plural(group.ops, "operation")]
    if group.parameters:
        figures.append(plural(group.parameters, "element"))
    if group.saved_bytes is not None:
        figures.append(f"saved {size(group.saved_bytes)}")
    figures.append(_gradient(group.grad_norm, group.nonfinite, group.grad_low, group.grad_high))
    mark = f' <span class="flag">{MARKS[group.mark]}</span>' if group.mark else ""
    line = markup(" · ".join(figures))
    return f'<span class="n">{markup(group.label)}{group.repeats}</span>{kind} {line}{mark}'


def _gradient(
    norm: float | None, broken: int | None, low: float | None = None, high: float | None = None
) -> str:
    """Return a gradient in words, with its number."""
    suffix = f", {count(broken)} × NaN/Inf" if broken else ""
    if norm is None:
        return f"no gradient{suffix}"
    if low is not None and high is not None and low != high:
        return f"gradient norm {number(low)} to {number(high)}{suffix}"
    if norm == 0 and not broken:
        return "zero gradient"
    return f"gradient norm {number(norm)}{suffix}"


def _operation(node: GraphNode, flow: Flow) -> str:
    figures = [_gradient(node.grad_norm, node.grad_nonfinite)]
    if node.shape is not None:
        figures.insert(0, shape(node.shape))
    if node.saved_bytes:
        figures.append(f"saved {size(node.saved_bytes)}")
    if node.location:
        figures.append(f"at {node.location}")
    mark = flow.marks.get(node.id)
    flag = f' <span class="flag">{MARKS[mark]}</span>' if mark else ""
    leaves = "".join(f"<li>{_leaf(flow.nodes[leaf])}</li>" for leaf in flow.leaves.get(node.id, ()))
    below = f"<ul>{leaves}</ul>" if leaves else ""
    name = markup(node.op)
    return f'<span class="n">{name}</span> {markup(" · ".join(figures))}{flag}{below}'


def _leaf(node: GraphNode) -> str:
    sizes = f" {shape(node.shape)}" if node.shape is not None else ""
    name = node.name or ("input" if node.kind == "input" else "unnamed parameter")
    return markup(f"{name}{sizes} · {_gradient(node.grad_norm, node.grad_nonfinite)}")


def footer(graph: AutogradGraph, *, complete: bool) -> str:
    """Name the version that made the page, and the parts that it omits."""
    versions = ", ".join(f"{name} {version}" for name, version in graph.versions.items())
    sentences = [f"Made by gradscope{f' with {versions}' if versions else ''}."]
    if not complete:
        sentences.append(
            f"The graph has {count(len(graph.nodes))} nodes: this page holds its groups, "
            "with their operations counted; the search finds a parameter by the box that uses it. "
            "The json format has every node."
        )
    return markup(" ".join(sentences))


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups, outer ones first, with the index of each one's parent (-1 for the first).

    ``parts`` has the content of each when it is open.
    """

    groups: list[Group] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    parts: list[list[Group | int]] = field(default_factory=list)


def tree(root: Group, flow: Flow, most: int | None) -> Tree:
    """Return all groups, or only the ``most`` nearest to the root."""
    found = Tree([root], [-1])
    for i, group in enumerate(found.groups):  # grows while it is read
        parts = rows(group, flow)
        found.parts.append(parts)
        inner = [part for part in parts if isinstance(part, Group)]
        if most is None or len(found.groups) + len(inner) <= most:
            found.groups.extend(inner)
            found.parents.extend([i] * len(inner))
    return found


#: Graphs of more nodes are embedded by groups, their operations counted.
MOST_NODES = 20_000
#: Number of groups embedded for such a graph.
MOST_GROUPS = 3_000
#: Boxes that the page draws at once.
LIMIT = 300
#: Up to this many boxes, the page opens folds by default.
FIRST = 60
#: The pictures' colours; the ramp in its nine steps, between which the script mixes.
COLOURS = {
    "ramp": [boxes.ramp(i / 8) for i in range(9)],
    "ink": boxes.INK,
    "plain": boxes.PLAIN,
    "zero": boxes.ZERO,
    "missing": boxes.MISSING,
    "nonfinite": boxes.NONFINITE,
}


def embed(graph: AutogradGraph, view: GraphView, root: Group, flow: Flow) -> dict[str, Any]:
    """Return all data of the page's script."""
    complete = len(graph.nodes) <= MOST_NODES
    shown = tree(root, flow, None if complete else MOST_GROUPS)
    held = {id(group): i for i, group in enumerate(shown.groups)}
    entries = [_group(group, parts, held) for group, parts in zip_parts(shown)]
    if complete:
        calls = {(call.name, call.call): i for i, call in enumerate(graph.calls)}
        nodes = [_node(node, calls, flow) for node in graph.nodes]
    else:
        nodes = _bundles(shown, entries, held, flow)
    _open(shown, entries, opened(root, graph, view, limit=LIMIT // 2), view)
    return {
        "by": view.by,
        "colours": COLOURS,
        "limit": LIMIT,
        "complete": complete,
        "root": graph.root,
        "calls": [[plain(c.name), c.call, plain(c.type)] for c in graph.calls] if complete else [],
        "nodes": nodes,
        "groups": entries,
    }


def zip_parts(shown: Tree) -> Iterator[tuple[Group, list[Group | int]]]:
    """Yield each group with its shown parts."""
    return zip(shown.groups, shown.parts, strict=True)


def _group(group: Group, parts: list[Group | int], held: dict[int, int]) -> dict[str, Any]:
    facts = {
        "name": None if group.name is None else plain(group.name),
        "type": None if group.type is None else plain(group.type),
        "times": group.times if group.times > 1 else None,
        "parallel": group.parallel or None,
        "bytes": group.saved_bytes,
        "norm": finite_or_none(group.grad_norm),
        "low": finite_or_none(group.grad_low),
        "high": finite_or_none(group.grad_high),
        "nonfinite": group.nonfinite or None,
        "mark": group.mark,
    }
    places = (-1 - held[id(p)] if isinstance(p, Group) else p for p in parts if _known(p, held))
    return {
        "label": plain(group.label),
        **{key: value for key, value in facts.items() if value is not None},
        "parts": list(places),
        "ops": group.ops,
        "parameters": group.parameters,
    }


def _known(part: Group | int, held: dict[int, int]) -> bool:
    return isinstance(part, int) or id(part) in held


def _node(node: GraphNode, calls: dict[tuple[str, int], int], flow: Flow) -> dict[str, Any]:
    onward = flow.onward.get(node.id, ())
    plainly = tuple(end[0] for end in node.to if end is not None)
    facts = {
        "kind": None if node.kind == "function" else node.kind,
        "name": None if node.name is None else plain(node.name),
        "call": None if node.module is None else calls.get((node.module, node.call or 0)),
        "shape": node.shape,
        "bytes": node.saved_bytes,
        "norm": finite_or_none(node.grad_norm),
        "bad": node.grad_nonfinite or None,
        "saved": [[plain(t.name), t.shape, plain(t.dtype), t.bytes] for t in node.saved] or None,
        "inner": node.inner or None,
        # Targets of the arrows, if not simply `to`: through a reentrant checkpoint.
        "on": onward if onward != plainly else None,
        "at": None if node.location is None else plain(node.location),
    }
    present = {key: value for key, value in facts.items() if value is not None}
    return {"id": node.id, "op": plain(node.op), **present, "to": node.to}


def _bundles(
    shown: Tree, entries: list[dict[str, Any]], held: dict[int, int], flow: Flow
) -> list[dict[str, Any]]:
    """Return one entry for all operations of a group that are outside its embedded groups.

    Its id is that of its first operation; its ``to`` counts arrows: (bundle, how many).
    """
    home: dict[int, int] = {}
    bundles: list[list[int]] = []
    for (_, parts), entry in zip(zip_parts(shown), entries, strict=True):
        own = list(_own(parts, held))
        entry["parts"] = [part for part in entry["parts"] if part < 0] + own[:1]
        if own:
            bundles.append(own)
            home.update(dict.fromkeys(own, own[0]))
    places = {op: i for i, op in enumerate(flow.order)}
    bundles.sort(key=lambda own: places[own[0]])
    return [_bundle(own, home, flow) for own in bundles]


def _bundle(own: list[int], home: dict[int, int], flow: Flow) -> dict[str, Any]:
    nodes = [flow.nodes[op] for op in own]
    to = Counter(home[end] for op in own for end in flow.onward[op] if end in home)
    del to[own[0]]
    facts = {
        "bytes": saved_bytes(nodes),
        "norm": finite_or_none(nodes[0].grad_norm),
        "bad": sum(node.grad_nonfinite or 0 for node in nodes) or None,
        # Leaves have no box here: the search finds them by the one that uses them.
        "names": _leaf_names(own, flow) or None,
    }
    return {
        "id": own[0],
        "op": f"{count(len(own))} operations" if len(own) > 1 else plain(nodes[0].op),
        "kind": "bundle",
        **{key: value for key, value in facts.items() if value is not None},
        "to": sorted(to.items()),
    }


def _leaf_names(own: list[int], flow: Flow) -> list[str]:
    leaves = (flow.nodes[leaf].name for op in own for leaf in flow.leaves.get(op, ()))
    return [plain(name) for name in dict.fromkeys(leaves) if name]


def _own(parts: list[Group | int], held: dict[int, int]) -> Iterator[int]:
    for part in parts:
        if isinstance(part, int):
            yield part
        elif id(part) not in held:
            yield from operations_below(part)


def _open(
    shown: Tree, entries: list[dict[str, Any]], wanted: Callable[[Group], bool], view: GraphView
) -> None:
    """Mark the groups open at first: those of the view, outer ones first, while there is room.

    A fold opens into its members, together with its first member. The page opens folds by default
    only if few boxes result.
    """
    boxes = len(entries[0]["parts"])
    entries[0]["open"] = True
    for i, group in enumerate(shown.groups):
        around = shown.parents[i]
        if around < 0 or "open" not in entries[around]:
            continue
        first = shown.groups[around].members[:1] == [group]
        asked = view.full or group.expanded
        own_account = first or bool(group.members)
        room = LIMIT if asked or view.depth is not None else FIRST if own_account else LIMIT // 2
        more = len(entries[i]["parts"]) - 1
        if (asked or first or wanted(group)) and 0 <= more <= room - boxes:
            entries[i]["open"] = True
            boxes += more


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
    embedded = embed(graph, view, root, flow)
    picture = _picture(graph, view)
    heading = f"Autograd graph of {plain(graph.run.model)}"
    parts = {
        "title": markup(heading),
        "heading": markup(heading),
        "style": _resource("page.css"),
        "facts": facts(graph, flow),
        "picture": figure(picture),
        "answers": answers(graph),
        "outline": outline(root, flow, full=embedded["complete"]),
        "footer": footer(graph, complete=embedded["complete"]),
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
    files = importlib.resources.files("gradscope.diagrams") / "assets"
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
