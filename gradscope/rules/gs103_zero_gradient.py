"""GS103: a gradient that arrives and is exactly zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradscope.records.answers import Answer
from gradscope.records.loop import LoopParameter, LoopRecord
from gradscope.records.modules import ParameterStats
from gradscope.records.report import Finding, Report
from gradscope.rules._commands import CALLS, why
from gradscope.rules._loop import (
    LoopFindings,
    at,
    by_cause,
    concerned,
    full_names,
    gathered,
    in_readings,
    module_of,
    these,
    untraced,
)
from gradscope.rules._reading import Tree, complete, in_library_code, is_zero
from gradscope.rules._rule import CHOSEN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._severity import severity
from gradscope.rules._words import number, plural, sentence

RULE = Rule(
    code="GS103",
    name="zero-gradient",
    severity="warning",
    summary="a trainable parameter's gradient is exactly zero",
    what=(
        "Finds trainable parameters whose gradient is zero in every element, and the cause. "
        "There are five: a dead activation, a saturated one, a zero weight on the path (LoRA's "
        "B, a residual scale), a mask, or underflow. A dead path is an error. It is a warning if "
        "a mask explains the zero (another batch may have none), if gradients cancel, or if an "
        "installed library's code makes the zero. It is an info if a gradient arrives within "
        "three steps, as upstream of a zero-initialised factor, or if the loss is 0: a margin is "
        "satisfied, or nothing is left to learn."
    ),
    why=(
        "A parameter with a zero gradient does not learn, and unlike a missing gradient it raises "
        "no error; weight decay may even move it, which looks like training."
    ),
    fix="Run `gradscope why MODEL NAME`: it names the operation that made the zero.",
    sources=(
        "Bachlechner et al. 2021, ReZero, and Hu et al. 2022, LoRA: intended zeros",
        "TorchLens: of experts, branches and embedding rows warn on 5 of the last 8 steps only",
    ),
    thresholds=(
        Threshold(
            "steps",
            5,
            "of the last eight steps, the number with a zero gradient at which it fires, if "
            "another step had a gradient",
            source="TorchLens",
        ),
        Threshold("size", 30, "root mean square of the inputs, above which they are named", CHOSEN),
    ),
    # A zero must last for at least five steps, as in TorchLens: by then, a zero caused by an
    # initial zero is gone.
    runs=Runs(loop=True),
    explains=("GS513", "GS603", "GS613", "GS821"),
)
_WINDOW = 8


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request the causes, if a gradient is zero."""
    if _zeros(report, limits):
        yield "zero"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per cause and place, or per module if the cause was not searched.

    Zeros with one cause that end after a few steps are one finding, because many networks begin
    with such zeros.
    """
    zeros = {p.name: p for p in _zeros(report, limits)}
    explained: set[str] = set()
    passing: dict[tuple[str | None, str | None], list[Answer]] = {}
    for answer in report.answers:
        if answer.state != "zero" or not zeros.keys() & {answer.name, *answer.upstream}:
            continue
        explained |= {answer.name, *answer.upstream}
        if answer.recovers:
            # The advice says after how many steps.
            passing.setdefault((answer.cause, answer.advice), []).append(answer)
        else:
            meant = in_library_code(report, answer.location)
            learnt = answer.cause is None and report.loss == 0
            level = "info" if learnt else "warning" if meant else severity(answer)
            yield _explained([answer], level)
    for answers in passing.values():
        yield _explained(answers, severity(answers[0]))
    rest = [name for name in zeros if name not in explained]
    for name, upstream in Tree(report).gathered(rest):
        advice = f"`{why(report, name)}` names the operation that made the zero."
        yield _unexplained(name, upstream, advice)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each cause, else for each module with zero gradients step after step.

    A bias alone is left out: its gradients often cancel exactly.
    """
    zeros = [
        one
        for one in loop.parameters
        if "zero-gradient" in one.facts
        and not one.facts & {"untrained", "orphan"}
        and one.steps >= limits["steps"]
    ]
    caused, rest = by_cause(zeros, loop, "zero")
    for answer, members in caused:
        if _has_weight(members):
            finding = _traced(answer, members, loop, limits)
            # A weight of zeros that no optimizer holds is the cause, wherever the zeros arrive.
            still = [
                one
                for one in loop.parameters
                if (one.model, one.name) == (members[0].model, answer.starts)
                and {"unheld", "graded"} <= one.facts
            ]
            of = concerned(still or members, loop)
            first = min(one.since for one in members)
            yield at(finding, loop, first, model=members[0].model, parameters=of)
    stops = next((one for one in loop.functions if one.flat), None)
    parts = gathered(rest) if stops is None else _by_model(rest)
    for model, module, members in parts:
        if not _has_weight(members):
            continue
        gets = "gets" if len(members) == 1 else "get"
        message = (
            f"{these(full_names(members, loop))} {gets} a gradient of exactly zero "
            f"{in_readings(members, loop)}."
        )
        hook = members[0].hook
        if hook is not None and all(one.hook == hook for one in members):
            found = RULE.finding(
                module,
                f"{message} The function at {hook} is a hook there, and may replace the gradient.",
                advice="To freeze a parameter, set `requires_grad` to False: with a gradient of "
                "zero, the optimizer still moves it by weight decay and momentum.",
                value=float(len(members)),
                cause="hook",
                location=hook,
            )
        elif stops is None:
            advice = f"`{CALLS}` shows where the zero starts: the last call with a grad_out of 0."
            found = RULE.finding(
                module, message, advice=f"{advice}{untraced(loop)}", value=float(len(members))
            )
        else:
            found = RULE.finding(
                module,
                f"{message} The backward of the autograd function `{stops.name}` returned only "
                f"zeros for its arguments of step {stops.step}.",
                advice="Return the gradient that comes in where the input should learn: "
                "`grad_output * (x.abs() <= 1)`.",
                value=float(len(members)),
                cause="non-differentiable",
                location=stops.location,
            )
        first = min(one.since for one in members)
        yield at(found, loop, first, model=model, parameters=concerned(members, loop))


def _by_model(
    parameters: Sequence[LoopParameter],
) -> Iterator[tuple[str, str, list[LoopParameter]]]:
    """Yield each model, with the first module of its parameters."""
    of: dict[str, list[LoopParameter]] = {}
    for one in parameters:
        of.setdefault(one.model, []).append(one)
    for model, members in of.items():
        yield model, module_of(members[:1]), members


def _has_weight(members: Sequence[LoopParameter]) -> bool:
    return any(len(one.shape) > 1 and 0 not in one.shape for one in members)


def _unnormalised(
    answer: Answer, members: Sequence[LoopParameter], loop: LoopRecord, limits: Limits
) -> str:
    """Return the sentence that the inputs are large, for an activation that was flat at first."""
    if answer.cause not in ("saturated", "dead-activation") or min(m.since for m in members) > 1:
        return ""
    number_of = {one.name: one.id for one in loop.models}
    for one in loop.batches:
        if one.model == number_of.get(members[0].model) and one.size > limits["size"]:
            return f" The inputs are not normalized: their root mean square is {number(one.size)}."
    return ""


def _filled(answer: Answer, members: Sequence[LoopParameter], loop: LoopRecord) -> str:
    """Return the sentence on the line that fills the first zero weight with zeros, if known."""
    number_of = {one.name: one.id for one in loop.models}
    for one in loop.equal_units:
        mine = (one.model, one.name) == (number_of.get(members[0].model), answer.starts)
        if mine and not one.units and one.location is not None:
            return f" `{one.name}` is filled with zeros at {one.location}."
    return ""


def _traced(
    answer: Answer, members: Sequence[LoopParameter], loop: LoopRecord, limits: Limits
) -> Finding:
    """Return the finding of one step's trace, with the number of steps."""
    gets = "gets" if len(members) == 1 else "get"
    return RULE.finding(
        answer.starts or module_of(members),
        f"{answer.message.rstrip('.')}; {these(full_names(members, loop))} {gets} a gradient of "
        f"exactly zero {in_readings(members, loop)}.{_unnormalised(answer, members, loop, limits)}"
        f"{_filled(answer, members, loop)}",
        severity=severity(answer),
        advice=sentence(answer.advice) if answer.advice else None,
        value=float(len(members)),
        cause=answer.cause,
        location=answer.location,
    )


def _unexplained(name: str, upstream: Sequence[str], advice: str) -> Finding:
    which = f"`{upstream[0]}`" if len(upstream) == 1 else plural(len(upstream), "parameter")
    message = f"the gradient of {which} is exactly zero."
    return RULE.finding(name, message, advice=advice, value=float(len(upstream)))


def _explained(answers: list[Answer], level: str | None) -> Finding:
    """Return the finding of an answer, for it and for similar ones."""
    answer, more = answers[0], len(answers) - 1
    count = sum(len(one.upstream) or 1 for one in answers)
    also = f", and {plural(more, 'place')} more like it" if more else ""
    later = "; a gradient arrives within a few steps" if answer.recovers else ""
    gets = "gets" if count == 1 else "get"
    return RULE.finding(
        answer.starts or answer.name,
        f"{answer.message.rstrip('.')}{also}; "
        f"{plural(count, 'parameter')} upstream {gets} a gradient of exactly zero{later}.",
        severity=level,
        advice=sentence(answer.advice) if answer.advice else None,
        call=answer.call,
        value=float(count),
        cause=answer.cause,
        location=answer.location,
    )


def _zeros(report: Report, limits: Limits) -> list[ParameterStats]:
    if not complete(report):
        return []
    often = _often(report, limits)
    return [p for p in report.parameters if p.requires_grad and is_zero(p) and often(p.name)]


def _often(report: Report, limits: Limits) -> Callable[[str], bool]:
    """Return a test for names: True if a zero gradient is more than one unlucky batch."""
    seen: dict[str, list[float]] = {}
    for record in report.history[-_WINDOW:]:
        for part in record.parameters:
            if part.gradient_norm is not None:
                seen.setdefault(part.name, []).append(part.gradient_norm)

    def often(name: str) -> bool:
        norms = seen.get(name, [])
        return not any(norms) or norms.count(0.0) >= limits["steps"]

    return often
