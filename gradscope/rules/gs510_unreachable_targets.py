"""GS510: targets that the last activation can never give."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import Reach
from gradscope.rules._loop import LoopFindings, enough, in_steps, of_loss
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent

RULE = Rule(
    code="GS510",
    name="unreachable-targets",
    severity="error",
    summary="targets lie out of the last activation's range",
    what=(
        "Reads the targets of a squared, absolute or Huber loss in the sampled steps, if a "
        "sigmoid, tanh, softmax, ReLU or softplus gives the output. It fires if many targets of "
        "every batch lie out of the activation's range. For a binary cross entropy with logits, "
        "it fires if targets are far from 0 to 1, such as -1 or 255, or if all are 0 and 1/255."
    ),
    why=(
        "The output cannot reach the targets: the loss has a floor above 0, and the activation "
        "saturates. A binary cross entropy of such targets has no minimum."
    ),
    fix=(
        "Leave the activation out, or scale the targets into its range; labels of a binary cross "
        "entropy are 0 and 1."
    ),
    sources=(
        "Goodfellow et al. 2016, Deep learning, 6.2.2: the output unit fits the targets",
        "PyTorch, torch.nn.BCEWithLogitsLoss: targets between 0 and 1",
        "PyTorch forum: regression network always predicts the same value (sigmoid, ReLU at its "
        "end)",
    ),
    thresholds=(
        Threshold("share", 0.1, (
            "share of a batch's targets out of range, at or above which it fires"
        ),
                  CHOSEN),
    ),
    runs=Runs(loop=True),
    explains=("GS103", "GS201", "GS603", "GS613"),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each activation."""
    for one in loop.reaches:
        if one.outside < one.readings or (one.share < limits["share"] and not one.counted):
            continue
        if not enough(loop, one.outside):
            continue
        yield RULE.in_loop(
            loop,
            "",
            _message(one),
            advice=_advice(one),
            value=one.share,
            limit=limits.of("share"),
            cause=one.by,
            location=of_loss(loop, one),
        )


_ROWS = "softmax of multi-label"


def _message(one: Reach) -> str:
    targets = f"the targets lie between {number(one.least)} and {number(one.greatest)}"
    read = in_steps(one.outside, one.readings, "batch that was read", "batches that were read")
    share = f"{percent(one.share)} or more of them are out of range {read}"
    if one.by == _ROWS:
        return (
            "the softmax at the model's end gives probabilities that sum to 1, and the labels of a "
            f"sample sum to up to {one.greatest:g}: {percent(one.share)} or more of the samples "
            f"have several labels, {read}."
        )
    if one.by.startswith("binary") and one.greatest < 0.5 and one.least == 0:
        return (
            f"the labels of `{one.by}` are 0 and {number(one.greatest)}, which is 1/255, {read}: "
            "a mask of 0 and 1 was divided by 255."
        )
    if one.by.startswith("binary"):
        return (
            f"the labels of `{one.by}` lie between {number(one.least)} and "
            f"{number(one.greatest)}, not between 0 and 1: {share}."
        )
    return f"{targets}, and the {one.by} at the model's end gives {_range(one)}: {share}."


def _range(one: Reach) -> str:
    if one.high == float("inf"):
        return f"nothing below {one.low:g}"
    if one.low == -float("inf"):
        return f"nothing above {one.high:g}"
    return f"{one.low:g} to {one.high:g}"


def _advice(one: Reach) -> str | None:
    if one.by == _ROWS:
        return "Use a sigmoid for several labels at once: `BCEWithLogitsLoss` on the scores."
    if one.by.startswith("binary"):
        return "Use labels of 0 and 1: `(labels > 0).float()`."
    return f"Leave out the {one.by} after the last layer, or scale the targets into its range."
