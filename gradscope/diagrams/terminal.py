"""Renders a graph as text for people: its main path, a tree by module, and absent names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rich.text import Text

from gradscope.diagrams import _routes
from gradscope.diagrams._routes import absent
from gradscope.diagrams._tree import table
from gradscope.diagrams.graph.flow import Flow, main_path, read_flow
from gradscope.diagrams.graph.groups import Group, chain, grouped, opened, start
from gradscope.diagrams.graph.view import GraphView
from gradscope.records.graph import AutogradGraph
from gradscope.reporters.finding_lines import error_lines
from gradscope.reporters.header import header, run_facts
from gradscope.typeset.console import Line, paragraphs, printed, prose, stacked, table_lines
from gradscope.typeset.numbers import number, plural, size
from gradscope.typeset.text import pack, plain

suffix = ".txt"
binary = False

#: Largest number of rows on one screen.
_ROWS = 40
#: More operations of a group's own than these share a row, unless they are asked for.
_OWN = 6
#: Number of a path's stations named at each end.
_ENDS = 16


def render(graph: AutogradGraph, view: GraphView) -> str:
    """Return the graph at the view's width; without a width, nothing is hidden or broken into
    lines."""
    return printed(stacked(_blocks(graph, view)), width=view.width, color=view.color)


def _blocks(graph: AutogradGraph, view: GraphView) -> Iterator[Iterable[Text]]:
    yield header(graph.run, _facts(graph), view.width)
    yield paragraphs(error_lines(graph.error), view.width)
    if graph.root is None:
        if graph.error is None and graph.part is None:
            yield prose(Line(f"{start(graph)} has no graph: it needs no gradient"), view.width)
        yield paragraphs(absent(graph), view.width)
        return
    flow = read_flow(graph)
    if view.sources or view.targets:
        yield from _routes.blocks(graph, view, flow)
        return
    root = grouped(graph, view, own=_OWN, flow=flow)
    is_open = opened(root, graph, view, limit=_ROWS)
    yield _main(graph, flow, root, is_open, view)
    yield table_lines(table(root, flow, is_open, view, start(graph)), view.width)
    yield paragraphs(absent(graph), view.width)


def _facts(graph: AutogradGraph) -> list[list[str]]:
    only = [] if graph.part is None else [f"only {plain(graph.part)}"]
    return [run_facts(graph.run), [_start(graph), *only, *_totals(graph)]]


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


def _main(
    graph: AutogradGraph,
    flow: Flow,
    root: Group,
    is_open: Callable[[Group], bool],
    view: GraphView,
) -> Iterator[Text]:
    """Yield the longest path as one chain, in the words of the tree's upper levels."""
    path = main_path(flow, flow.order[0])
    stations = [plain(graph.start), *chain(path, root, flow, is_open)]
    if stations[1].replace(" #", "#") == stations[0]:  # the graph starts at that very module
        del stations[0]
    if len(stations) > 2 * _ENDS + 1:
        left_out = f"… {len(stations) - 2 * _ENDS} more …"
        stations = [*stations[:_ENDS], left_out, *stations[-_ENDS:]]
    ops = sum(1 for id in path if not flow.is_leaf(id))
    yield Text.assemble(("main path", "bold"), f"  the longest: {plural(ops, 'operation')}")
    pieces = [*(f"{station} → " for station in stations[:-1]), stations[-1]]
    lines = ["".join(pieces)] if view.width is None else pack(pieces, view.width, indent="  ")
    yield from (Text(line) for line in lines)
