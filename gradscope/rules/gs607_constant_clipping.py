"""GS607: clipping that clips every step."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LoopClipping
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at
from gradscope.rules._optimizers import is_scale_free
from gradscope.rules._rule import Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent, plural

RULE = Rule(
    code="GS607",
    name="constant-clipping",
    severity="warning",
    summary="nearly every step is clipped, and by a large factor",
    what=(
        "Compares the norm that `clip_grad_norm_` finds with its bound at each call, over the last "
        "128; of a script that clips by itself, the norm before and after at the steps where both "
        "are read. It fires where nearly all were clipped and the median one by a large factor: a "
        "bound just below the usual norm is common practice. A run that ends early is judged by a "
        "larger factor, and all of its steps. An info with optimizers that divide by the "
        "gradient's size, as Adam: there a bound changes little."
    ),
    why=(
        "Clipping is meant for the rare step. Where it acts on all, every step has the same "
        "length, whatever the gradient says: it is another way to lower the learning rate, and "
        "near the end of training steps do not become smaller."
    ),
    fix=(
        "Raise the bound to about the 90th percentile of the unclipped norms, and lower the "
        "learning rate if training is then unstable."
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
        Threshold("share", 0.95, "clipped steps of the last 128, above which it fires"),
        Threshold(
            "factor", 10, "the median factor by which they were clipped, above which it fires"
        ),
        Threshold("history", 100, "steps, below which it does not judge while the run goes on"),
        Threshold("short", 16, "steps, below which it does not judge at the end of the run"),
        Threshold("short_factor", 30, "the factor of a run of less than `history` steps"),
    ),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """One finding for each optimizer."""
    kinds = {one.name: one.kind for one in loop.optimizers}
    for one in loop.clippings:
        if one.known >= limits["history"]:
            fires = one.shortened > limits["share"] * one.known and one.factor > limits["factor"]
        else:
            every = loop.ended and one.known >= limits["short"] and one.shortened == one.known
            fires = every and one.factor > limits["short_factor"]
        if not fires:
            continue
        mild = is_scale_free(kinds.get(one.optimizer))
        finding = RULE.finding(
            one.optimizer,
            f"{_often(one)}, the median one by a factor of {number(one.factor)}"
            f"{_bound(one)}.{_mild(kinds[one.optimizer]) if mild else ''}",
            severity="info" if mild else None,
            value=one.factor,
            limit=limits.of("factor"),
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


def _mild(kind: str) -> str:
    return f" {kind} divides by the gradient's size, so that this changes little."
