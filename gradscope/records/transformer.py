"""Records of a transformer's parts: attention by head, experts by load, the residual stream.

Figures cover evenly spaced rows; a figure is None if there was nothing to measure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.data import SPARSE

Figure = float | None
#: A measure of a call: one figure, or one for each head or expert.
Figures = Figure | tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention inside a module's call. Figures have one entry per head.

    Attributes:
        name, call: the innermost module that attends, and the number of its call.
        op: "scaled_dot_product_attention", or "softmax" if the script computes the scores.
        queries, keys: lengths of the two sequences.
        rows: the number of rows read per head (queries, over samples).
        logit_max: the largest logit that is not masked: q·k times the scale, with bias and
            softcap.
        entropy, entropy_min: mean and minimum over rows, in nats, of rows that see two keys or
            more; so are the next two.
        evenness: mean of the entropy over ln(visible keys): 0 is one key, 1 is uniform.
        sink: mean weight of the first key.
        ahead: mean weight of the keys after the query's own number; None if the lengths differ.
        masked_rows, nan_rows: share of rows in which all keys are masked; with a NaN weight.
        part: number of the attention within the call.
    """

    name: str
    call: int
    op: str
    queries: int
    keys: int
    rows: int
    logit_max: tuple[Figure, ...]
    entropy: tuple[Figure, ...]
    entropy_min: tuple[Figure, ...]
    evenness: tuple[Figure, ...]
    sink: tuple[Figure, ...]
    ahead: tuple[Figure, ...]
    masked_rows: tuple[Figure, ...]
    nan_rows: tuple[Figure, ...]
    part: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ExpertCall:
    """One routing of tokens to the experts that a module holds.

    Attributes:
        name, call: the module that holds the experts, and the number of its call.
        top_k: experts per token.
        tokens: tokens that were routed.
        share: the share of each expert in all assignments; the shares add up to 1.
        effective: exp of the entropy of ``share``: the number of equally loaded experts with that
            entropy.
        entropy: mean entropy over tokens of the router's probabilities, in nats.
        dropped: share of assignments that no expert processed; None if unknown.
        part: number of the routing within the call.
    """

    name: str
    call: int
    top_k: int
    tokens: int
    share: tuple[Figure, ...]
    effective: Figure
    entropy: Figure
    dropped: Figure = None
    part: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ResidualCall:
    """One call of a block that adds to the residual stream.

    Attributes:
        name, call: the block, and the number of its call.
        dtype: the dtype of its output.
        rms, kurtosis: those of its output; the kurtosis of a normal distribution is 3.
        max_to_median: the largest magnitude over the median magnitude.
        largest: the largest magnitude.
        added: ‖output − input‖ / ‖output‖; None if the block overwrote its input.
        cosine: the cosine between output and input.
    """

    name: str
    call: int
    dtype: str
    rms: Figure
    kurtosis: Figure
    max_to_median: Figure
    largest: Figure
    added: Figure
    cosine: Figure
    part: int = field(default=0, metadata=SPARSE)


#: The measures of each table, which are fields of its record.
MEASURES: dict[str, tuple[str, ...]] = {
    "attention": (
        *("logit_max", "entropy", "entropy_min", "evenness", "sink", "ahead"),
        *("masked_rows", "nan_rows"),
    ),
    "experts": ("share", "effective", "entropy", "dropped"),
    "residual": ("rms", "kurtosis", "max_to_median", "largest", "added", "cosine"),
}
#: Kinds of records: a table for each.
PROBES = tuple(MEASURES)
TransformerCall = AttentionCall | ExpertCall | ResidualCall


def figures_of(kind: str, call: TransformerCall) -> dict[str, Figures]:
    """Return the measures of a call by name; ``kind`` is one of ``PROBES``."""
    return {measure: getattr(call, measure) for measure in MEASURES[kind]}


@dataclass(frozen=True, slots=True)
class TransformerSeries:
    """The measurements of one attention, routing or block at the sampled steps.

    ``values`` has a column for each measure, with one entry per step: a figure, or a tuple with one
    per head or expert.
    """

    name: str
    call: int
    steps: tuple[int, ...]
    values: dict[str, tuple[Figures, ...]]
    model: int = 0
    part: int = 0
