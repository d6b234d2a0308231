"""GS885: an encoder or a scaler that is fitted again on the evaluation data."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import Limits, Rule, Runs

RULE = Rule(
    code="GS885",
    name="refitted-transform",
    severity="warning",
    summary="an encoder or a scaler is fitted again on the evaluation data",
    what=(
        "Reads the script's text. It fires if `fit_transform` gets data named test, val, valid, "
        "eval, dev or holdout, and not train, and the same object was fitted on other data above, "
        "in the same function."
    ),
    why=(
        "The second fit replaces the first. An encoder numbers the classes anew, so a class that "
        "is missing in the evaluation data shifts the others. A scaler takes another mean. The "
        "model is evaluated on data that mean something else than in training."
    ),
    fix="Fit on the training data only, and call `transform` for the others.",
    sources=(
        "scikit-learn, common pitfalls: test data should not be used in fit_transform",
        "scikit-learn, LabelEncoder: fit_transform fits the encoder anew",
    ),
    runs=Runs(loop=True, end=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each call."""
    for number, one in enumerate(loop.facts_of("refitted")):
        call, before = one.words
        yield RULE.in_loop(
            loop,
            "",
            f"`{call}` fits `{one.name}` again, after its fit at {before}: it maps the evaluation "
            "data in another way than the training data.",
            advice=f"Use `{call.replace('fit_transform', 'transform')}`.",
            value=1.0,
            cause=str(number) if number else None,
            location=one.location,
        )
