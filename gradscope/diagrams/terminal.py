"""A graph as text for people: its main path, a tree by module, and what is not in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rich.text import Text

from gradscope.diagrams import _routes
from gradscope.diagrams._answers import absent
from gradscope.diagrams._flow import Flow, flow
from gradscope.diagrams._groups import Group, grouped, opened
from gradscope.diagrams._names import chain, start
from gradscope.diagrams._paths import main_path
from gradscope.diagrams._tree import table
from gradscope.diagrams._view import GraphView
from gradscope.records.graph import AutogradGraph
from gradscope.typeset.console import Line, dimmed, printed, prose, table_lines
from gradscope.typeset.numbers import number, plural, size
from gradscope.typeset.text import join, pack, plain

suffix = ".txt"
binary = False

#: What still fits one screen.
_ROWS = 40
#: More operations of a group's own than these share a row, unless they are asked for.
_OWN = 6
#: As many stations of a path are named at each end.
_ENDS = 16


def render(graph: AutogradGraph, view: GraphView) -> str:
    """The graph at the view's width; without one nothing is hidden and nothing breaks."""
    blocks = [list(block) for block in _blocks(graph, view)]
    lines = [line for block in blocks if block for line in (Text(), *block)][1:]
    return printed(lines, width=view.width, color=view.color)


def _blocks(graph: AutogradGraph, view: GraphView) -> Iterator[Iterable[Text]]:
    yield _header(graph, view)
    yield [text for line in _error(graph) for text in prose(line, view.width)]
    if graph.root is None:
        yield [text for line in absent(graph) for text in prose(line, view.width)]
        return
    known = flow(graph)
    if view.sources or view.targets:
        yield from _routes.blocks(graph, view, known)
        return
    root = grouped(graph, view, own=_OWN, known=known)
    is_open = opened(root, graph, view, limit=_ROWS)
    yield _main(graph, known, root, is_open, view)
    yield table_lines(table(root, known, is_open, view, start(graph)), view.width)
    yield [text for line in absent(graph) for text in prose(line, view.width)]


def _header(graph: AutogradGraph, view: GraphView) -> Iterator[Text]:
    run = graph.run
    dtype = f"{run.dtype}, autocast {run.autocast}" if run.autocast else run.dtype
    name = plain(run.model) or "model"
    facts = [name, *map(plain, (run.device, dtype, run.mode, f"seed {run.seed}"))]
    for i, line in enumerate(join(facts, view.width)):
        lead = name if i == 0 and line.startswith(name) else ""
        yield Text.assemble((lead, "bold"), line[len(lead) :])
    only = [] if graph.part is None else [f"only {plain(graph.part)}"]
    yield from (Text(line) for line in join([_start(graph), *only, *_totals(graph)], view.width))
    for notice in run.notices:
        yield from dimmed(f"note: {plain(notice)}", view.width)


def _start(graph: AutogradGraph) -> str:
    if graph.start != "loss":
        return f"from {plain(graph.start)}"
    name = plain(graph.run.loss) or "loss"
    if graph.loss_nonfinite:
        return f"loss {name} = {plain(graph.loss_nonfinite)}"
    return f"loss {name}" if graph.loss is None else f"loss {name} = {number(graph.loss)}"


def _totals(graph: AutogradGraph) -> list[str]:
    if not graph.nodes:
        return []
    ops = sum(1 for node in graph.nodes if node.kind == "function")
    inputs = sum(1 for node in graph.nodes if node.kind == "input")
    tensors = len(graph.nodes) - ops - inputs
    facts = [plural(ops, "operation")]
    facts += [plural(tensors, "parameter tensor")] if tensors else []
    facts += [plural(inputs, "input")] if inputs else []
    facts += [] if graph.saved_bytes is None else [f"{size(graph.saved_bytes)} saved for backward"]
    return [", ".join(facts)]


def _error(graph: AutogradGraph) -> Iterator[Line]:
    failure = graph.error
    if failure is None:
        if graph.root is None and graph.part is None:
            yield Line(f"{start(graph)} has no graph: it needs no gradient")
        return
    where = f" of {plain(failure.name)}" if failure.name else ""
    kind = "raised" if failure.kind == "model-error" else f"{plain(failure.kind)},"
    yield Line(f"{kind} in the {plain(failure.phase)}{where}", "error:", "bad")
    for text in failure.message.splitlines():
        yield Line(plain(text), indent=1)
    for frame in failure.frames:
        yield Line(f"{plain(frame.file)}:{frame.line} in {plain(frame.function)}", "at", indent=1)
    if not failure.frames and failure.location:
        yield Line(plain(failure.location), "at", indent=1)
    if failure.advice:
        yield Line(plain(failure.advice), "help:", indent=1)


def _main(
    graph: AutogradGraph,
    known: Flow,
    root: Group,
    is_open: Callable[[Group], bool],
    view: GraphView,
) -> Iterator[Text]:
    """The longest path as one chain of what a reader of the tree's upper levels knows."""
    path = main_path(known, known.order[0])
    stations = [plain(graph.start), *chain(path, root, known, is_open)]
    if stations[1].replace(" #", "#") == stations[0]:  # the graph starts at that very module
        del stations[0]
    if len(stations) > 2 * _ENDS + 1:
        left_out = f"… {len(stations) - 2 * _ENDS} more …"
        stations = [*stations[:_ENDS], left_out, *stations[-_ENDS:]]
    ops = sum(1 for id in path if not known.is_leaf(id))
    yield Text.assemble(("main path", "bold"), f"  the longest: {plural(ops, 'operation')}")
    pieces = [*(f"{station} → " for station in stations[:-1]), stations[-1]]
    lines = ["".join(pieces)] if view.width is None else pack(pieces, view.width, indent="  ")
    yield from (Text(line) for line in lines)
