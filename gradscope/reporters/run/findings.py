"""Findings, events and news of a run: the steps of each, and the origin of a NaN or Inf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.report import CheckedModel, CheckReport, Finding
from gradscope.records.run import RunInfo
from gradscope.records.tensors import TensorStats
from gradscope.records.training import RunHistory, TrainingEvent, TrainingFinding
from gradscope.reporters import finding_lines
from gradscope.reporters.finding_lines import Beside, Known, also, grouped, lead, place
from gradscope.reporters.header import label, listed, some_names, stretches
from gradscope.reporters.run import summary
from gradscope.reporters.run.naming import qualified
from gradscope.reporters.run.summary import facts_of_step, title
from gradscope.reporters.verdict import NOTHING_RECORDED, no_problem, not_enough
from gradscope.rules import Cause, explanations, folded
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, number, plural, shape
from gradscope.typeset.text import plain

#: Tone of each kind of event that is trouble; the others have none.
_TONES = {
    "failed": "bad",
    "non-finite": "bad",
    "unused-parameters": "bad",
    "skipped-step": "warn",
    "capsule": "warn",
}


#: A page has so many lines of events; the table of events has all.
MOST = 12


def event_lines(
    events: Sequence[TrainingEvent], *, full: bool = True, option: str = "--table events"
) -> Iterator[Line]:
    """Yield a line for each event; events that differ only in figures share one.

    A page has the first lines; ``option`` shows all.
    """
    event_lines = list(_folded_events(events))
    if full or len(event_lines) <= MOST:
        yield from event_lines
        return
    yield from event_lines[:MOST]
    yield Line(f"… {count(len(event_lines) - MOST)} more: `{option}` shows all")


def _folded_events(events: Sequence[TrainingEvent]) -> Iterator[Line]:
    groups: dict[tuple[str, str], list[TrainingEvent]] = {}
    for event in events:
        groups.setdefault((event.kind, re.sub(r"\d+", "#", event.message)), []).append(event)
    for alike in groups.values():
        first, last = alike[0], alike[-1]
        kind = plain(first.kind)
        text = plain(first.message) or kind
        if len(alike) > 1:
            text += f" ({plural(len(alike), 'time')}, the last at step {count(last.step)})"
        lead = f"step {count(first.step)}" + (f", {kind}:" if text != kind else ":")
        yield Line(text, lead, _TONES.get(first.kind, ""))


#: Number of layers named to which a NaN spread.
_NAMES = 4


def with_steps(history: RunHistory) -> tuple[list[Finding], Known]:
    """Return the causes as findings, the worst first, and the run's facts on each."""
    causes = folded(history.findings)
    beside = {id(one.finding.finding): _beside(one) for one in causes}
    return [one.finding.finding for one in causes], lambda finding: beside[id(finding)]


def _beside(cause: Cause) -> Beside:
    one, names = cause.finding, tuple(label(s.name, s.call) for s in cause.symptoms)
    # What was NaN or Inf before the step began was not made in it: the finding says all.
    made = one.origin is not None and one.origin.phase not in ("parameter", "input")
    details = tuple(origin_lines(one.origin, one)) if one.origin and made else ()
    return Beside(stretches(one.steps), details, tuple(_symptoms(cause.symptoms)), names)


def _symptoms(symptoms: Sequence[TrainingFinding]) -> Iterator[Line]:
    """Yield a line for each finding that follows from a cause, one for similar ones."""
    beside = {id(one.finding): Beside(stretches(one.steps)) for one in symptoms}

    def known(finding: Finding) -> Beside:
        return beside[id(finding)]

    for group in grouped([one.finding for one in symptoms], known):
        first = group.first
        text = f"{place(first)}: {plain(first.message)}"
        more = f" ({also(group, known)})" if group.more else ""
        yield Line(text + more, f"symptom {lead(first, known)}", indent=1)


def origin_lines(origin: NonFiniteOrigin, one: TrainingFinding) -> Iterator[Line]:
    """Yield lines on the origin: step, phase, module, operation and line, with its inputs and its
    spread."""
    what = {"nan": "NaN", "inf": "Inf"}.get(origin.kind, plain(origin.kind))
    where = [f"in the {plain(origin.phase)}"]
    if origin.name:
        where[0] += f" of {label(origin.name, origin.call)}"
    if one.steps:
        where.insert(0, f"at step {count(one.steps[0][0])}")
    if origin.op:
        where.append(f"by `{plain(origin.op)}`")
    if origin.location:
        where.append(f"at {plain(origin.location)}")
    if origin.reason:
        where.append(plain(origin.reason))
    yield Line(", ".join(where), f"origin of the {what}:", indent=1)
    message = origin.message.rstrip(".")
    if message and message not in one.finding.message:
        yield Line(plain(origin.message), indent=1)
    if origin.inputs:
        yield Line(given(origin), "its inputs:", indent=1)
    if origin.spread:
        yield Line(some_names(origin.spread, _NAMES), "spread to:", indent=1)
    if origin.advice and origin.advice.rstrip(".").lower() not in one.finding.advice.lower():
        yield Line(plain(origin.advice), "help:", indent=1)


def given(origin: NonFiniteOrigin) -> str:
    """Describe the inputs of the operation that produced the first NaN or Inf."""
    return "; ".join(map(_tensor, origin.inputs))


def _tensor(stats: TensorStats) -> str:
    parts = [f"{shape(stats.shape)} {plain(stats.dtype)}"]
    if stats.min is not None and stats.max is not None:
        parts.append(f"{number(stats.min)} to {number(stats.max)}")
    counts = ((stats.zeros, "zero"), (stats.nan, "NaN"), (stats.inf, "infinite"))
    parts += [f"{count(n)} {word}" for n, word in counts if n]
    return ", ".join(parts)


def as_check(history: RunHistory) -> CheckReport:
    """Return a run as the check of one model, for formats with findings only.

    The steps of a finding are in its message.
    """
    sentence = []
    named = qualified(history).findings
    explained = explanations(named)
    for one in named:
        cause = explained.get(id(one))
        follows = f"follows from {cause.code} {plain(cause.name)}".rstrip() if cause else ""
        when = ", ".join(filter(None, (stretches(one.steps), follows)))
        message = f"{one.finding.message.rstrip('.')} ({when})." if when else one.finding.message
        sentence.append(replace(one.finding, message=message))
    status = "findings" if sentence else "ok"
    model = CheckedModel(status, run_info(history), findings=tuple(sentence))
    return CheckReport(
        status=status,
        versions=history.run.versions,
        rules=history.judgement.judged,
        models=(model,),
        notes=tuple(str(line) for line in verdict(history)),
    )


def run_info(history: RunHistory) -> RunInfo:
    """Return the run's settings, for records that have no script."""
    run = history.run
    device = run.device or "unknown"
    return RunInfo(title(run), device, "unknown", "train", 0, history.last_step, "")


def verdict(history: RunHistory) -> Iterator[Line]:
    """Yield that no problem was found, if so; then the rules with too few samples."""
    if not history.last_step:
        yield NOTHING_RECORDED
        return
    if not history.findings:
        yield from no_problem(history.judgement, where(history))
    yield from not_enough(history.judgement)


def where(history: RunHistory) -> str:
    """Return the sampled steps in words: ``in steps 1–3 of 1,200``."""
    sampled, total = history.sampled, history.last_step
    if not sampled:
        return f"in the metrics of {plural(total, 'step')}; no step was sampled"
    if len(sampled) >= total:
        return f"in all {count(total)} steps" if total > 1 else "in the one step"
    word = "step" if len(sampled) == 1 else "steps"
    return f"in {word} {listed(sampled)} of {count(total)}"


def news(history: RunHistory, shown: RunHistory | None, *, before: int) -> Iterator[str]:
    """Yield lines that ``shown`` did not have; at the beginning also the last steps.

    At the end of the run, lines state what could be judged; the last one states how it ended.
    """
    last = shown.last_step if shown else max(0, history.last_step - before)
    lines = [
        (
            event.step,
            f"event: step {count(event.step)}, {plain(event.kind)}: {plain(event.message)}",
        )
        for event in history.events[len(shown.events) if shown else 0 :]
    ]
    lines += [
        (step.step, f"step {count(step.step)}: {', '.join(facts_of_step(step))}")
        for step in history.steps
        if step.step > last
    ]
    yield from (line for _, line in sorted(lines, key=lambda pair: pair[0]))
    known = {found.key for found in shown.findings} if shown else set()
    keys = [found.key for found in history.findings]
    named = qualified(history)
    for key, found in zip(keys, named.findings, strict=True):
        if key not in known:
            finding = found.finding
            when = Beside(stretches(found.steps))
            lead = finding_lines.lead(finding, lambda _: when)  # noqa: B023 # called at once
            yield f"finding: {lead} {finding_lines.place(finding)}: {plain(finding.message)}"
    if history.run.ended is not None:
        yield from (f"verdict: {line}" for line in verdict(history))
        yield str(summary.end(history))
