"""What `gradscope diff` finds, as the rule book describes it; no report alone shows it."""

from __future__ import annotations

from functools import partial

from gradscope.errors import OptionError
from gradscope.rules._book import lookup, rule_book
from gradscope.rules._rule import Rule

_NOISE = (
    "Each number of A is moved by its last bit: what that does is noise, and an own error counts "
    "from 16 times that on. Saved reports know the noise from their sketches."
)

#: What is found between two runs says nothing of the steps of one.
_of_two_runs = partial(Rule, runs=None)

COMPARISONS = (
    _of_two_runs(
        code="GD101",
        name="forward-departs",
        severity="error",
        summary="given what A's call was given, B's returns something else",
        what=f"Looks for the first place, in the order of forward, where B departs. {_NOISE}",
        why="All activations behind it, and all gradients, are those of another model.",
        fix="Compare the code, the arguments, the dtype and the weights of this module in A and B.",
        sources=("docs/diff.md, how a place is found",),
    ),
    _of_two_runs(
        code="GD102",
        name="backward-departs",
        severity="error",
        summary="given what came back to A's call, B's sends on something else",
        what=f"Looks for the first place, from the loss back, where B departs. {_NOISE}",
        why="A forward that agrees hides a wrong backward: the loss is right, and training is not.",
        fix="Check a layer with its own backward: `gradscope inspect MODEL --gradcheck LAYER`.",
        sources=("docs/diff.md, how a place is found",),
    ),
    _of_two_runs(
        code="GD103",
        name="only-in-a",
        severity="warning",
        summary="A has calls or parameters that B lacks, and that are not compared",
        what="Looks for modules and parameters of A that no name, order and shape of B matches.",
        why="What is not compared may be where the two differ.",
        fix="Say which is which with `--match 'A=B'`.",
        sources=("docs/diff.md, a port",),
    ),
    _of_two_runs(
        code="GD104",
        name="only-in-b",
        severity="warning",
        summary="B has calls or parameters that A lacks, and that are not compared",
        what="Looks for modules and parameters of B that no name, order and shape of A matches.",
        why="What is not compared may be where the two differ.",
        fix="Say which is which with `--match 'A=B'`.",
        sources=("docs/diff.md, a port",),
    ),
    _of_two_runs(
        code="GD105",
        name="gradient-lost",
        severity="warning",
        summary="no place departs, and a gradient is another one all the same",
        what=(
            "Looks for a parameter's gradient that is off by more than 10 %, where A's own last "
            "bits move it by less than 1 % and no place departs by itself."
        ),
        why="Rounding adds up on the way back: a narrow dtype then trains on another gradient.",
        fix="Keep the layers where errors grow in a wider dtype, or accept it knowingly.",
        sources=("msprobe: an error of 0.1",),
    ),
    _of_two_runs(
        code="GD106",
        name="runs-part",
        severity="error",
        summary="from this step on, two trainings are not the same any more",
        what=(
            "Looks for the first step in which losses, gradient norms, learning rates or loss "
            "scales of two recorded runs differ by more than half of their digits."
        ),
        why="Everything after it differs; the cause lies in this step, or right before it.",
        fix=(
            "An error that grows from step to step is rounding; one that is there at once has a "
            "cause: compare data, seeds and settings."
        ),
        sources=("docs/diff.md, two trainings",),
    ),
    Rule(
        code="GD107",
        name="gradient-off-by-ranks",
        severity="warning",
        summary="the gradient is larger or smaller by just the number of processes",
        what=(
            "Looks, in the first step of two runs on different numbers of processes, whether the "
            "norms of their gradients differ by the ratio of these numbers, to 1 %."
        ),
        why=(
            "The learning rate that was found on one number of processes is off by that factor on "
            "another; with clipping or without Adam the training is another one."
        ),
        fix=(
            "Take the mean over the batch of each process and let DistributedDataParallel average: "
            "divide by the number of processes neither before it nor after; where the loss is a "
            "sum, divide by the size of the global batch and multiply by the processes."
        ),
        sources=(
            "PyTorch, DistributedDataParallel: gradients are averaged over processes, whether the "
            "loss is a mean over the batch or a sum",
        ),
        runs=None,
    ),
)


def documented() -> tuple[Rule, ...]:
    """All rules, and what a comparison finds."""
    return (*rule_book(), *COMPARISONS)


def explained(code_or_name: str) -> Rule:
    """The one behind a code or a name.

    Raises:
        OptionError: there is none; the closest are offered.
    """
    word = code_or_name.strip().lower()
    for rule in COMPARISONS:
        if word in (rule.code.lower(), rule.name):
            return rule
    if word.startswith("gd"):
        known = ", ".join(f"`{rule.code}`" for rule in COMPARISONS)
        raise OptionError(f"unknown rule `{code_or_name}`", help=f"of a comparison: {known}")
    return lookup(code_or_name)
