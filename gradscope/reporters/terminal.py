"""A report as text for people: a header, tables that fit the terminal, totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.records import Chain, Report
from gradscope.reporters import _chains, _summary, _tables
from gradscope.reporters._calls import label
from gradscope.reporters._layout import GAP, lay_out, plan
from gradscope.reporters._summary import Line
from gradscope.reporters._tables import Table
from gradscope.reporters._text import break_words, join, plain
from gradscope.reporters._view import View

suffix = ".txt"

_STYLES = {"head": "bold", "dim": "dim", "bad": "bold red", "warn": "yellow", "good": "green"}


def render(report: Report, view: View) -> str:
    """The report at the view's width; without one nothing is hidden and nothing breaks."""
    blocks = [list(block) for block in _blocks(report, view)]
    lines = [line for block in blocks if block for line in (Text(), *block)][1:]
    return _print(lines, view)


def _blocks(report: Report, view: View) -> Iterator[Iterable[Text]]:
    yield _header(report, view)
    yield [text for line in _summary.error(report) for text in _prose(line, view)]
    if view.table != "parameters":
        yield (
            _table(_tables.calls(report, view), view)
            if report.calls
            else [Text("no calls were recorded")]
        )
    if view.table != "calls" and report.parameters:
        yield _table(_tables.parameters(report, view), view)
    if view.table is None:
        steps = _tables.history(report)
        if steps:
            yield _table(steps, view)
    for chain in report.chains:  # somebody asked for each of them
        yield _chain(chain, view)
    proof = _summary.verified(report)
    yield [
        *(Text(line) for line in join(_summary.totals(report), view.width)),
        *(_prose(proof, view) if proof else []),
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
        yield from (
            Text(line, "dim") for line in break_words(f"note: {notice}", view.width, indent="  ")
        )


def _prose(line: Line, view: View) -> Iterator[Text]:
    """A line of prose, broken at spaces; its lead carries the tone."""
    margin = "  " * line.indent
    whole = f"{line.lead} {line.text}" if line.lead else line.text
    room = None if view.width is None else max(1, view.width - len(margin))
    for i, part in enumerate(break_words(whole, room, indent="  ")):
        lead = line.lead if i == 0 and part.startswith(line.lead) else ""
        style = _STYLES.get(line.tone, "bold")
        yield Text.assemble(margin, (lead, style), part[len(lead) :])


def _table(table: Table, view: View) -> Iterator[Text]:
    laid = plan(table, view.width)
    yield Text.assemble((table.title, "bold"), f"  {table.caption}" if table.caption else "")
    for cells in lay_out(table, laid):
        yield Text(" " * GAP).join(Text(cell.text, _STYLES.get(cell.tone, "")) for cell in cells)
    if laid.hidden:
        said = f"hidden at this width: {', '.join(laid.hidden)} ({table.remedy})"
        yield from (Text(line, "dim") for line in break_words(said, view.width, indent="  "))
    for remark in table.legend:
        yield from (Text(line, "dim") for line in break_words(remark, view.width, indent="  "))


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
        yield from (Text(text, "dim") for text in break_words(remark, view.width, indent="  "))


def _findings(report: Report, view: View) -> Iterator[Text]:
    found = _summary.findings(report)
    if not found:
        return
    yield Text("findings", "bold")
    for finding, message, advice in found:
        place = label(finding.name, finding.call)
        lead = f"{plain(finding.code)} {plain(finding.severity)}"
        yield from _prose(Line(f"{place}: {message.text}", lead, message.tone), view)
        if advice:
            yield from _prose(Line(advice.text, advice.lead, indent=1), view)


def _print(lines: Iterable[Text], view: View) -> str:
    """The one place that writes: rich only translates styles, it neither wraps nor cuts."""
    out = StringIO()
    console = Console(
        file=out,
        width=view.width or 80,
        force_terminal=view.color,
        color_system="standard" if view.color else None,
        no_color=not view.color,
        force_jupyter=False,
        legacy_windows=False,
    )
    for line in lines:
        line.rstrip()
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
    return out.getvalue()
