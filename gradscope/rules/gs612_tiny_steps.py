"""GS612: steps so small that all of them together do not move the weights."""

from __future__ import annotations

from gradscope.records.loop import LoopOptimizer, LoopRecord
from gradscope.rules._course import is_left
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent, plural

RULE = Rule(
    code="GS612",
    name="tiny-steps",
    severity="warning",
    summary="all steps together hardly move the weights, and the loss hardly falls",
    what=(
        "Multiplies the mean update, divided by the weight, of the sampled steps by the number "
        "of steps: no weight can have moved farther. It fires if that is a small part of the "
        "weights' norm, and the loss has hardly fallen. A learning rate that still rises does "
        "not count. It also fires at the end of the script, if the loss has hardly fallen and a "
        "LambdaLR multiplies the base rate by a small factor at most, as by a rate."
    ),
    why=(
        "The network is still nearly as initialised. GS104 needs a ratio of 2e-7 in one step; "
        "over a run, a larger ratio is evidence enough."
    ),
    fix=(
        "Raise the learning rate, at first to ten times. An update of about 0.001 of the weight "
        "is usual."
    ),
    sources=(
        "Karpathy, CS231n notes: the ratio of updates to weights is about 1e-3",
        "Smith 2017, Cyclical learning rates: the learning-rate range test",
    ),
    thresholds=(
        Threshold("moved", 0.01, (
            "the sum of all updates divided by the weight, below which it fires"
        ),
                  CHOSEN),
        Threshold("left", 0.95, "the loss divided by that of the first steps, above which it fires",
                  CHOSEN),
        Threshold("factor", 0.05, "largest factor of a LambdaLR, below which it fires", CHOSEN),
        Threshold("base", 0.5, "base rate, below which a LambdaLR's factor is judged", CHOSEN),
        Threshold("samples", 5, "samples needed to judge", CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS603", "GS605", "GS613"),
)  # fmt: skip


#: A rate below this share of the base rate comes from a scheduler.
_FAR = 0.1


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each model."""
    course = loop.course
    if course is None or len(loop.optimizers) != 1 or not is_left(course, limits["left"]):
        return
    optimizer = loop.optimizers[0]
    for made in loop.schedulers if loop.ended and not optimizer.rises else ():
        base = made.target or 0.0
        share = optimizer.peak / base if base else 1.0
        mine = made.optimizer == optimizer.name and made.kind == "LambdaLR"
        # With a base rate of 1, the function gives the rate itself.
        if mine and base < limits["base"] and share < limits["factor"]:
            yield RULE.in_loop(
                loop,
                optimizer.name,
                f"the learning rate is at most {optimizer.peak:g}: `{made.name}` ({made.kind}) "
                f"multiplies the base rate {base:g} by at most {share:g}. The loss is at "
                f"{number(course.last)}, and began at {number(course.first)}.",
                advice="Let the function return a factor of the base rate, 1 at its highest; or "
                "make the optimizer with `lr=1`.",
                value=share,
                limit=limits.of("factor"),
                cause="factor",
                location=made.made or made.location or optimizer.location,
            )
            return
    for one in loop.weights:
        moved = one.ratio * loop.steps
        if one.samples < limits["samples"] or not 0 < moved < limits["moved"] or optimizer.rises:
            continue
        why, place = _reason(loop, optimizer, one.rate)
        yield RULE.in_loop(
            loop,
            optimizer.name,
            f"the learning rate {one.rate:g} is too low: all {plural(loop.steps, 'step')} "
            f"together can move the median weight by {percent(moved)} of its norm, "
            f"{number(one.ratio)} a step.{why} The loss is at {number(course.last)}, and began "
            f"at {number(course.first)}.",
            value=moved,
            limit=limits.of("moved"),
            location=place or optimizer.rate_at or optimizer.location,
        )


def _reason(loop: LoopRecord, optimizer: LoopOptimizer, rate: float) -> tuple[str, str | None]:
    """Return the cause of the rate and its place, if known."""
    for one in loop.schedulers:
        if one.optimizer == optimizer.name and one.target and rate < _FAR * one.target:
            return (
                f" `{one.name}` ({one.kind}) multiplies the base rate {one.target:g} by "
                f"{rate / one.target:g}.",
                one.made or one.location,
            )
    before, after = optimizer.restored or (0.0, 0.0)
    if optimizer.loaded_at is not None and before != after:
        loaded = f" `{optimizer.name}.load_state_dict` at {optimizer.loaded_at} sets the learning "
        return loaded + "rate to the one that was saved.", optimizer.loaded_at
    return "", None
