"""GS512: dropout that leaves next to nothing."""

from __future__ import annotations

from gradscope.records.report import Report
from gradscope.rules._rule import CHOSEN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import listed, percent

RULE = Rule(
    code="GS512",
    name="heavy-dropout",
    severity="info",
    summary="dropout drops nearly all activations",
    what=(
        "Reads `p` of the dropout layers that run in train mode. It fires if they drop most "
        "activations."
    ),
    why=(
        "PyTorch's `p` is the probability to drop an activation. TensorFlow 1 used the "
        "probability to keep it: its `keep_prob=0.9` is `p=0.1` in PyTorch. With `p=0.9` a tenth "
        "of the units is left, scaled by 10, and the gradient is mostly noise."
    ),
    fix="Give the probability to drop: `nn.Dropout(0.1)` keeps 90 %.",
    sources=(
        "PyTorch, torch.nn.Dropout: p, probability of an element to be zeroed",
        "Srivastava et al. 2014, Dropout: 0.5 for hidden units, 0.2 for inputs",
    ),
    thresholds=(
        Threshold("probability", 0.75, "probability to drop, at or above which it fires", CHOSEN),
    ),
    runs=Runs(per="model", parameters="all"),
    explains=("GS201", "GS613"),
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding for the model, at the first of them."""
    found = [
        (one.name, one.settings["p"])
        for one in report.modules
        if one.calls
        and one.training
        and any("Dropout" in kind for kind in one.kinds)
        and limits["probability"] <= one.settings.get("p", 0.0) < 1
    ]
    if not found:
        return
    name, p = found[0]
    names = listed([name for name, _ in found])
    yield RULE.finding(
        name,
        f"{names} {'drops' if len(found) == 1 else 'drop'} {percent(p)} of the activations "
        f"(p={p:g}), and {percent(1 - p)} are left: `p` is the probability to drop, not to keep.",
        value=p,
        limit=limits.of("probability"),
    )
