"""A report as text for people: a header, tables that fit the terminal, totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.text import Text

from gradscope.records.graph import Chain
from gradscope.records.report import CheckedModel, CheckReport, Report
from gradscope.reporters import finding_lines
from gradscope.reporters.errors import error_lines
from gradscope.reporters.header import header
from gradscope.reporters.report import _chains, _checked, _histograms, _precision, _summary
from gradscope.reporters.report._view import View
from gradscope.reporters.report.tables.accumulation import verdict
from gradscope.reporters.report.tables.table_order import NO_CALLS, lacks_calls, tables
from gradscope.typeset.console import (
    Line,
    dimmed,
    paragraphs,
    printed,
    prose,
    stacked,
    table_lines,
)
from gradscope.typeset.tables import GAP
from gradscope.typeset.text import join

suffix = ".txt"


def render(report: Report, view: View) -> str:
    """The report at the view's width; without one nothing is hidden and nothing breaks."""
    return printed(stacked(_blocks(report, view)), width=view.width, color=view.color)


def render_check(check: CheckReport, view: View) -> str:
    """Each model's findings, and the sum; a model without any is one line."""
    lines: list[Text] = []
    for model in check.models:
        block = list(_verdict(model, view))
        # Those of one line stand together.
        spaced = lines and (len(block) > 1 or not lines[-1].plain)
        lines += [Text(), *block] if spaced and lines[-1].plain else block
        if len(block) > 1:
            lines.append(Text())
    lines += _sum(check, view)
    return printed(lines, width=view.width, color=view.color)


def _blocks(report: Report, view: View) -> Iterator[Iterable[Text]]:
    yield header(report.run, _summary.facts(report), view.width)
    yield paragraphs(error_lines(report.error), view.width)
    if lacks_calls(report, view):
        yield [Text(NO_CALLS)]
    for table in (*tables(report, view), *_histograms.tables(report.histograms)):
        yield table_lines(table, view.width)
    for chain in report.chains:  # each was requested
        yield _chain(chain, view)
    proofs = [line for line in (_summary.verified(report), verdict(report)) if line is not None]
    yield [
        *(Text(line) for line in join(_summary.totals(report), view.width)),
        *(line for proof in proofs for line in prose(proof, view.width)),
    ]
    if report.findings:
        yield [
            Text("findings", "bold"),
            *paragraphs(finding_lines.every_line(report.findings), view.width),
        ]
    elif view.table == "findings":
        yield [Text("no findings")]


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


def _verdict(model: CheckedModel, view: View) -> Iterator[Text]:
    yield from prose(_checked.verdict(model), view.width)
    for note in _checked.notes(model):
        yield from dimmed(note, view.width)
    yield from paragraphs(error_lines(model.error), view.width)
    yield from paragraphs(finding_lines.every_line(model.findings), view.width)
    for table in _precision.tables(model.precision, view.top):
        yield Text()
        if table.rows:
            yield from table_lines(table, view.width)
        else:
            yield Text.assemble((table.title, "bold"), f"  {table.caption}")
            for remark in table.legend:
                yield from dimmed(remark, view.width)
    if model.precision:
        yield Text()
        for remark in _precision.LEGEND:
            yield from dimmed(remark, view.width)


def _sum(check: CheckReport, view: View) -> Iterator[Text]:
    for remark in _checked.stale(check):
        yield from prose(Line(remark, "note:"), view.width)
    yield from prose(Line(_checked.summary(check)), view.width)
    more = _checked.next_command(check)
    if more:
        yield from dimmed(more, view.width)
