"""GS844: kl_div with probabilities in place of log-probabilities, or the other way round."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, enough, in_steps
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

RULE = Rule(
    code="GS844",
    name="kl-of-probabilities",
    severity="error",
    summary="`kl_div` gets probabilities instead of log-probabilities, or the other way round",
    what=(
        "Reads the arguments of `torch.nn.functional.kl_div`, which `nn.KLDivLoss` calls, in the "
        "sampled steps. It fires if the input is probabilities (at least 0, with a sum of 1), or "
        "if the target is log-probabilities without `log_target`, or probabilities with it."
    ),
    why=(
        "The result is not a divergence: it may be negative, and its minimum is not at the target."
    ),
    fix=(
        "Give `F.kl_div(log_probabilities, probabilities)`: `F.log_softmax` for the input; "
        "`log_target=True` if the target is logarithms too."
    ),
    sources=(
        "PyTorch, torch.nn.KLDivLoss: the input is expected to be in log-space",
        "PyTorch forum: KLDivLoss is negative",
    ),
    thresholds=(
        Threshold("share", 0.5, "share of the calls that were read, above which it fires", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS6",),
)


_WORDS = {
    "kl-input": "the input of `kl_div` is probabilities, and should be log-probabilities",
    "kl-target": "the target of `kl_div` is log-probabilities, and should be probabilities",
    "kl-log-target": "the target of `kl_div` is probabilities, but `log_target=True` expects "
    "log-probabilities",
}
_ADVICE = {
    "kl-input": "Give `F.log_softmax(scores, dim)` as the input, not `F.softmax`.",
    "kl-target": "Give the softmax as the target, or `log_target=True`.",
    "kl-log-target": "Leave out `log_target=True`, or give the log-softmax as the target.",
}


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each kind."""
    for one in loop.operations:
        if one.kind not in _WORDS or not enough(loop, one.count):
            continue
        low, high, calls = one.figures
        if one.count <= limits["share"] * calls:
            continue
        yield RULE.in_loop(
            loop,
            "",
            f"{_WORDS[one.kind]}: values from {number(low)} to {number(high)}, "
            f"{in_steps(one.count, int(calls), 'call')} that were read. The result is not a "
            "divergence.",
            advice=_ADVICE[one.kind],
            value=float(one.count),
            threshold=limits["share"],
            cause=one.kind,
            location=one.location,
        )
