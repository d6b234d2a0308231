"""A report as text for people: a header, tables that fit the terminal, totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.text import Text

from gradscope.records import Chain, Report
from gradscope.reporters import _chains, _summary, _tables
from gradscope.reporters._calls import label
from gradscope.reporters._view import View
from gradscope.typeset.console import Line, dimmed, printed, prose, table_lines
from gradscope.typeset.tables import GAP
from gradscope.typeset.text import join, plain

suffix = ".txt"


def render(report: Report, view: View) -> str:
    """The report at the view's width; without one nothing is hidden and nothing breaks."""
    blocks = [list(block) for block in _blocks(report, view)]
    lines = [line for block in blocks if block for line in (Text(), *block)][1:]
    return printed(lines, width=view.width, color=view.color)


def _blocks(report: Report, view: View) -> Iterator[Iterable[Text]]:
    yield _header(report, view)
    yield [text for line in _summary.error(report) for text in prose(line, view.width)]
    if view.table != "parameters":
        yield (
            table_lines(_tables.calls(report, view), view.width)
            if report.calls
            else [Text("no calls were recorded")]
        )
    if view.table != "calls" and report.parameters:
        yield table_lines(_tables.parameters(report, view), view.width)
    if view.table is None:
        steps = _tables.history(report)
        if steps:
            yield table_lines(steps, view.width)
    for chain in report.chains:  # somebody asked for each of them
        yield _chain(chain, view)
    proof = _summary.verified(report)
    yield [
        *(Text(line) for line in join(_summary.totals(report), view.width)),
        *(prose(proof, view.width) if proof else []),
    ]
    yield _findings(report, view)


def _header(report: Report, view: View) -> Iterator[Text]:
    first, *further = _summary.header(report)
    for i, line in enumerate(join(first, view.width)):
        name = first[0] if i == 0 and line.startswith(first[0]) else ""
        yield Text.assemble((name, "bold"), line[len(name) :])
    for facts in further:
        yield from (Text(line) for line in join(facts, view.width))
    for notice in _summary.notices(report):
        yield from dimmed(f"note: {notice}", view.width)


def _chain(chain: Chain, view: View) -> Iterator[Text]:
    lines = _chains.lines(chain)
    yield Text(_chains.title(chain), "bold")
    second = max(cell_len(line.strokes + line.operation) for line in lines) + GAP
    third = second + max(cell_len(line.module) for line in lines) + GAP
    widest = max((cell_len(leaf) for line in lines for leaf in line.leaves), default=0)
    room = None if view.width is None else view.width - third
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
    for remark in _chains.legend(lines):
        yield from dimmed(remark, view.width)


def _findings(report: Report, view: View) -> Iterator[Text]:
    found = _summary.findings(report)
    if not found:
        return
    yield Text("findings", "bold")
    for finding, message, advice in found:
        place = label(finding.name, finding.call)
        lead = f"{plain(finding.code)} {plain(finding.severity)}"
        yield from prose(Line(f"{place}: {message.text}", lead, message.tone), view.width)
        if advice:
            yield from prose(Line(advice.text, advice.lead, indent=1), view.width)
