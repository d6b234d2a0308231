"""GS401: a trainable parameter that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.records.answers import Answer
from gradscope.records.loop import LoopParameter, LoopRecord
from gradscope.records.report import Finding, Report
from gradscope.rules._commands import CALLS, why
from gradscope.rules._loop import (
    LoopFindings,
    at,
    by_cause,
    concerned,
    enough,
    full_names,
    gathered,
    in_steps,
    module_of,
    these,
    untraced,
)
from gradscope.rules._reading import (
    LENIENT,
    Tree,
    asks_elsewhere,
    in_library_code,
    is_guessed,
    is_inferred,
    missing,
    never_called,
    of_library,
)
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import plural, sentence

RULE = Rule(
    code="GS401",
    name="no-gradient",
    severity="error",
    summary="a trainable parameter gets no gradient",
    what=(
        "Finds parameters that require a gradient and have none after backward, and the cause: "
        "run without gradients, detached, an operation without a derivative, or not part of the "
        "loss. GS402 reports modules that never ran. A cut path is an error. An unused parameter "
        "is a warning if the loss is not your own (inferred from the output's shape), or if the "
        "model is in eval mode, which may leave parts out on purpose. It is an info if another "
        "seed or the next batch uses the parameter. It is a warning if the code of an installed "
        "library leaves a parameter out or cuts its path: it does so on purpose."
    ),
    why=(
        "The optimizer skips a parameter without a gradient: it keeps its initial values, and "
        "distributed training waits for it forever."
    ),
    fix=(
        "Make the loss depend on the parameter, or freeze it with `requires_grad_(False)` if it "
        "should not train."
    ),
    sources=(
        "PyTorch, DistributedDataParallel: find_unused_parameters",
        "PyTorch, autograd mechanics: locally disabling gradient computation",
    ),
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """Request the causes, if a gradient is missing."""
    if missing(report):
        yield "missing"
        if asks_elsewhere(report):
            yield "elsewhere"


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per cause and place, or per module if the cause was not searched."""
    idle = {name for names in never_called(report).values() for name in names}
    lost = {p.name for p in missing(report)} - idle
    explained: set[str] = set()
    for answer in report.answers:
        upstream = (*answer.upstream, answer.name)
        if answer.state == "missing" and answer.cause != "frozen" and lost.intersection(upstream):
            explained.update(upstream)
            yield _explained(report, answer)
    rest = [p.name for p in missing(report) if p.name in lost - explained]
    for name, upstream in Tree(report).gathered(rest):
        yield _unexplained(report, name, upstream, f"`{why(report, name)}` names the one cause.")


def _unexplained(report: Report, name: str, upstream: Sequence[str], advice: str) -> Finding:
    which = f"`{upstream[0]}`" if len(upstream) == 1 else plural(len(upstream), "parameter")
    return RULE.finding(
        name,
        f"no gradient reaches {which}.",
        severity=_severity(report, None, upstream),
        advice=advice,
        value=float(len(upstream)),
    )


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each cause, else for each module whose parameters got no gradient."""
    lost = [
        one
        for one in loop.parameters
        if "no-gradient" in one.facts
        and not one.facts & {"untrained", "orphan", "idle"}
        and enough(loop, one.steps)
    ]
    caused, rest = by_cause(lost, loop, "missing")
    cleared: list[LoopParameter] = []
    for answer, members in caused:
        where = answer.location
        if answer.cause == "cleared":
            where = _clearing(members, loop)
            if where is None:  # nothing was seen: `backward` may have been called without them
                cleared += members
                continue
        elif answer.cause == "not-in-loss":
            where = _call_of_all(members, loop) or where
        finding = _traced(answer, members, loop, where)
        of = concerned(members, loop)
        yield at(finding, loop, model=members[0].model, parameters=of)
    removed = cleared + [one for one in rest if "removed" in one.facts]
    for model, module, members in gathered(removed):
        steps, optimizer = max(one.steps for one in members), members[0].optimizers[0]
        given = all("removed" in one.facts for one in members)
        but = ", though backward gives one" if given else ""
        finding = RULE.finding(
            module,
            f"{these(full_names(members, loop))} {'has' if len(members) == 1 else 'have'} no "
            f"gradient when `{optimizer}` steps, {in_steps(steps, steps)}{but}.",
            advice="Look for what removes it between `backward` and `step`: `p.grad = None`, or a "
            "load or a conversion that makes new tensors; or for a backward without it.",
            value=float(len(members)),
            cause="removed" if given else None,
        )
        yield at(finding, loop, model=model, parameters=concerned(members, loop))
    for model, module, members in gathered([one for one in rest if one not in removed]):
        steps = max(one.steps for one in members)
        finding = RULE.finding(
            module,
            f"no gradient reaches {these(full_names(members, loop))} {in_steps(steps, steps)}.",
            advice=f"`{CALLS}` shows where the graph is cut: the calls before it have `none` in "
            f"grad_out.{untraced(loop)}",
            value=float(len(members)),
        )
        yield at(finding, loop, model=model, parameters=concerned(members, loop))


def _traced(
    answer: Answer, members: Sequence[LoopParameter], loop: LoopRecord, where: str | None
) -> Finding:
    """Return the finding of one step's trace, with the number of steps."""
    steps = max(one.steps for one in members)
    gets = "gets" if len(members) == 1 else "get"
    meant = all("library" in one.facts for one in members) and answer.cause in LENIENT
    return RULE.finding(
        module_of(members),
        f"{answer.message.rstrip('.')}; {these(full_names(members, loop))} {gets} no gradient "
        f"{in_steps(steps, steps)}.",
        severity="info" if meant else None,
        advice=sentence(answer.advice) if answer.advice else None,
        value=float(len(members)),
        cause=answer.cause,
        location=where,
    )


def _call_of_all(members: Sequence[LoopParameter], loop: LoopRecord) -> str | None:
    """Return the call of their model, if these are all that trains in it."""
    model = members[0].model
    if len(members) < next((one.trainable for one in loop.models if one.name == model), 0):
        return None
    events = (event for one in loop.rounds for event in one.events)
    return next((e.location for e in events if e.kind == "call" and e.of == model), None)


def _clearing(members: Sequence[LoopParameter], loop: LoopRecord) -> str | None:
    """Return the place that clears these gradients between a backward and its step."""
    optimizers = {name for one in members for name in one.optimizers}
    owners = optimizers | {one.model for one in members}
    for one in loop.rounds:
        kinds = [event.kind for event in one.events]
        if "backward" in kinds and one.step.of in optimizers:
            for event in one.events[kinds.index("backward") :]:
                if event.kind == "zero" and event.of in owners:
                    return event.location
    return None


def _explained(report: Report, answer: Answer) -> Finding:
    count = len(answer.upstream) or 1
    where = (
        f" in `{answer.module}`" if answer.module and answer.module not in answer.message else ""
    )
    severity = _severity(report, answer.cause, answer.upstream or (answer.name,))
    if severity == "error" and in_library_code(report, answer.location):
        severity = "warning"
    there = ", but with another seed or the next batch" if severity == "info" else ""
    gets = "gets" if count == 1 else "get"
    return RULE.finding(
        answer.name,
        f"{answer.message.rstrip('.')}{where}; {plural(count, 'parameter')} upstream {gets} no "
        f"gradient{there}.",
        severity=severity,
        advice=_advice(report, answer, severity),
        call=answer.call,
        value=float(count),
        cause=answer.cause,
        location=answer.location,
    )


def _advice(report: Report, answer: Answer, severity: str) -> str | None:
    if not answer.advice:
        return None
    if severity == "warning" and answer.cause == "not-in-loss" and is_guessed(report):
        named = "The loss was inferred: set `loss` to yours"
        return f"{named}. If the parameter is not part of it: {answer.advice.rstrip('.')}."
    return sentence(answer.advice)


def _severity(report: Report, cause: str | None, upstream: Sequence[str]) -> str:
    """Return a milder severity if the parameters may be left out on purpose, or not by the user's
    code."""
    if cause not in LENIENT:
        return "error"
    lost = {p.name for p in missing(report)}.intersection(upstream)
    if report.elsewhere and lost <= set(report.elsewhere):
        return "info"
    meant = is_inferred(report) or report.run.mode == "eval" or of_library(report, upstream)
    return "warning" if meant else "error"
