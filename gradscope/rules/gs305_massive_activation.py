"""GS305: massive activations in half precision."""

from __future__ import annotations

from gradscope.records.report import Report
from gradscope.rules._rule import Findings, Limits, Rule, Runs, Threshold
from gradscope.rules._words import number

_SOURCE = "Sun et al. 2024, Massive activations in LLMs"

RULE = Rule(
    code="GS305",
    name="massive-activation",
    severity="info",
    summary="the residual stream has massive activations in half precision",
    what=(
        "Reads the output of each residual block in float16, bfloat16 or float8. It fires at the "
        "first block whose largest magnitude is above 100, and 1,000 times the median magnitude."
    ),
    why=(
        "A few features of a few tokens are thousands of times as large as the rest. Large "
        "language models develop them in training. bfloat16 rounds whatever is added to such a "
        "feature to 1/256 of it. One scale per tensor, as in float8 and quantisation, leaves few "
        "bits for the rest."
    ),
    fix=(
        "Keep the residual stream in float32 (autocast), or use scales per channel. With a "
        "learned sink or a gate, attention does not need the outliers."
    ),
    sources=(
        "Sun et al. 2024, Massive activations in large language models (arXiv 2402.17762)",
        "Dettmers et al. 2022, LLM.int8() (arXiv 2208.07339): outlier features",
    ),
    thresholds=(
        Threshold("size", 100, "largest magnitude, above which it fires", _SOURCE),
        Threshold(
            "ratio", 1000, "largest divided by median magnitude, above which it fires", _SOURCE
        ),
    ),
    runs=Runs(per="model", parameters="all", calls=True, structure="residual"),
)
_HALF = ("float16", "bfloat16", "float8")


def find(report: Report, limits: Limits) -> Findings:
    """Yield at most one finding, of the first block."""
    for call in report.residual:
        if not call.dtype.startswith(_HALF) or call.largest is None or call.max_to_median is None:
            continue
        if call.largest > limits["size"] and call.max_to_median > limits["ratio"]:
            yield RULE.finding(
                call.name,
                f"the largest magnitude of its output is {number(call.largest)}, "
                f"{number(call.max_to_median)} times the median magnitude, in {call.dtype}.",
                call=call.call,
                value=call.max_to_median,
                limit=limits.of("ratio"),
            )
            return
