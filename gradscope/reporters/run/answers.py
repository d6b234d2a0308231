"""A run's findings as answers, for the requested parameters and layers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradscope.errors import OptionError
from gradscope.records.answers import Answer, Explanation, WhyReport
from gradscope.records.run import RunInfo
from gradscope.records.training import LayerSeries, RunHistory, StepSample, TrainingFinding
from gradscope.reporters.finding_lines import made_at
from gradscope.reporters.run.findings import given, run_info, where
from gradscope.reporters.run.naming import qualified, selected
from gradscope.reporters.run.series_columns import lost_steps
from gradscope.reporters.run.summary import title
from gradscope.rules import explanations, folded, severity
from gradscope.typeset.numbers import NOT_THERE, count, number, plural

#: The states that `why` knows, by the rule that finds them; another rule's name is the state.
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
