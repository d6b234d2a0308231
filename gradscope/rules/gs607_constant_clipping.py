"""GS607: clipping that clips every step."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import Course, LoopClipping
from gradscope.rules._course import fell
from gradscope.rules._loop import LoopFindings, at
from gradscope.rules._reading import is_scale_free
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent, plural

RULE = Rule(
    code="GS607",
    name="constant-clipping",
    severity="warning",
    summary="nearly every step is clipped, and by a large factor",
    what=(
        "Compares the norm in each call of `clip_grad_norm_` with its bound, over the last 128 "
        "calls. If the script clips by its own code, it compares the norm before and after at "
        "the steps where both are read. It fires if nearly all steps were clipped, and the "
        "median step by a large factor: a bound just below the usual norm is common practice. A "
        "run that ends early is judged by all of its steps, and by a larger factor. It is an "
        "info with optimizers that divide by the gradient's size, such as Adam: there a bound "
        "changes little. It is also an info if the loss falls far."
    ),
    why=(
        "Clipping is meant for rare steps. If it acts on all, every step has the same length, "
        "whatever the gradient. That lowers the learning rate, and steps do not become smaller "
        "near the end of training."
    ),
    fix=(
        "Raise the bound to about the 90th percentile of the unclipped norms. If training is "
        "then unstable, lower the learning rate."
    ),
    sources=(
        "Google deep-learning tuning playbook: clip at about the 90th percentile; more than half "
        "of the updates clipped is extremely aggressive",
        "Pascanu et al. 2013, On the difficulty of training recurrent neural networks",
    ),
    calibration=(
        "Of 44 healthy trainings of 320 to 640 steps (22 networks, two seeds; one clips every step "
        "by 3 to 8) 0 of 44 fire, and 2 of 2 broken ones are found; `factor` could lie anywhere up "
        "to 60. Cut to their first 16 to 94 steps, the healthy ones are clipped by 8.3 at the "
        "most, the broken ones by 79 at the least."
    ),
    thresholds=(
        Threshold(
            "share", 0.95, ("share of the last 128 steps that were clipped, above which it fires")
        ),
        Threshold(
            "factor", 10, "the median factor by which they were clipped, above which it fires"
        ),
        Threshold("history", 100, "steps needed to judge while the run goes on"),
        Threshold("short", 16, "steps needed to judge at the end of the run"),
        Threshold("left", 0.1, "share of the first loss left, below which it is an info", CHOSEN),
        Threshold("short_factor", 30, "the median factor for a run of fewer than `history` steps"),
    ),
    runs=Runs(loop=True),
    explains_as=(("bound", ("GS104", "GS605", "GS612")),),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each optimizer."""
    kinds = {one.name: one.kind for one in loop.optimizers}
    for one in loop.clippings:
        if one.known >= limits["history"]:
            fires = one.shortened > limits["share"] * one.known and one.factor > limits["factor"]
        else:
            every = loop.ended and one.known >= limits["short"] and one.shortened == one.known
            fires = every and one.factor > limits["short_factor"]
        if not fires:
            continue
        course = loop.course if len(loop.optimizers) == 1 else None
        mild = ""
        if course is not None and fell(course, limits["left"]):
            mild = _learns(course)
        elif is_scale_free(kinds.get(one.optimizer)):
            mild = _scale_free(kinds[one.optimizer])
        finding = RULE.finding(
            one.optimizer,
            f"{_often(one)}, the median one by a factor of {number(one.factor)}"
            f"{_bound(one)}.{mild}",
            severity="info" if mild else None,
            value=one.factor,
            limit=limits.of("factor"),
            cause=None if mild else "bound",
            location=one.location,
        )
        yield at(finding, loop)


def _often(one: LoopClipping) -> str:
    if one.shortened == one.known == one.clips:
        return f"every step is clipped, all {one.clips:,}"
    if one.shortened == one.known:
        return f"every step that was read is clipped, all {plural(one.known, 'step')}"
    return f"{percent(one.shortened / one.known)} of the last {one.known} steps were clipped"


def _bound(one: LoopClipping) -> str:
    return "" if one.bound is None else f", to a norm of {number(one.bound)}"


def _learns(course: Course) -> str:
    return f" The loss fell from {number(course.first)} to {number(course.last)} all the same."


def _scale_free(kind: str) -> str:
    return f" {kind} divides by the gradient's size, so that this changes little."
