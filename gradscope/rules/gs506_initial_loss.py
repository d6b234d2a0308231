"""GS506: a first loss far above that of guessing."""

from __future__ import annotations

import math

from gradscope.records.report import Report
from gradscope.records.tensors import TensorStats
from gradscope.rules._reading import LOG_SOFTMAX
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS506",
    name="initial-loss",
    severity="info",
    summary="the first loss is far above ln(classes)",
    what=(
        "Compares the first cross entropy with ln(C), the loss of guessing among C classes. It "
        "does not judge models whose config loads weights or a checkpoint, a sum of several cross "
        "entropies, nor a loss below ln(C): a trained model has one."
    ),
    why=(
        "A fresh network that is worse than guessing is confident in wrong answers: its logits "
        "are too large. The first hundred steps only shrink them."
    ),
    fix=(
        "Initialise the last layer with smaller weights and a zero bias, and normalise the "
        "inputs. Then check that the model can overfit a single batch."
    ),
    sources=(
        "CS231n notes, sanity checks before learning",
        "Karpathy, makemore part 3",
        "TheDeepChecker: initial loss",
    ),
    calibration=(
        "Of 28 healthy models, 0 of 28 fire, and 2 of 2 broken programs do. The nearest healthy"
        " loss is 1.14 times ln(classes), the nearest broken one 9.2 times."
    ),
    thresholds=(
        Threshold("factor", 2, ("the first loss divided by ln(classes), above which it fires")),
    ),
    explains=("GS613",),
    runs=Runs(samples=1, first=True, per="model", parameters="all", calls=True),
)

#: A loss whose logarithm is this near to that of the guess's sum over all samples is a sum, not a
#: mean. The scores must spread no wider than the second figure: with wider scores, a mean is as
#: large.
_NEAR, _SMALL = 0.4, 2.0


def find(report: Report, limits: Limits) -> Findings:
    """Yield at most one finding, on the model."""
    first = report.history[0].loss if report.history else _of_one_backward(report)
    # For a sum of several losses, the loss of guessing is unknown.
    if first is None or report.losses or not _is_cross_entropy(report) or _is_trained(report):
        return
    scores = _scores(report)
    shape = scores.shape if scores else ()
    classes = max((c for c in (*shape[1:2], *shape[-1:]) if c > 1), default=0)
    if not classes:
        return
    guess = math.log(classes)
    summed = guess * math.prod(shape) / classes
    if first <= limits["factor"] * guess or (_small(scores) and _near(first, summed)):
        return
    yield RULE.finding(
        "",
        f"the first loss is {number(first)}, where guessing among {classes:,} classes gives "
        f"{number(guess)}: if the weights are fresh, the scores are too large.",
        value=first / guess,
        limit=limits.of("factor"),
    )


def _of_one_backward(report: Report) -> float | None:
    """Return the loss of one backward: a step's loss is the sum over its backwards."""
    return None if report.loss is None else report.loss / report.run.repeats


def _is_cross_entropy(report: Report) -> bool:
    softmaxes = [link for link in report.links if link.op == LOG_SOFTMAX]
    likelihoods = [link for link in softmaxes if link.into.startswith("NllLoss")]
    if len(likelihoods) > max(1, report.run.repeats):  # as of several heads: their losses add up
        return False
    return bool(likelihoods) or (not report.links and report.run.loss == "cross_entropy")


def _is_trained(report: Report) -> bool:
    config = report.config
    loaded = config.get("weights") or config.get("checkpoint")
    return bool(loaded) or report.run.model.partition(":")[0] == "demo"


def _scores(report: Report) -> TensorStats | None:
    """Return the model's scores. Classes are the second axis or, for tokens, the last."""
    root = next((call for call in report.calls if call.name == ""), None)
    given = [output.activation for output in root.outputs] if root else []
    return next((stats for stats in given if len(stats.shape) > 1), None)


def _small(scores: TensorStats | None) -> bool:
    return scores is None or scores.std is None or scores.std < _SMALL


def _near(loss: float, summed: float) -> bool:
    return abs(math.log(loss / summed)) < _NEAR
