"""A run's findings as answers: what was found of the parameters and layers that one asks for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.errors import OptionError
from gradscope.records.answers import Answer, WhyReport
from gradscope.records.history import LayerSeries, RunHistory
from gradscope.records.run import RunInfo
from gradscope.records.training import StepSample, TrainingFinding
from gradscope.reporters.finding_lines import ordered
from gradscope.reporters.training.sentences.findings import given, looked_at, run_info
from gradscope.reporters.training.sentences.summary import title
from gradscope.reporters.training.tables.naming import qualified, selected
from gradscope.typeset.numbers import NOT_THERE, count, number

#: The states that `why` knows, by the rule that finds them; another rule's name is the state.
_STATES = {"no-gradient": "missing", "zero-gradient": "zero"}


def answers(
    history: RunHistory,
    sample: StepSample | None = None,
    patterns: Sequence[str] = (),
    exclude: Sequence[str] = (),
    step: int | None = None,
) -> WhyReport:
    """The answers for those layers, all of them without ``patterns``; of one step, or of all.

    ``sample`` is any of the run's: what it says of device and dtype holds for all.

    Raises:
        LayerError: a pattern that matches nothing.
        OptionError: nothing is known of the step.
    """
    chosen = selected(history, patterns, exclude)
    found = list(history.findings)
    if patterns or exclude:
        layers = (*chosen.parameters, *chosen.calls)
        found = [one for one in found if _concerns(one, layers, everywhere=not patterns)]
    if step is not None:
        found = [one for one in found if any(a <= step <= b for a, b in one.steps)]
        if not found:
            _check(history, step)
    shown = qualified(replace(chosen, findings=tuple(found)))
    said = list(_bad(shown))
    if patterns:
        named = {one.finding.name for one in shown.findings}
        said += _sound(shown.parameters or shown.calls, named)
    return WhyReport(
        run=_run_info(history, sample),
        status="findings" if found else "ok",
        versions=history.run.versions,
        checked=len(chosen.parameters),
        answers=tuple(said),
        scope=looked_at(history) if step is None else f"at step {count(step)}",
    )


def _concerns(found: TrainingFinding, layers: Sequence[LayerSeries], *, everywhere: bool) -> bool:
    """Whether a finding is of one of the layers, of what is inside it, or reached it."""
    if not found.finding.name and found.origin is None:
        return everywhere
    of = [one for one in layers if found.model in (None, one.model)]
    names = {one.name for one in of} | {one.name.rpartition(".")[0] for one in of}
    reached = {found.finding.name}
    if found.origin is not None:
        reached |= {found.origin.name or "", *found.origin.spread}
    inside = (name + "." for name in names if name)
    return bool(names & reached) or any(
        one.startswith(start) for start in inside for one in reached
    )


def _check(history: RunHistory, step: int) -> None:
    """Refuse a step that nobody looked at: that nothing was found there would be no answer."""
    sampled = history.sampled
    if step in sampled:
        return
    i = bisect_left(sampled, step)
    near = " and ".join(count(one) for one in sampled[max(0, i - 1) : i + 1])
    there = any(one.step == step for one in history.steps)
    raise OptionError(
        f"step {count(step)} was not looked at closely"
        if there
        else f"nothing is known of a step {count(step)}",
        help=f"the nearest that were looked at: {near}" if near else "no step was looked at",
    )


def _bad(history: RunHistory) -> Iterator[Answer]:
    """An answer for each finding, the worst first."""
    by_finding = {id(one.finding): one for one in history.findings}
    parameters = {one.name for one in history.parameters}
    for finding in ordered([one.finding for one in history.findings]):
        found = by_finding[id(finding)]
        state, cause, origin = _STATES.get(finding.rule, finding.rule), finding.cause, found.origin
        message = finding.message
        if origin is not None and origin.inputs and origin.phase not in ("parameter", "input"):
            message = f"{message.rstrip('.')}. It was given {given(origin)}."
        yield Answer(
            name=finding.name,
            kind="parameter" if finding.name in parameters else "module",
            state=state,
            message=message,
            cause=cause,
            call=finding.call,
            location=finding.location,
            advice=finding.advice or None,
            severity=finding.severity,
            steps=found.steps,
        )


def _sound(layers: Sequence[LayerSeries], named: set[str]) -> Iterator[Answer]:
    """What was measured of those of which nothing was found."""
    for one in layers:
        if one.name in named:
            continue
        measures = {"gradient norm": "grad_norm", "update ratio": "update_ratio"}
        if one.call is not None:
            measures = {"output norm": "out_norm", "output gradient": "grad_out_norm"}
        courses = [f"{word} {_course(one.values.get(key, ()))}" for word, key in measures.items()]
        yield Answer(
            name=one.name,
            kind="parameter" if one.call is None else "module",
            state="healthy",
            message=f"nothing was found; {', '.join(courses)}",
            call=one.call,
        )


def _course(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NOT_THERE
    ends = [number(known[0]), number(known[-1])]
    return ends[0] if ends[0] == ends[1] else " → ".join(ends)


def _run_info(history: RunHistory, sample: StepSample | None) -> RunInfo:
    """How the run was made, as far as any of its samples says it."""
    if sample is None:
        return run_info(history)
    return replace(sample.report.run, model=title(history.run), notices=history.run.notices)
