"""Writes a drawing as DOT, the language of Graphviz: https://graphviz.org/doc/info/lang.html."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradscope.diagrams.picture.boxes import INK, PLAIN, Box, Cluster, Drawing
from gradscope.typeset.text import break_words, plain

#: Wide faces with nearly equal widths first: where a reader has another, its text is narrower.
FONT = "DejaVu Sans,Verdana,Geneva,sans-serif"
#: In points: 15 px high at the size a browser or a picture at 96 dpi shows.
SIZE = 11
_FRAMES = ("#f6f7f9", "#eceff3", "#e2e6ec")
_ALARM = "#b00020"
_CAPTION = 76
#: The width of a step of the colour bar, in points.
_STEP = 7

_GRAPH = {
    "bgcolor": PLAIN,
    "fontname": FONT,
    "fontsize": str(SIZE),
    "fontcolor": INK,
    "labelloc": "t",
    "labeljust": "l",
    "nodesep": "0.25",
    "ranksep": "0.3",
    "pad": "0.2",
    "outputorder": "edgesfirst",
}
_NODE = {
    "shape": "box",
    "style": "filled",
    "fontname": FONT,
    "fontsize": str(SIZE),
    "fontcolor": INK,
    "color": "#555555",
    "margin": "0.16,0.06",
    "height": "0.2",
}
_EDGE = {
    "color": "#5b6470",
    "fontname": FONT,
    "fontsize": str(SIZE),
    "fontcolor": INK,
    "arrowsize": "0.7",
}


def written(drawing: Drawing, *, tooltips: bool = True) -> str:
    """Return the drawing; with ``full``, a plain digraph with a node ``n<id>`` for each node."""
    return "\n".join(
        [
            "digraph gradscope {",
            *head(drawing, {"label": caption(drawing), "rankdir": drawing.direction}),
            *_framed(drawing, tooltips),
            *edges(drawing),
            "}\n",
        ]
    )


def head(drawing: Drawing, more: Mapping[str, str]) -> list[str]:
    """Return the attributes of the graph, of all nodes and of all edges."""
    return [
        f"  graph {attributes({**_GRAPH, **more})};",
        f"  node {attributes(_NODE)};",
        f"  edge {attributes(_EDGE)};",
    ]


def _framed(drawing: Drawing, tooltips: bool) -> Iterator[str]:
    """Yield nodes inside their frames, nested."""
    boxes: dict[int | None, list[Box]] = {}
    for box in drawing.boxes:
        boxes.setdefault(box.cluster, []).append(box)
    frames: dict[int | None, list[int]] = {}
    for i, cluster in enumerate(drawing.clusters):
        frames.setdefault(cluster.parent, []).append(i)
    todo: list[int | str] = list(reversed(frames.get(None, [])))
    yield from (node(box, tooltips=tooltips) for box in boxes.get(None, ()))
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
            continue
        cluster = drawing.clusters[item]
        about = {
            "label": quoted(_frame_label(cluster)),
            "labeljust": cluster.side,
            "style": "rounded",
            "color": "#8a94a3",
            "bgcolor": _FRAMES[cluster.depth % len(_FRAMES)],
        }
        if tooltips:
            about["tooltip"] = quoted(cluster.title)
        yield f"  subgraph cluster_{item} {{ graph {attributes(about)};"
        yield from (node(box, tooltips=tooltips) for box in boxes.get(item, ()))
        todo.append("  }")
        todo += reversed(frames.get(item, []))


def _frame_label(cluster: Cluster) -> str:
    """Return the title of a frame; non-breaking blanks as wide as the title widen the frame."""
    blanks = "\u2002" * round(1.5 * len(cluster.label)) if cluster.wide else ""
    return blanks + cluster.label if cluster.side == "r" else cluster.label + blanks


def node(box: Box, *, tooltips: bool = True, more: Mapping[str, str] | None = None) -> str:
    """Return one box."""
    about = {"label": _lines(box), "fillcolor": box.fill}
    if box.kind in ("group", "repeats"):
        about["style"] = "filled,rounded"
    if box.kind == "repeats":
        about["peripheries"] = "2"
    if box.kind in ("parameter", "input"):
        about["shape"] = "ellipse" if box.kind == "input" else "note"
    if box.mark:
        about |= {"color": _ALARM, "penwidth": "3"}
    if tooltips:
        about["tooltip"] = quoted(box.title)
    return f"  {quoted(box.id)} {attributes({**about, **(more or {})})};"


def edges(drawing: Drawing) -> Iterator[str]:
    """Yield one statement for each arrow."""
    for arrow in drawing.arrows:
        ends = (quoted(drawing.boxes[i].id) for i in (arrow.tail, arrow.head))
        several = f' [label=" ×{arrow.count}"]' if arrow.count > 1 else ""
        yield f"  {' -> '.join(ends)}{several};"


def _lines(box: Box) -> str:
    first, *rest = (markup(line) for line in box.lines)
    return f"<{'<br/>'.join((f'<b>{first}</b>', *rest))}>"


def caption(drawing: Drawing) -> str:
    """Return title, notes and legend as an HTML-like label."""
    lines = [f"<b>{markup(line)}</b>" for line in break_words(drawing.title, _CAPTION)]
    for note in drawing.notes:
        lines += [markup(line) for line in break_words(note, _CAPTION)]
    rows = "".join(f'<tr><td align="left">{line}</td></tr>' for line in lines)
    if drawing.bar or drawing.legend:
        swatches = "".join(
            f'<td bgcolor="{fill}" border="1" cellpadding="4">{markup(words)}</td>'
            for fill, words in drawing.legend
        )
        words = "gradient norm" if drawing.by == "gradient" else "saved"
        bar = f"<td>{_bar(drawing)}</td>" if drawing.bar else ""
        cells = f'<td border="0">{words}</td>{bar}{swatches}'
        table = f'<table border="0" cellspacing="4" align="left"><tr>{cells}</tr></table>'
        rows += f'<tr><td align="left">{table}</td></tr>'
    return f'<<table border="0" cellspacing="0" cellpadding="1">{rows}</table>>'


def _bar(drawing: Drawing) -> str:
    """Return the colours of the scale side by side, with values below its ends and its middle."""
    steps = len(drawing.bar)
    if steps == 1:
        return (
            f'<table border="0" cellspacing="0"><tr><td bgcolor="{drawing.bar[0]}" border="1" '
            f'cellpadding="4">{markup(drawing.ticks[0])}</td></tr></table>'
        )
    colors = "".join(
        # Its own border colour: without it a hair of white is between two cells.
        f'<td bgcolor="{fill}" color="{fill}" border="1" width="{_STEP}" height="12" '
        'fixedsize="true"></td>'
        for fill in drawing.bar
    )
    third = steps // 3
    values = "".join(
        f'<td colspan="{third}" align="{side}">{markup(words)}</td>'
        for side, words in zip(("left", "center", "right"), drawing.ticks, strict=True)
    )
    return (
        '<table border="0" cellspacing="0" cellpadding="0">'
        f"<tr>{colors}</tr><tr>{values}</tr></table>"
    )


def attributes(pairs: Mapping[str, str]) -> str:
    """Return an attribute list; values are quoted, unless they are quoted or HTML-like."""
    written = (f"{k}={v if v[:1] in ('<', chr(34)) else quoted(v)}" for k, v in pairs.items())
    return f"[{' '.join(written)}]"


def quoted(text: str) -> str:
    """Return a quoted DOT string; backslashes are escaped, line breaks stay."""
    lines = (plain(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'


def markup(text: str) -> str:
    """Escape text inside an HTML-like label."""
    safe = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return safe.replace('"', "&quot;") or " "
