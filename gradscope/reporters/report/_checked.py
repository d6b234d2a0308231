"""A check → the sentences around its findings: each model's verdict, and the sum in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from gradscope.records.report import BaselineEntry, CheckedModel, CheckReport, Report
from gradscope.records.run import RunInfo
from gradscope.reporters import header
from gradscope.reporters.finding_lines import ordered, tally
from gradscope.reporters.labels import label
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain


def alone(report: Report) -> CheckReport:
    """One run's report as a check of one model, for formats that hold findings only."""
    model = CheckedModel(
        status=report.status,
        run=report.run,
        config=report.config,
        findings=report.findings,
        error=report.error,
    )
    return CheckReport(status=report.status, versions=report.versions, models=(model,))


#: How a notice begins that an "ok" would be false without.
NOT_JUDGED = "leaks not judged: "


def title(run: RunInfo) -> str:
    """What the user called the model; a config with its folder, for two may share a name."""
    if run.file is not None and PurePath(run.file).name == run.model:
        return plain(run.file)
    return plain(run.model) or "model"


def verdict(model: CheckedModel) -> Line:
    """The model, how many findings of which severity, and the loss that it was judged by.

    The line is all that a sound one gets.
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
    """What was inferred or mended on the way, where it bears on a finding."""
    return header.notes(model.run) if model.findings or model.error else []


def summary(check: CheckReport) -> str:
    """All models in one line, with the number of rules."""
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
    """The baseline's entries that no finding answers to any more."""
    if not check.stale:
        return
    named = plural(len(check.stale), "entry", "entries")
    answers = "answers" if len(check.stale) == 1 else "answer"
    yield (
        f"{named} of {plain(check.baseline or 'the baseline')} {answers} to nothing any more: "
        f"{', '.join(map(entry, check.stale))}"
    )


def entry(of: BaselineEntry) -> str:
    """A baseline's entry in a sentence."""
    cause = f" {plain(of.cause)}" if of.cause else ""
    return f"{plain(of.model)} {plain(of.code)} {label(of.name)}{cause}"


def next_command(check: CheckReport) -> str | None:
    """How to read more about the rule of the worst finding."""
    found = ordered([finding for model in check.models for finding in model.findings])
    return f"about a rule: `gradscope rules {plain(found[0].code)}`" if found else None
