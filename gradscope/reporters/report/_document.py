"""A report: its header, tables that fit the terminal, charts over depth, totals and findings."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from gradscope.pages import Part
from gradscope.records.report import Report
from gradscope.records.run import ParallelRun
from gradscope.reporters.document import Block, Document, Drawn, Found, Nothing, Said
from gradscope.reporters.header import notes, run_facts
from gradscope.reporters.report._chains import drawn
from gradscope.reporters.tables.charts import modules, panels
from gradscope.reporters.tables.experiments import adds_up
from gradscope.reporters.tables.report_tables import lacking, tables, transformer_tables
from gradscope.reporters.tables.spreads import histogram_tables
from gradscope.reporters.views import View
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, number, plural, seconds, size
from gradscope.typeset.text import plain


def facts(report: Report) -> list[list[str]]:
    """Facts about the run, a list for each line; the first fact is the model."""
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
    histograms = list(histogram_tables(report.histograms))
    blocks: list[Block] = [*filter(None, [report.error])]
    if paged:
        blocks += [*found, *(_charts(report) if view.table is None else ()), *histograms]
    blocks += [Nothing(text, name) for name, text in lacking(report, view)]
    blocks += tables(report, view)
    blocks += transformer_tables(report, view) if paged and view.table is None else []
    blocks += [] if paged else histograms
    blocks += [drawn(chain, view.width) for chain in report.chains]  # each was requested
    proofs = filter(None, [verified(report), adds_up(report)])
    blocks.append(Said(list(proofs), "totals", facts=totals(report)))
    blocks += [] if paged else found
    return Document("inspect", facts(report), notes(report.run), blocks, report.versions)


def _found(report: Report, view: View, paged: bool) -> Iterator[Block]:
    if report.findings:
        yield Found(report.findings)
    elif paged and view.table in (None, "findings") and report.error is None:
        yield Said([Line("no findings", tone="good")], "findings")
    elif view.table == "findings" and not paged:
        yield Drawn([Text("no findings")])


def _charts(report: Report) -> Iterator[Part]:
    full, over_depth = modules(report), panels(report)
    if full is not None:
        yield Part("modules", full.colors, blocks=full)
    if over_depth:
        caption = "calls in their order, of the innermost modules"
        yield Part("over depth", caption, panels=over_depth)
