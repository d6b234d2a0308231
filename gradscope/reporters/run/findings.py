"""Findings, events and news of a run: the steps of each, and the origin of a NaN or Inf; and its
findings as answers, for the requested parameters and layers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.errors import OptionError
from gradscope.records.answers import Answer, Explanation, NonFiniteOrigin, WhyReport
from gradscope.records.report import CheckedModel, CheckReport, Finding
from gradscope.records.run import RunInfo
from gradscope.records.tensors import TensorStats
from gradscope.records.training import (
    LayerSeries,
    RunHistory,
    StepSample,
    TrainingEvent,
    TrainingFinding,
)
from gradscope.reporters import finding_lines
from gradscope.reporters.finding_lines import Beside, Known, also, grouped, lead, made_at, place
from gradscope.reporters.header import label, listed, some_names, stretches
from gradscope.reporters.run import qualified, selected, summary
from gradscope.reporters.run.layers import lost_steps
from gradscope.reporters.run.summary import facts_of_step, title
from gradscope.reporters.verdict import NOTHING_RECORDED, no_problem, not_enough
from gradscope.rules import Cause, explanations, folded, severity
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import NOT_THERE, count, number, plural, shape
from gradscope.typeset.text import plain

#: Tone of each kind of event that is trouble; the others have none.
_TONES = {
    "failed": "bad",
    "non-finite": "bad",
    "unused-parameters": "bad",
    "skipped-step": "warn",
    "capsule": "warn",
}


#: A page has this many lines of events; the table of events has all.
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
    # A value that was NaN or Inf before the step has no origin in it: the finding is enough.
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
    """Yield the line that no problem was found, if none was; then the rules with too few
    samples."""
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


#: States of `why`, by the name of the rule; any other rule's name is itself the state.
_STATES = {"no-gradient": "missing", "zero-gradient": "zero"}


def answers(
    history: RunHistory,
    sample: StepSample | None = None,
    patterns: Sequence[str] = (),
    exclude: Sequence[str] = (),
    step: int | None = None,
) -> WhyReport:
    """Return the answers for the layers that ``patterns`` match, or for all; for one step, or for
    all.

    ``sample`` is any sample of the run: device and dtype are the same in all.

    Raises:
        LayerError: a pattern matches nothing.
        OptionError: the step was not sampled.
    """
    chosen = selected(history, patterns, exclude)
    found = list(history.findings)
    if patterns or exclude:
        layers = (*chosen.parameters, *chosen.calls)
        found = [one for one in found if _concerns(one, layers, everywhere=not patterns)]
        found = _with_causes(found, history.findings)
    if step is not None:
        found = [one for one in found if any(a <= step <= b for a, b in one.steps)]
        if not found:
            _check(history, step)
    shown = qualified(replace(chosen, findings=tuple(found)))
    sentence = list(_bad(shown))
    asked = zip(chosen.parameters or chosen.calls, shown.parameters or shown.calls, strict=True)
    complete = not any(one.unit == "samples" for one in history.judgement.not_judged)
    sentence += [
        _measured(full, judged=complete and bool(history.sampled))
        for own, full in asked
        if (patterns or (step is None and lost_steps(own)))
        and not any(_tells_of(one, own) for one in found)
    ]
    return WhyReport(
        run=_run_info(history, sample),
        status="ok" if all(severity(answer) is None for answer in sentence) else "findings",
        versions=history.run.versions,
        checked=len(chosen.parameters),
        answers=tuple(sentence),
        scope=where(history) if step is None else f"at step {count(step)}",
        judged=history.judgement.judged,
        not_judged=history.judgement.not_judged,
        named=bool(patterns),
    )


def _with_causes(
    found: Sequence[TrainingFinding], every: Sequence[TrainingFinding]
) -> list[TrainingFinding]:
    """Return these findings with their causes, in the order of all findings."""
    explained = explanations(every)
    wanted = {id(one) for one in found}
    wanted |= {id(explained[id(one)]) for one in found if id(one) in explained}
    return [one for one in every if id(one) in wanted]


def _concerns(found: TrainingFinding, layers: Sequence[LayerSeries], *, everywhere: bool) -> bool:
    """Return True if a finding concerns one of the layers, lies inside it, or reached it."""
    if found.parameters is not None:
        own = {(one.model, one.name) for one in layers if one.call is None}
        if own.intersection(found.parameters):
            return True
    if not found.finding.name and found.origin is None:
        return everywhere
    of = [one for one in layers if found.model in (None, one.model)]
    names = {one.name for one in of} | {
        one.name.rpartition(".")[0] if one.call is None else one.name for one in of
    }
    reached = _reached(found)
    inside = (name + "." for name in names if name)
    return bool(names & reached) or any(
        one.startswith(start) for start in inside for one in reached
    )


def _reached(found: TrainingFinding) -> set[str]:
    """Return the names in a finding, and the names that its NaN or Inf reached."""
    origin = found.origin
    return {found.finding.name} | ({origin.name or "", *origin.spread} if origin else set())


def _tells_of(found: TrainingFinding, layer: LayerSeries) -> bool:
    """Return True if a finding concerns the layer, its module, or a module around it."""
    if found.model not in (None, layer.model):
        return False
    return any(
        name and (layer.name == name or layer.name.startswith(f"{name}."))
        for name in _reached(found)
    )


def _check(history: RunHistory, step: int) -> None:
    """Refuse a step that was not sampled: it has no answer."""
    sampled = history.sampled
    if step in sampled:
        return
    i = bisect_left(sampled, step)
    near = " and ".join(count(one) for one in sampled[max(0, i - 1) : i + 1])
    there = any(one.step == step for one in history.steps)
    raise OptionError(
        f"step {count(step)} was not sampled" if there else f"the run has no step {count(step)}",
        help=f"the nearest sampled steps: {near}" if near else "no step was sampled",
    )


def _bad(history: RunHistory) -> Iterator[Answer]:
    """Yield an answer for each finding: the worst cause first, each followed by its symptoms."""
    parameters = {one.name for one in history.parameters}
    answers = [
        (one, None if one is cause.finding else Explanation(cause.finding.code, cause.finding.name))
        for cause in folded(history.findings)
        for one in (cause.finding, *cause.symptoms)
    ]
    for found, explanation in answers:
        finding = found.finding
        state, cause, origin = _STATES.get(finding.rule, finding.rule), finding.cause, found.origin
        message = finding.message
        if origin is not None and origin.inputs and origin.phase not in ("parameter", "input"):
            message = f"{message.rstrip('.')}. Its inputs: {given(origin)}."
        if finding.made and finding.made != finding.line:
            message = f"{message.rstrip('.')}. {made_at(finding)}."
        yield Answer(
            name=finding.name,
            kind="parameter" if finding.name in parameters else "module",
            state=state,
            message=message,
            cause=cause,
            call=finding.call,
            location=finding.line,
            advice=finding.advice or None,
            severity=finding.severity,
            steps=found.steps,
            code=finding.code,
            explained_by=explanation,
        )


def _measured(layer: LayerSeries, *, judged: bool) -> Answer:
    """Yield answers for a layer without a finding: its measurements.

    Args:
        judged: True if every rule over samples had enough samples.
    """
    kind = "parameter" if layer.call is None else "module"
    lost = lost_steps(layer)
    if lost:
        steps = f"{count(len(lost))} of {plural(len(layer.steps), 'sampled step')}"
        message = f"it was NaN or Inf in {steps}, first at step {count(lost[0])}"
        return Answer(layer.name, kind, "non-finite", message, call=layer.call, severity="error")
    measures = {"gradient norm": "grad_norm", "update ratio": "update_ratio"}
    if layer.call is not None:
        measures = {"output norm": "out_norm", "output gradient": "grad_out_norm"}
    courses = [f"{word} {_course(layer.values.get(key, ()))}" for word, key in measures.items()]
    message = f"no problem found; {', '.join(courses)}"
    state = "healthy" if judged else "not-judged"
    return Answer(layer.name, kind, state, message, call=layer.call)


def _course(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NOT_THERE
    ends = [number(known[0]), number(known[-1])]
    return ends[0] if ends[0] == ends[1] else " → ".join(ends)


def _run_info(history: RunHistory, sample: StepSample | None) -> RunInfo:
    """Return the settings of the run, from a sample if there is one."""
    if sample is None:
        return run_info(history)
    return replace(sample.report.run, model=title(history.run), notices=history.run.notices)
