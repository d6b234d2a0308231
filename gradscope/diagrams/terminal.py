"""Renders a graph as text for people: its main path, a tree by module, paths between named nodes as
tables, and absent names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.text import Text

from gradscope.diagrams._tree import gradient, mark_words, saved, table
from gradscope.diagrams.graph import GraphView
from gradscope.diagrams.graph.flow import Flow, Route, main_path, read_flow, routes
from gradscope.diagrams.graph.groups import Group, chain, grouped, opened, operation, start, title
from gradscope.diagrams.graph.lookup import Lookup, NamedNode, answered
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.reporters.finding_lines import error_lines
from gradscope.reporters.header import header, run_facts, some_names
from gradscope.typeset.console import Line, paragraphs, printed, prose, stacked, table_lines
from gradscope.typeset.numbers import count, number, plural, shape, size
from gradscope.typeset.sparklines import log_bars
from gradscope.typeset.tables import Heading, Table, of_columns
from gradscope.typeset.text import pack, plain

#: Number of targets shown for a pattern.
_SHOWN = 5
#: Longer numbers of paths are given as a power of ten.
_DIGITS = 12


def blocks(graph: AutogradGraph, view: GraphView, flow: Flow) -> Iterator[Iterable[Text]]:
    """Yield a table for each target, or for the part between; for a pattern, only its first few
    matches.

    Raises:
        OptionError: a name is neither in the graph nor in the model.
    """
    names = Lookup(graph, flow)
    sources, lost = _places(names, view.sources or (graph.start,))
    targets, missing = _places(names, view.targets)
    absent_names = list(dict.fromkeys((*lost, *missing)))
    yield paragraphs(cut(graph, absent_names), view.width)
    if not sources:
        return
    shown = targets if view.targets else sources
    for place in shown[:_SHOWN]:
        if view.targets:
            yield _one(graph, view, flow, sources, place)
        else:
            yield _longest(graph, view, flow, place)
    if len(shown) > _SHOWN:
        more = count(len(shown) - _SHOWN)
        yield [Text(f"… {more} more match: narrow the pattern")]


def _places(names: Lookup, words: Iterable[str]) -> tuple[list[NamedNode], list[str]]:
    """Return the nodes that the words name, and the names that the graph lacks."""
    found: list[NamedNode] = []
    missing: list[str] = []
    for word in words:
        found += names.nodes(word)
        missing += names.absent(word)
    return list(dict.fromkeys(found)), list(dict.fromkeys(missing))


def _longest(
    graph: AutogradGraph, view: GraphView, flow: Flow, source: NamedNode
) -> Iterator[Text]:
    """Yield the longest path from a place; there may be thousands of others."""
    path = tuple(main_path(flow, source.id))
    ops = sum(1 for id in path if not flow.is_leaf(id))
    begin = plain(source.name)
    caption = f"longest path from {begin} ({plural(ops, 'operation')})"
    ends = f"{begin} → {operation(flow.nodes[path[-1]])}:"
    yield from _shown(graph, view, flow, Route(path, 1, ops, ops), Line(caption, ends, "head"))


def _one(
    graph: AutogradGraph, view: GraphView, flow: Flow, sources: list[NamedNode], target: NamedNode
) -> Iterator[Text]:
    begin = ", ".join(dict.fromkeys(plain(place.name) for place in sources[:_SHOWN]))
    end = plain(target.name)
    route = routes(graph, (place.id for place in sources), target.id, flow)
    if route is not None:
        head = Line(_caption(route), f"{begin} → {end}:", "head")
        yield from _shown(graph, view, flow, route, head)
        return
    back = routes(graph, [target.id], sources[0].id, flow) if len(sources) == 1 else None
    reason = (
        f"{end} lies before {begin}: gradients flow from {end} to {begin}"
        if back
        else f"no path: {end} is not upstream of {begin}"
    )
    yield from prose(Line(reason, f"{begin} → {end}:", "warn"), view.width)


def _shown(
    graph: AutogradGraph, view: GraphView, flow: Flow, route: Route, head: Line
) -> Iterator[Text]:
    yield from prose(head, view.width)
    lines = table_lines(_table(graph, view, flow, route), view.width)
    next(lines)  # its title could not wrap
    yield from lines


def _table(graph: AutogradGraph, view: GraphView, flow: Flow, route: Route) -> Table:
    nodes = [flow.nodes[id] for id in route.nodes]
    several = {name for name, n in Counter(call.name for call in graph.calls).items() if n > 1}
    figures = [n.saved_bytes if view.by == "saved" else n.grad_norm for n in nodes]
    columns = [
        (Heading("operation", False), [title(node) for node in nodes]),
        (Heading("module", False, 90), [_module(node, several) for node in nodes]),
        (Heading("shape", False, 60), [_shape(node) for node in nodes]),
        (Heading("saved", keep=80 if view.by == "saved" else 30), [_saved(node) for node in nodes]),
        (Heading("grad", keep=95), [gradient(n.grad_norm, n.grad_nonfinite) for n in nodes]),
        (Heading("log scale", False, 50), log_bars(figures)),
        (Heading("location", False, 70), [plain(node.location or "") for node in nodes]),
        (Heading("frontier", False, 99), [_mark(flow, id) for id in route.nodes]),
    ]
    return of_columns("", columns)


def _caption(route: Route) -> str:
    low, high = route.shortest, route.longest
    if route.count == 1:
        return f"the only path ({plural(high, 'operation')})"
    many = count(route.count) if route.count < 10**_DIGITS else f"about 10^{_digits(route.count)}"
    span = (
        f"{count(low)} to {plural(high, 'operation')}"
        if low != high
        else f"each {plural(low, 'operation')}"
    )
    return f"shortest of {many} paths ({span})"


def _digits(n: int) -> int:
    """Return the exponent of the next lower power of ten.

    Python refuses ``str`` of an integer with thousands of digits.
    """
    return int((n.bit_length() - 1) * 0.30102999566398120)


def _module(node: GraphNode, several: set[str]) -> str:
    if node.kind != "function":
        return f"({node.kind})"
    if node.module is None:
        return ""
    name = plain(node.module) or "(model)"
    return f"{name} #{node.call}" if node.module in several else name


def _shape(node: GraphNode) -> str:
    return "" if node.shape is None else shape(node.shape)


def _saved(node: GraphNode) -> str:
    return saved(node.saved_bytes) if node.kind == "function" else ""


def _mark(flow: Flow, id: int) -> str:
    return mark_words(flow.marks[id]) if id in flow.marks else ""


#: Number of names shown for a cause.
_NAMES = 3


def absent(graph: AutogradGraph) -> Iterator[Line]:
    """Yield lines on parameters without a gradient: each cause with its place, and the frozen
    ones."""
    if not graph.complete:  # the rest is unknown
        return
    inside = {node.name for node in graph.nodes if node.kind == "parameter"}
    answered_names = {name for a in graph.answers for name in (a.name, *a.upstream)}
    explained = {*inside, *graph.frozen, *answered_names}
    silent = [name for name in graph.names if name not in explained]
    if graph.answers or silent or graph.frozen:
        yield Line("", "not in the graph", "head")
    for answer in graph.answers:
        yield from answer_lines(answer)
    if silent:
        yield Line(f"no path from {start(graph)} leads there", f"{some_names(silent, _NAMES)}:")
    if graph.frozen:
        yield Line(
            f"{plural(len(graph.frozen), 'parameter tensor')}, requires_grad is False", "frozen:"
        )


def cut(graph: AutogradGraph, names: Sequence[str]) -> Iterator[Line]:
    """Yield lines on requested names that are not in the graph, each cause once."""
    if not names:
        return
    yield Line("", "not in the graph", "head")
    if not graph.complete:
        yield Line("the run stopped before there was an answer", f"{some_names(names, _NAMES)}:")
        return
    explained: set[str] = set()
    for answer in answered(graph, names):
        explained |= {answer.name, *answer.upstream}
        yield from answer_lines(answer)
    frozen = [name for name in names if name in graph.frozen and name not in explained]
    if frozen:
        yield Line("requires_grad is False", f"{some_names(frozen, _NAMES)} (frozen):")
    silent = [name for name in names if name not in explained and name not in graph.frozen]
    if silent:
        yield Line(f"no path from {start(graph)} leads there", f"{some_names(silent, _NAMES)}:")


def answer_lines(answer: Answer) -> Iterator[Line]:
    """Yield one cause: its names, its kind and place, its fix."""
    names = answer.upstream or (answer.name,)
    message = plain(answer.message)
    module = plain(answer.module or "")
    if module and module not in message:
        message += f", in {module}"
    if answer.location and plain(answer.location) not in message:
        message += f" ({plain(answer.location)})"
    yield Line(
        message, f"{some_names(names, _NAMES)} ({plain(answer.cause or answer.state)}):", "warn"
    )
    if answer.advice:
        yield Line(plain(answer.advice), "help:", indent=1)


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
        yield from blocks(graph, view, flow)
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
