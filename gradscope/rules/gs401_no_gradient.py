"""GS401: a trainable parameter that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records import Answer, Finding, Report
from gradscope.rules._reading import Tree, is_inferred, missing, never_called
from gradscope.rules._rule import Limits, Rule
from gradscope.rules._words import plural, sentence

RULE = Rule(
    code="GS401",
    name="no-gradient",
    severity="error",
    summary="a trainable parameter gets no gradient",
    what=(
        "Looks for parameters that require a gradient and have none after backward, and asks for "
        "the one cause: run without gradients, detached, through an operation without a "
        "derivative, or not in the loss. Modules that never ran are GS402's. It is a warning "
        "where the loss is not your own (inferred from the output's shape) or the model is in "
        "eval mode, which may leave parts out on purpose."
    ),
    why=(
        "Without a gradient the optimizer skips the parameter: it keeps its first values for good, "
        "and distributed training waits for it in vain."
    ),
    fix=(
        "Bring the parameter back into the path to the loss, or freeze it with "
        "`requires_grad_(False)` where it is not meant to train."
    ),
    sources=(
        "PyTorch, DistributedDataParallel: find_unused_parameters",
        "PyTorch, autograd mechanics: locally disabling gradient computation",
    ),
)


def wants(report: Report, limits: Limits) -> Iterator[str]:
    """The cause, where something is missing."""
    if missing(report):
        yield "missing"


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """One finding per cause and place, or per module where nobody looked for the cause."""
    idle = {name for names in never_called(report).values() for name in names}
    lost = {p.name for p in missing(report)} - idle
    told: set[str] = set()
    for answer in report.answers:
        behind = (*answer.behind, answer.name)
        if answer.state == "missing" and answer.cause != "frozen" and lost.intersection(behind):
            told.update(behind)
            yield _explained(report, answer)
    rest = [p.name for p in missing(report) if p.name in lost - told]
    for name, behind in Tree(report).gathered(rest):
        these = f"`{behind[0]}`" if len(behind) == 1 else plural(len(behind), "parameter")
        yield RULE.finding(
            name,
            f"no gradient reaches {these}.",
            severity="warning" if _lenient(report, None) else "error",
            advice="Run `gradscope why`: it names the one cause and the line.",
            value=float(len(behind)),
        )


def _explained(report: Report, answer: Answer) -> Finding:
    count = len(answer.behind) or 1
    where = (
        f" in `{answer.module}`" if answer.module and answer.module not in answer.message else ""
    )
    return RULE.finding(
        answer.name,
        f"{answer.message.rstrip('.')}{where}; behind it {plural(count, 'parameter')} without a "
        "gradient.",
        severity="warning" if _lenient(report, answer.cause) else "error",
        advice=sentence(answer.advice) if answer.advice else None,
        call=answer.call,
        value=float(count),
        cause=answer.cause,
        location=answer.location,
    )


def _lenient(report: Report, cause: str | None) -> bool:
    """Whether leaving the parameter out may well be meant, or is not the user's doing."""
    elsewhere = cause in (None, "not-in-loss", "not-called")
    return elsewhere and (is_inferred(report) or report.run.mode == "eval")
