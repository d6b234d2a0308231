"""The rules of `gradscope diff`, for the rule book: a single report cannot show their findings."""

from __future__ import annotations

from functools import partial

from gradscope.errors import OptionError
from gradscope.rules._book import lookup, rule_book
from gradscope.rules._rule import Rule

_NOISE = (
    "Noise is the effect of a change of the last bit of each number of A. A teacher-forced error "
    "counts from 16 times the noise on. Saved reports have the noise in their sketches."
)

#: A comparison of two runs does not judge the steps of one.
_of_two_runs = partial(Rule, runs=None)

COMPARISONS = (
    _of_two_runs(
        code="GD101",
        name="forward-diverges",
        severity="error",
        summary="given A's inputs, B's call returns a different output",
        what=f"Finds the first layer, in the order of forward, where B diverges. {_NOISE}",
        why="All activations downstream of it, and all gradients, differ from A's.",
        fix="Compare the code, the arguments, the dtype and the weights of this module in A and B.",
        sources=("docs/diff.md, how a layer is found",),
    ),
    _of_two_runs(
        code="GD102",
        name="backward-diverges",
        severity="error",
        summary="given A's output gradient, B's call returns a different input gradient",
        what=f"Finds the first layer, from the loss back, where B diverges. {_NOISE}",
        why="An equal forward hides a wrong backward: the loss is right, the training is wrong.",
        fix="Check a layer with a custom backward: `gradscope inspect MODEL --gradcheck LAYER`.",
        sources=("docs/diff.md, how a layer is found",),
    ),
    _of_two_runs(
        code="GD103",
        name="only-in-a",
        severity="warning",
        summary="A has calls or parameters that B lacks; they are not compared",
        what="Finds modules and parameters of A without a match by name, order and shape in B.",
        why="The two may differ in parts that are not compared.",
        fix="Map the names with `--match 'A=B'`.",
        sources=("docs/diff.md, a port",),
    ),
    _of_two_runs(
        code="GD104",
        name="only-in-b",
        severity="warning",
        summary="B has calls or parameters that A lacks; they are not compared",
        what="Finds modules and parameters of B without a match by name, order and shape in A.",
        why="The two may differ in parts that are not compared.",
        fix="Map the names with `--match 'A=B'`.",
        sources=("docs/diff.md, a port",),
    ),
    _of_two_runs(
        code="GD105",
        name="gradient-lost",
        severity="warning",
        summary="no layer diverges, but a gradient is lost to rounding",
        what=(
            "Finds a parameter's gradient with an error above 10 %, if a change of A's last bits "
            "changes it by less than 1 %, and no layer diverges."
        ),
        why=(
            "Rounding accumulates in backward: training in a narrow dtype then uses a different "
            "gradient."
        ),
        fix="Keep the layers where errors grow in a wider dtype, or accept the error.",
        sources=("msprobe: an error of 0.1",),
    ),
    _of_two_runs(
        code="GD106",
        name="runs-diverge",
        severity="error",
        summary="from this step on, two training runs differ",
        what=(
            "Finds the first step in which losses, gradient norms, learning rates or loss "
            "scales of two recorded runs differ by more than √ε of float32 (3.5e-04)."
        ),
        why="All later steps differ; the cause is in this step, or right before it.",
        fix=(
            "If the error grows over many steps, it is rounding. If it is sudden, compare data, "
            "seeds and settings."
        ),
        sources=("docs/diff.md, two trainings",),
    ),
    Rule(
        code="GD107",
        name="gradient-off-by-ranks",
        severity="warning",
        summary="the gradient is larger or smaller by the number of processes",
        what=(
            "Compares the gradient norms in the first step of two runs on different numbers of "
            "processes. It fires if they differ by the ratio of these numbers, to 1 %."
        ),
        why=(
            "A learning rate tuned for one number of processes is off by that factor for another; "
            "with clipping or without Adam, the training differs."
        ),
        fix=(
            "Take the mean over each process's batch, and let DistributedDataParallel average: do "
            "not divide by the number of processes yourself. If the loss is a sum, divide by the "
            "size of the global batch and multiply by the number of processes."
        ),
        sources=(
            "PyTorch, DistributedDataParallel: gradients are averaged over processes, whether the "
            "loss is a mean over the batch or a sum",
        ),
        runs=None,
    ),
)


#: Names that rules had before: they are still understood.
_OLD_NAMES = {
    "forward-departs": "gd101",
    "backward-departs": "gd102",
    "runs-part": "gd106",
}


def documented() -> tuple[Rule, ...]:
    """Return all rules, with the rules of comparisons."""
    return (*rule_book(), *COMPARISONS)


def explained(code_or_name: str) -> Rule:
    """Return the rule of a code or a name.

    Raises:
        OptionError: there is none; the message suggests the closest.
    """
    word = code_or_name.strip().lower()
    word = _OLD_NAMES.get(word, word)
    for rule in COMPARISONS:
        if word in (rule.code.lower(), rule.name):
            return rule
    if word.startswith("gd"):
        known = ", ".join(f"`{rule.code}`" for rule in COMPARISONS)
        raise OptionError(f"unknown rule `{code_or_name}`", help=f"of a comparison: {known}")
    return lookup(code_or_name)
