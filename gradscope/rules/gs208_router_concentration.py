"""GS208: a router that sends nearly all tokens to a few experts."""

from __future__ import annotations

from gradscope.records.report import Report
from gradscope.records.transformer import ExpertCall
from gradscope.rules._rule import OWN, Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number, percent

RULE = Rule(
    code="GS208",
    name="router-concentration",
    severity="warning",
    summary="a router sends nearly all tokens to the same few experts",
    what=(
        "Reads the share of the assignments that each expert gets, and from it the effective "
        "number of experts: the exponential of the shares' entropy. It fires if that is hardly "
        "more than the experts per token, and far fewer than there are. A few experts without "
        "tokens do not count."
    ),
    why=(
        "Chosen experts train, and are chosen more. The others keep their initial weights: the "
        "model has the capacity of a few experts and the memory of all."
    ),
    fix=(
        "Add a load-balancing loss, or a bias per expert that is adjusted by the load. Check its "
        "weight, and that the router's logits stay small (z-loss)."
    ),
    sources=(
        "Shazeer et al. 2017 (arXiv 1701.06538): the gate converges to the same few experts",
        "Fedus et al. 2021, Switch Transformers (arXiv 2101.03961), load balancing loss",
        "DeepSeek-V3 2024 (arXiv 2412.19437): a bias per expert in place of the loss",
    ),
    thresholds=(
        Threshold(
            "spread",
            2,
            ("effective experts divided by the experts per token, at or below which it fires"),
        ),
        Threshold(
            "share", 0.4, "effective experts as a share of all, at or below which it fires", OWN
        ),
        Threshold("tokens", 4, "assignments per expert needed to judge", OWN),
    ),
    calibration=(
        "Of 14 healthy trainings of small transformers, 320 to 600 steps long, 0 of 14 fire, "
        "and 1 of 1 broken ones is found. Of 8 experts, top-2 routers without a balancing loss "
        "stayed at 6.4 or more, top-1 at 5; a concentrated one at 2.3 to 2.9."
    ),
    runs=Runs(samples=6, calls=True, structure="experts"),
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per routing."""
    for call in report.experts:
        if call.effective is None or not _is_judged(call, limits):
            continue
        few = min(limits["spread"] * call.top_k, limits["share"] * len(call.share))
        if call.effective <= few:
            most = max((x for x in call.share if x is not None), default=0.0)
            unused = sum(x == 0 for x in call.share)
            yield RULE.finding(
                call.name,
                f"the load of {len(call.share)} experts is as uneven as if only "
                f"{number(call.effective)} were used equally, with {call.top_k} per token: one "
                f"gets {percent(most)} of the assignments, {unused} get none.",
                call=call.call,
                value=call.effective,
                threshold=few,
                source=limits.source("spread"),
            )


def _is_judged(call: ExpertCall, limits: Limits) -> bool:
    return call.tokens * call.top_k >= limits["tokens"] * len(call.share)
