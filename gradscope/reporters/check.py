"""A check of several models: the verdict of each with its findings, and the sum in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from rich.text import Text

from gradscope import pages
from gradscope.pages import Page, Part, items, table_part
from gradscope.records.report import BaselineEntry, CheckedModel, CheckReport, Report
from gradscope.records.run import RunInfo
from gradscope.reporters import header
from gradscope.reporters.document import (
    bullets,
    error_block,
    escaped,
    finding_items,
    found_items,
    table_block,
)
from gradscope.reporters.finding_lines import error_lines, every_line, ordered, tally
from gradscope.reporters.header import label
from gradscope.reporters.tables.charts import PRECISION_LEGEND, precision_tables
from gradscope.reporters.views import View
from gradscope.typeset.console import Line, dimmed, paragraphs, printed, prose, table_lines
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain


def alone(report: Report) -> CheckReport:
    """Return one run's report as a check of one model, for formats with findings only."""
    model = CheckedModel(
        status=report.status,
        run=report.run,
        config=report.config,
        findings=report.findings,
        error=report.error,
    )
    return CheckReport(status=report.status, versions=report.versions, models=(model,))


#: Beginning of a notice without which an "ok" would be false.
NOT_JUDGED = "leaks not judged: "


def title(run: RunInfo) -> str:
    """Return the user's name of the model; a config with its folder, as two may share a name."""
    if run.file is not None and PurePath(run.file).name == run.model:
        return plain(run.file)
    return plain(run.model) or "model"


def verdict(model: CheckedModel) -> Line:
    """Return the model, its number of findings by severity, and the loss used.

    A model without findings gets this line alone.
    """
    counts = tally(model.findings)
    tone = "bad" if model.error or any(f.severity == "error" for f in model.findings) else ""
    tone = tone or ("warn" if any(f.severity == "warning" for f in model.findings) else "good")
    if model.error is not None:
        counts = ["failed", *counts]
    known = f" ({plural(len(model.known), 'known finding')})" if model.known else ""
    parts = [(", ".join(counts) or "ok") + known, *header.loss_facts(model.run)]
    parts += [plain(one) for one in model.run.notices if one.startswith(NOT_JUDGED)]
    return Line(" · ".join(parts), f"{title(model.run)}:", tone)


def notes(model: CheckedModel) -> list[str]:
    """Return the notices on inferred or adjusted settings, if there is a finding or an error."""
    return header.notes(model.run) if model.findings or model.error else []


def summary(check: CheckReport) -> str:
    """Return the summary of all models in one line, with the number of rules."""
    findings = [finding for model in check.models for finding in model.findings]
    failed = sum(model.error is not None for model in check.models)
    known = sum(len(model.known) for model in check.models)
    facts = [plural(len(check.models), "model")]
    facts += tally(findings) or ["no findings"]
    if failed:
        facts.append(f"{failed} failed")
    text = ", ".join(facts)
    if check.rules:
        text += f"; {plural(len(check.rules), 'rule')} ran"
        if check.models and all(model.run.device == "meta" for model in check.models):
            text += "; rules on values found none on the device `meta`"
    if known:
        text += f"; {plural(known, 'finding')} in the baseline not counted"
    return text


def stale(check: CheckReport) -> Iterator[str]:
    """Yield the baseline's entries that match no finding any more."""
    if not check.stale:
        return
    named = plural(len(check.stale), "entry", "entries")
    match = "matches" if len(check.stale) == 1 else "match"
    yield (
        f"{named} of {plain(check.baseline or 'the baseline')} {match} no finding any more: "
        f"{', '.join(map(entry, check.stale))}"
    )


def entry(of: BaselineEntry) -> str:
    """A baseline's entry in a sentence."""
    cause = f" {plain(of.cause)}" if of.cause else ""
    return f"{plain(of.model)} {plain(of.code)} {label(of.name)}{cause}"


def next_command(check: CheckReport) -> str | None:
    """Return the command for more about the rule of the worst finding."""
    found = ordered([finding for model in check.models for finding in model.findings])
    return f"about a rule: `gradscope rules {plain(found[0].code)}`" if found else None


def terminal(check: CheckReport, view: View) -> str:
    """Write each model's findings, then the summary; a model without findings is one line."""
    lines: list[Text] = []
    for model in check.models:
        block = list(_texts(model, view))
        # Those of one line stand together.
        spaced = lines and (len(block) > 1 or not lines[-1].plain)
        lines += [Text(), *block] if spaced and lines[-1].plain else block
        if len(block) > 1:
            lines.append(Text())
    lines += _sum(check, view)
    return printed(lines, width=view.width, color=view.color)


def _texts(model: CheckedModel, view: View) -> Iterator[Text]:
    yield from prose(verdict(model), view.width)
    for note in notes(model):
        yield from dimmed(note, view.width)
    yield from paragraphs(error_lines(model.error), view.width)
    yield from paragraphs(every_line(model.findings), view.width)
    for table in precision_tables(model.precision, view.top):
        yield Text()
        if table.rows:
            yield from table_lines(table, view.width)
        else:
            yield Text.assemble((table.title, "bold"), f"  {table.caption}")
            for remark in table.legend:
                yield from dimmed(remark, view.width)
    if model.precision:
        yield Text()
        for remark in PRECISION_LEGEND:
            yield from dimmed(remark, view.width)


def _sum(check: CheckReport, view: View) -> Iterator[Text]:
    for remark in stale(check):
        yield from prose(Line(remark, "note:"), view.width)
    yield from prose(Line(summary(check)), view.width)
    more = next_command(check)
    if more:
        yield from dimmed(more, view.width)


def markdown(check: CheckReport, view: View) -> str:
    """Write the summary first, then each model, for a comment on a pull request."""
    return "\n\n".join(_verdicts(check, view)) + "\n"


def _verdicts(check: CheckReport, view: View) -> Iterator[str]:
    yield "## gradscope check"
    yield escaped(summary(check))
    for model in check.models:
        line = verdict(model)
        yield f"### {escaped(line.lead)} {escaped(line.text)}"
        if notes(model):
            yield bullets(map(escaped, notes(model)))
        if model.error is not None:
            yield error_block(model.error)
        if model.findings:
            yield "\n".join(found_items(model.findings))
        for table in precision_tables(model.precision, view.top):
            if table.rows:
                yield table_block(table).replace("### ", "#### ", 1)
            else:
                caption = " · ".join((table.caption, *table.legend))
                yield f"#### {table.title.capitalize()} ({escaped(caption)})"
        if model.precision:
            yield "\n\n".join(map(escaped, PRECISION_LEGEND))
    yield from map(escaped, stale(check))


def html(check: CheckReport, view: View) -> str:
    """Write the summary first, then each model."""
    made = [part for model in check.models for part in _model(model, view)]
    remarks = tuple(stale(check))
    last = [Part("baseline", remarks=remarks)] if remarks else []
    whose = title(check.models[0].run) if len(check.models) == 1 else "models"
    parts = [*made, *last]
    return pages.render(Page("check", whose, ([summary(check)],), (), parts, check.versions))


def _model(model: CheckedModel, view: View) -> Iterator[Part]:
    line = verdict(model)
    yield Part(
        line.lead.removesuffix(":"),
        line.text,
        items=(*items(error_lines(model.error)), *finding_items(model.findings)),
        remarks=tuple(notes(model)),
    )
    for table in precision_tables(model.precision, view.top):
        yield (
            table_part(table)
            if table.rows
            else Part(table.title, table.caption, remarks=table.legend)
        )
    if model.precision:
        yield Part("terms", remarks=PRECISION_LEGEND)
