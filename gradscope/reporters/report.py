"""Formats of a report and of a check.

Rows come from ``tables``, so that no two formats can disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len
from rich.text import Text

from gradscope.pages import Part
from gradscope.plugins import Format
from gradscope.records.graph import Chain, GraphNode
from gradscope.records.report import CheckReport, Finding, Report
from gradscope.records.run import ParallelRun
from gradscope.reporters.check import GITHUB, SARIF, alone, html, markdown, terminal, title
from gradscope.reporters.document import Block, Document, Drawn, Found, Nothing, Prose, formats
from gradscope.reporters.finding_lines import ordered
from gradscope.reporters.header import label, notes, run_facts
from gradscope.reporters.tables import report_tables
from gradscope.reporters.tables.charts import histogram_table, modules, panels
from gradscope.reporters.tables.columns import Scalar
from gradscope.reporters.tables.experiments import adds_up
from gradscope.reporters.tables.report_tables import lacking, tables, transformer_tables
from gradscope.reporters.views import View
from gradscope.typeset.console import Line, dimmed
from gradscope.typeset.numbers import count, number, plural, seconds, shape, size
from gradscope.typeset.tables import GAP
from gradscope.typeset.text import csv_table, join, plain

#: Up to this many operations between a leaf and its user are beside the leaf: ``weight → T``.
_INLINE = 3
AGAIN, BELOW = "↑", "↓"


@dataclass(frozen=True, slots=True)
class ChainLine:
    """One node: the tree's strokes, the operation, the module that made it, leaves that feed it."""

    strokes: str
    operation: str
    module: str = ""
    leaves: tuple[str, ...] = ()


@dataclass(slots=True)
class _Walk:
    nodes: dict[int, GraphNode]
    children: dict[int, list[int]]
    consumers: Counter[int]
    height: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)


def chain_title(chain: Chain) -> str:
    """Return the title of a chain: its start and its length."""
    kinds = Counter("operations" if node.kind == "function" else "leaves" for node in chain.nodes)
    start = label(chain.name, chain.call) + (f" → {plain(chain.path)}" if chain.path else "")
    sizes = (
        f"{plural(kinds['operations'], 'operation')}, {plural(kinds['leaves'], 'leaf', 'leaves')}"
    )
    return f"chain of {start}: {sizes}"


def lines(chain: Chain) -> list[ChainLine]:
    """Yield the lines of the chain, from its root to its leaves."""
    if not chain.nodes:
        return [ChainLine("", "no grad_fn: this output needs no gradient")]
    walk = _prepare(chain)
    found: list[ChainLine] = []
    for start in walk.nodes:
        # Only a damaged file has nodes that the root does not reach: nodes in a cycle.
        if start not in walk.done:
            walk.consumers[start] = 1
            found += _descend(walk, start)
    return found


def unbroken(lines: Sequence[ChainLine]) -> Iterator[str]:
    """Yield the lines as text of any width."""
    for line in lines:
        parts = (line.strokes + line.operation, line.module, " · ".join(line.leaves))
        yield "  ".join(part for part in parts if part)


def legend(lines: Sequence[ChainLine]) -> list[str]:
    """Return explanations of the arrows that occur."""
    signs = {text.split(" ")[0] for text in (line.operation for line in lines)}
    again = any(leaf.endswith(AGAIN) or f"{AGAIN} →" in leaf for x in lines for leaf in x.leaves)
    below = [f"{BELOW} #n: leads on to the node #n below"] if BELOW in signs else []
    return below + ([f"{AGAIN}: already shown above"] if again or AGAIN in signs else [])


def _prepare(chain: Chain) -> _Walk:
    """Return children, consumers and height of each node upstream of the root."""
    known = {node.id: node for node in chain.nodes}
    children: dict[int, list[int]] = {}
    consumers: Counter[int] = Counter()
    stack = [chain.nodes[0].id]
    while stack:
        id = stack.pop()
        if id in children:
            continue
        children[id] = list(
            dict.fromkeys(edge[0] for edge in known[id].to if edge and edge[0] in known)
        )
        consumers.update(children[id])
        stack += children[id]
    nodes = {id: node for id, node in known.items() if id in children}
    modules = {(node.module, node.call) for node in nodes.values()}
    several = Counter(module for module, _ in modules if module is not None)
    walk = _Walk(nodes, children, consumers)
    walk.repeated = {module for module, calls in several.items() if calls > 1}
    for id in reversed(_sorted(walk, chain.nodes[0].id)):
        walk.height[id] = 1 + max((walk.height.get(child, 0) for child in children[id]), default=0)
    return walk


def _sorted(walk: _Walk, root: int) -> list[int]:
    """Return the nodes with every consumer before its inputs."""
    waiting = Counter(walk.consumers)
    ready, found = [root], []
    while ready:
        id = ready.pop()
        found.append(id)
        for child in walk.children[id]:
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(child)
    return found


def _descend(walk: _Walk, start: int) -> Iterator[ChainLine]:
    stack = [(start, "", "")]
    while stack:
        id, strokes, below = stack.pop()
        if id in walk.done:
            yield ChainLine(strokes, f"{AGAIN} {_mention(walk, id)}")
            continue
        walk.consumers[id] -= 1
        if walk.consumers[id] > 0:
            yield ChainLine(strokes, f"{BELOW} {_mention(walk, id)}")
            continue
        walk.done.add(id)
        leaves, rest = _split(walk, id)
        node, number = walk.nodes[id], walk.numbers.get(id)
        operation = plain(node.op) if node.kind == "function" else _leaf(node)
        module = "" if node.module is None else label(node.module, _call(walk, node))
        yield ChainLine(strokes, f"#{number} {operation}" if number else operation, module, leaves)
        if rest:
            trunk = max(rest, key=lambda child: walk.height.get(child, 0))
            branches = [child for child in rest if child != trunk]
            stack.append((trunk, below, below))
            stack += [(child, below + "├ ", below + "│ ") for child in reversed(branches)]


def _call(walk: _Walk, node: GraphNode) -> int | None:
    return node.call if node.module in walk.repeated else 0


def _mention(walk: _Walk, id: int) -> str:
    if id not in walk.numbers and id not in walk.done:
        walk.numbers[id] = len(walk.numbers) + 1
    number = f"#{walk.numbers[id]} " if id in walk.numbers else ""
    node = walk.nodes[id]
    return number + (plain(node.op) if node.kind == "function" else _leaf(node))


def _split(walk: _Walk, id: int) -> tuple[tuple[str, ...], list[int]]:
    """Split a node's children into leaves, written beside it, and operations, with their own
    lines."""
    leaves, rest = [], []
    for child in walk.children[id]:
        path, end = _run(walk, child, walk.nodes[id].module)
        if end is None:
            rest.append(child)
            continue
        name = (
            _leaf(walk.nodes[end]) if end not in walk.done else f"{_leaf(walk.nodes[end])} {AGAIN}"
        )
        walk.done.update([*path, end])
        leaves.append(" → ".join([name, *(plain(walk.nodes[p].op) for p in reversed(path))]))
    return tuple(leaves), rest


def _run(walk: _Walk, id: int, module: str | None) -> tuple[list[int], int | None]:
    """Return the few operations from here to a leaf, if the same module made them and none
    branches."""
    path: list[int] = []
    while walk.nodes[id].kind == "function":
        straight = len(walk.children[id]) == 1 and walk.consumers[id] == 1 and id not in walk.done
        elsewhere = walk.nodes[id].module not in (module, None)
        if not straight or elsewhere or len(path) == _INLINE:
            return path, None
        path.append(id)
        id = walk.children[id][0]
    return path, id


def _leaf(node: GraphNode) -> str:
    sizes = "" if node.shape is None else f" {shape(node.shape)}"
    if node.name is None:
        return plain(node.op) + sizes
    return f"{'input ' if node.kind == 'input' else ''}{plain(node.name)}{sizes}"


def drawn(chain: Chain, width: int | None) -> Drawn:
    """Draw operations, modules and leaves beside each other, as far as the width allows."""
    found = lines(chain)
    texts = [Text(chain_title(chain), "bold"), *_rows(found, width)]
    return Drawn(texts, chain_title(chain), list(unbroken(found)), legend(found))


def _rows(lines: Sequence[ChainLine], width: int | None) -> Iterator[Text]:
    second = max(cell_len(line.strokes + line.operation) for line in lines) + GAP
    third = second + max(cell_len(line.module) for line in lines) + GAP
    widest = max((cell_len(leaf) for line in lines for leaf in line.leaves), default=0)
    room = None if width is None else width - third
    for line in lines:
        node = Text.assemble((line.strokes, "dim"), line.operation)
        node.append(" " * (second - node.cell_len) + line.module)
        below = line.strokes.replace("├", "│")
        if room is None or room >= widest:
            first, *further = join(line.leaves, room) or [""]
            yield node.append(" " * (third - node.cell_len) + first)
            for leaves in further:
                yield Text.assemble((below, "dim"), " " * (third - cell_len(below)), leaves)
        else:
            yield node
            yield from (Text.assemble((below, "dim"), f"    {leaf}") for leaf in line.leaves)
    for remark in legend(lines):
        yield from dimmed(remark, width)


def facts(report: Report) -> list[list[str]]:
    """Return the facts about the run, a list for each line; the first fact is the model."""
    run, totals = report.run, report.totals
    counted = totals.parameters or report.error is None
    first = run_facts(run, *([_parameters(report)] if counted else []))
    second = [_loss(report)]
    if run.optimizer:
        second.append(f"optimizer {plain(run.optimizer)}")
    if run.steps > 1:
        second.append(plural(run.steps, "step"))
    if report.parallel is not None:
        second.append(_parallel(report.parallel))
    if run.accumulate > 1:
        second.append(f"{plural(run.accumulate, 'micro-batch', 'micro-batches')} per step")
    if run.repeats > 1:
        second.append(f"{plural(run.repeats, 'backward')} per step")
    took = totals.seconds
    times = [
        f"{name} {seconds(t)}"
        for name, t in (("forward", took.forward), ("backward", took.backward))
        if t
    ]
    return [first, second + times]


def _parallel(run: ParallelRun) -> str:
    axes = " x ".join(f"{axis} {length}" for axis, length in run.axes.items())
    mesh = f" ({axes})" if len(run.axes) > 1 else ""
    return f"{run.kind} over {plural(run.processes, 'process', 'processes')}{mesh}"


def _parameters(report: Report) -> str:
    everything, trainable = report.totals.parameters, report.totals.trainable
    if not everything:
        return "no parameters"
    which = "all" if trainable == everything else count(trainable) if trainable else "none"
    return f"{plural(everything, 'parameter')} ({which} trainable)"


def _loss(report: Report) -> str:
    name = plain(report.run.loss) or "loss"
    if report.loss_nonfinite:
        return f"loss {name} = {plain(report.loss_nonfinite)}" + _parts(report)
    if report.loss is None:
        return "no loss yet" if name == "inferred" else f"loss {name} (no value)"
    return f"loss {name} = {number(report.loss)}" + _parts(report)


def _parts(report: Report) -> str:
    """Return a line on each of the losses from which the loss is computed."""
    if not report.losses:
        return ""
    parts = (
        f"{plain(part.name)} {plain(part.nonfinite or '') or number(part.value)}"
        for part in report.losses
    )
    return f" ({', '.join(parts)})"


def totals(report: Report) -> list[str]:
    """Return the totals of the full model in one line, whatever the tables select."""
    all_of, facts = report.totals, [_parameters(report)]
    if all_of.gradient_norm is not None:
        facts.append(f"gradient norm {number(all_of.gradient_norm)}")
    if all_of.saved_bytes is not None:
        facts.append(f"{size(all_of.saved_bytes)} saved for backward")
    calls, modules = plural(all_of.calls, "call"), plural(all_of.modules, "module")
    return [*facts, f"{calls} of {modules}" if all_of.modules else calls]


def verified(report: Report) -> Line | None:
    """Return the result of ``--verify`` on the gradients; None without it."""
    proof = report.run.verified
    if proof is None:
        return None
    difference = (
        ""
        if proof.max_difference is None
        else f" (largest difference {number(proof.max_difference)})"
    )
    if proof.identical and proof.repeatable:
        return Line(
            "gradients with and without hooks are identical, bit for bit", "verified:", "good"
        )
    if proof.identical:
        text = "the observed gradients equal a plain run's, though two plain runs differ"
        return Line(text + difference, "verified:", "good")
    if proof.repeatable:
        text = f"gradients with hooks differ from those without{difference}: please report it"
        return Line(text, "not verified:", "bad")
    text = f"two plain runs differ already{difference}, so the observed one cannot be judged"
    return Line(text, "not verified:", "warn")


def document(report: Report, view: View, format: str) -> Document:
    """Return the document of a report by the view; a page has its findings first."""
    paged = format == "html"
    found = list(_found(report, view, paged))
    histograms = list(map(histogram_table, report.histograms))
    blocks: list[Block] = [*filter(None, [report.error])]
    if paged:
        blocks += [*found, *(_charts(report) if view.table is None else ()), *histograms]
    blocks += [Nothing(text, name) for name, text in lacking(report, view)]
    blocks += tables(report, view)
    blocks += transformer_tables(report, view) if paged and view.table is None else []
    blocks += [] if paged else histograms
    blocks += [drawn(chain, view.width) for chain in report.chains]  # each was requested
    proofs = filter(None, [verified(report), adds_up(report)])
    blocks.append(Prose(list(proofs), "totals", facts=totals(report)))
    blocks += [] if paged else found
    return Document("inspect", facts(report), notes(report.run.notices), blocks, report.versions)


def _found(report: Report, view: View, paged: bool) -> Iterator[Block]:
    if report.findings:
        yield Found(report.findings)
    elif paged and view.table in (None, "findings") and report.error is None:
        yield Prose([Line("no findings", tone="good")], "findings")
    elif view.table == "findings" and not paged:
        yield Drawn([Text("no findings")])


def _charts(report: Report) -> Iterator[Part]:
    full, over_depth = modules(report), panels(report)
    if full is not None:
        yield Part("modules", full.colors, blocks=full)
    if over_depth:
        caption = "calls in their order, of the innermost modules"
        yield Part("over depth", caption, panels=over_depth)


FINDINGS = (
    *("model", "severity", "code", "rule", "name", "call", "message"),
    *("value", "threshold", "source", "cause", "location", "advice", "known"),
)


def _csv(report: Report, view: View) -> str:
    """Return one table: the calls, unless the view asks for the parameters or the findings."""
    if view.table == "findings":
        return _csv_check(alone(report), view)
    return csv_table(*report_tables.records(report, view))


def _csv_check(check: CheckReport, view: View) -> str:
    """Return a row for each finding; a run that failed is a row without a code."""
    rows: list[list[Scalar]] = []
    for model in check.models:
        whose = title(model.run)
        error = model.error
        if error is not None:
            message = f"{error.exception or error.kind}: {error.message}"
            row: list[Scalar] = [whose, "error", "", error.kind, error.name, error.call, message]
            rows.append([*row, None, None, None, None, error.location, error.advice, False])
        for known, findings in ((False, model.findings), (True, model.known)):
            rows += [[whose, *_row(f), known] for f in ordered(findings)]
    return csv_table(FINDINGS, rows)


def finding_rows(report: Report) -> list[list[Scalar]]:
    """Return a report's findings, the worst first, by ``FINDINGS`` without the model and
    ``known``."""
    return [_row(finding) for finding in ordered(report.findings)]


def _row(finding: Finding) -> list[Scalar]:
    return [getattr(finding, name) for name in FINDINGS[1:-1]]


_OF_CHECKS = {"html": html, "markdown": markdown, "terminal": terminal}
FORMATS = {
    **{
        name: replace(one, render_check=_OF_CHECKS.get(name, one.render_check))
        for name, one in formats(document).items()
    },
    "csv": Format(".csv", _csv, _csv_check),
    "github": GITHUB,
    "sarif": SARIF,
}
