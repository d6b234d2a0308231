"""GS613: a loss that is that of an answer without looking at the input."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import at, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, plural

RULE = Rule(
    code="GS613",
    name="no-better-than-guessing",
    severity="info",
    summary="the loss at the end is that of the best answer that ignores the input",
    what=(
        "Compares the mean loss of the run's last quarter with that of the best constant answer to "
        "the targets that were read: the entropy of the classes' frequencies, or the variance of "
        "the numbers. It fires at the end of the script, where the loss is one mean cross entropy "
        "or squared error, and no lower than that."
    ),
    why=(
        "The network has learned how often each answer comes, and nothing of which input has "
        "which. If no other finding says why, the data may: labels that do not belong to their "
        "inputs give such a loss, and a run alone cannot tell them from a task that is hard."
    ),
    fix=(
        "Print inputs beside their labels, as the network gets them: are they shuffled apart, off "
        "by one, or preprocessed away? Then overfit a single batch: if that works, the loop is "
        "right, and the data or the time is not."
    ),
    sources=(
        "Karpathy 2019, A recipe for training neural networks: input-independent baseline, "
        "overfit one batch",
        "CS231n notes, babysitting the learning process",
    ),
    thresholds=(
        Threshold("share", 0.95, "the loss over that of the constant answer, above which it fires",
                  CHOSEN),
        Threshold("batches", 5, "batches whose targets were read, below which it does not judge",
                  CHOSEN),
    ),
    runs=Runs(loop=True),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> Iterator[TrainingFinding]:
    """Yield at most one finding."""
    course, told = loop.course, [one for one in loop.targets if one.constant]
    if not loop.ended or course is None or len(loop.optimizers) != 1 or len(loop.targets) != 1:
        return
    for one in told:
        answer = one.constant or 0.0
        if one.batches < limits["batches"] or course.last < limits["share"] * answer:
            continue
        guess = "the classes' frequencies" if one.classes else "the mean of the targets"
        yield at(
            RULE.finding(
                "",
                f"the loss is {number(course.last)} over the last "
                f"{plural(course.steps // 2, 'step')}; always answering {guess} gives "
                f"{number(answer)}. The network has learned next to nothing that depends on the "
                "input: its inputs and labels may not belong together.",
                value=course.last / answer,
                limit=limits.of("share"),
                location=of_loss(loop, one),
            ),
            loop,
        )
