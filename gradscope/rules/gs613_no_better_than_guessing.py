"""GS613: a loss that is no better than that of a constant answer."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS613",
    name="no-better-than-guessing",
    severity="info",
    summary="the loss at the end is no better than that of the best constant answer",
    what=(
        "Compares the mean loss of the run's last quarter with the loss of the best constant "
        "answer: the entropy of the classes' frequencies, or the variance of the targets that "
        "were read. It fires at the end of the script, if the loss is a single mean cross "
        "entropy, squared error or smooth L1 loss (of targets no further apart than its beta) and "
        "no lower than that. It is a warning if the script's text also shuffles one array with a "
        "permutation that nothing else uses, shuffles two arrays separately and then slices both "
        "alike, or takes a batch from one array by a permutation and from another by a slice: it "
        "names that line. It is a warning, too, if the steps are far too large for the weights."
    ),
    why=(
        "The network has learned how often each answer occurs, and nothing that depends on the "
        "input. If no other finding says why, check the data: labels that do not belong to their "
        "inputs give such a loss. A run alone cannot tell them from a hard task."
    ),
    fix=(
        "Print inputs beside their labels, as the network gets them: are they shuffled "
        "differently, off by one, or lost in preprocessing? Then overfit a single batch. If that "
        "works, the loop is right: look at the data, or train longer."
    ),
    sources=(
        "Karpathy 2019, A recipe for training neural networks: input-independent baseline, "
        "overfit one batch",
        "CS231n notes, babysitting the learning process",
    ),
    thresholds=(
        Threshold("share", 0.95, (
            "the loss divided by that of the constant answer, above which it fires"
        ),
                  CHOSEN),
        Threshold(
            "ratio", 0.05, "step over norm of the median weight, above which it is the reason",
            CHOSEN,
        ),
        Threshold("batches", 5, "batches with targets that were read, needed to judge",
                  CHOSEN),
    ),
    runs=Runs(loop=True),
)  # fmt: skip


_APART = "so inputs and labels do not belong together."


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield at most one finding."""
    course, constant = loop.course, [one for one in loop.targets if one.constant]
    if not loop.ended or course is None or len(loop.optimizers) != 1 or len(loop.targets) != 1:
        return
    for one in constant:
        answer = one.constant or 0.0
        if one.batches < limits["batches"] or course.last < limits["share"] * answer:
            continue
        guess = "the classes' frequencies" if one.classes else "the mean of the targets"
        reason = _shuffled(loop) or _steps(loop, limits) or _Reason()
        yield RULE.in_loop(
            loop,
            "",
            f"the loss is {number(course.last)} over the last "
            f"{plural(course.steps // 2, 'step')}; always answering {guess} gives "
            f"{number(answer)}. The network has learned next to nothing that depends on the "
            f"input: {reason.words}",
            severity="warning" if reason.cause else None,
            cause=reason.cause,
            advice=reason.advice,
            value=course.last / answer,
            limit=limits.of("share"),
            location=reason.location if reason.cause else of_loss(loop, one),
        )


@dataclass(frozen=True, slots=True)
class _Reason:
    """A reason that the run shows, and the line; none by default."""

    cause: str | None = None
    words: str = "its inputs and labels may not belong together."
    advice: str | None = None
    location: str | None = None


def _shuffled(loop: LoopRecord) -> _Reason | None:
    """Return the arrays whose order the script's text changes alone."""
    for one in loop.facts_of("shuffled-alone"):
        if one.words:
            words = f"a batch of `{one.name}` follows a permutation, and that of `{one.words[0]}` "
            words += "does not"
            advice = f"Index `{one.words[0]}` as `{one.name}`: by the permutation."
        else:
            words = f"`{one.name}` is shuffled with a permutation that nothing else uses"
            advice = (
                "Index the inputs and the labels with the same permutation: `perm = "
                f"torch.randperm(n)`, then `{one.name}[perm]` and the other array with `[perm]`."
            )
        return _Reason("shuffled-alone", f"{words}, {_APART}", advice, one.location)
    for one in loop.facts_of("shuffled-apart"):
        return _Reason(
            "shuffled-alone",
            f"`{one.words[0]}` and `{one.name}` are shuffled separately, {_APART}",
            "Draw one permutation for both: `perm = np.random.permutation(n)`, then "
            f"`{one.words[0]}[perm]` and `{one.name}[perm]`.",
            one.location,
        )
    return None


def _steps(loop: LoopRecord, limits: Limits) -> _Reason | None:
    """Return steps that are too large for the weights, and the line of their learning rate."""
    for one in loop.weights:
        if one.ratio > limits["ratio"]:
            made = (o.rate_at or o.location for o in loop.optimizers if o.name == one.optimizer)
            return _Reason(
                "steps",
                f"each step moves the median weight by {number(one.ratio)} times its norm, at a "
                f"learning rate of {number(one.rate)}: the steps are too large.",
                "Lower the learning rate: about 0.001 of the norm in each step is usual.",
                next(made, None),
            )
    return None
