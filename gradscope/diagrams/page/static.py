"""Makes the page's HTML that needs no script: facts, picture, answers and outline.

``escaped`` handles every string from outside.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from gradscope.diagrams.graph.flow import Flow
from gradscope.diagrams.graph.groups import Group
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.reporters.finding_lines import error_lines
from gradscope.typeset.numbers import count, number, plural, shape, size
from gradscope.typeset.text import plain

#: Members of a fold that have a line in the outline.
MEMBERS = 1_000

#: Words for a group at which a gradient is first lost.
MARKS = {
    "zero": "the gradient first becomes zero here",
    "missing": "the gradient ends before it",
    "nonfinite": "NaN or Inf first appears here",
}


def escaped(text: str) -> str:
    """Return text for HTML, with unprintable characters as escapes."""
    return html.escape(plain(text), quote=True)


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
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>"
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
    inner = (
        f'<div class="sheet-of-paper">{picture}</div>' if drawn else f"<p>{escaped(picture)}</p>"
    )
    return f'<section id="picture" aria-label="Picture">\n{inner}\n</section>'


def answers(graph: AutogradGraph) -> str:
    """Return the parameters that are not in the graph, with causes, and a failure of the run."""
    sections = ""
    if graph.error is not None:
        lines = "".join(f"<p>{escaped(str(line).strip())}</p>" for line in error_lines(graph.error))
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
    lines = [f"<strong>{escaped(answer.name)}</strong> {escaped(answer.message)}"]
    if answer.location:
        lines.append(f'<p class="soft">at {escaped(answer.location)}</p>')
    if others:
        shown = ", ".join(map(escaped, others[:30]))
        more = f" and {count(len(others) - 30)} more" if len(others) > 30 else ""
        lines.append(f'<p class="soft">the same for {shown}{more}</p>')
    if answer.advice:
        lines.append(f"<p>{escaped(answer.advice)}</p>")
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
    kind = f' <span class="soft">{escaped(group.type)}</span>' if group.type else ""
    figures = [plural(group.ops, "operation")]
    if group.parameters:
        figures.append(plural(group.parameters, "element"))
    if group.saved_bytes is not None:
        figures.append(f"saved {size(group.saved_bytes)}")
    figures.append(_gradient(group.grad_norm, group.nonfinite, group.grad_low, group.grad_high))
    mark = f' <span class="flag">{MARKS[group.mark]}</span>' if group.mark else ""
    line = escaped(" · ".join(figures))
    return f'<span class="n">{escaped(group.label)}{group.repeats}</span>{kind} {line}{mark}'


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
    name = escaped(node.op)
    return f'<span class="n">{name}</span> {escaped(" · ".join(figures))}{flag}{below}'


def _leaf(node: GraphNode) -> str:
    sizes = f" {shape(node.shape)}" if node.shape is not None else ""
    name = node.name or ("input" if node.kind == "input" else "unnamed parameter")
    return escaped(f"{name}{sizes} · {_gradient(node.grad_norm, node.grad_nonfinite)}")


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
    return escaped(" ".join(sentences))
