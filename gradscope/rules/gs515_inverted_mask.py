"""GS515: a padding mask that hides the tokens and shows the padding."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.modules import ModuleCall
from gradscope.records.report import Finding, Report
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import percent

RULE = Rule(
    code="GS515",
    name="inverted-mask",
    severity="error",
    summary="a key_padding_mask is True at the tokens, and False at the padding",
    what=(
        "Counts the zeros in the token indices that an embedding takes, and the entries of the "
        "`key_padding_mask` of attention layers. It fires where the mask has as many True as there "
        "are tokens other than 0, and not as many as there are zeros. Masks of all True or all "
        "False do not count."
    ),
    why=(
        "True means ignore: attention looks at the padding alone, which is the same in all "
        "samples. Rows without padding have nothing to look at, and become NaN."
    ),
    fix="Give `key_padding_mask=(tokens == pad)`: in `nn.MultiheadAttention`, True is masked.",
    sources=(
        "PyTorch, torch.nn.MultiheadAttention: key_padding_mask, True is ignored",
        "PyTorch forum: TransformerEncoder src_key_padding_mask, True or False for padding",
    ),
    runs=Runs(per="model", parameters="all", calls=True),
    explains=("GS301", "GS513", "GS603", "GS613"),
)
_MASKS = ("key_padding_mask", "src_key_padding_mask")


def find(report: Report, limits: Limits) -> Iterator[Finding]:
    """One finding, at the first layer with such a mask."""
    kinds = {one.name: one.kinds for one in report.modules}
    pads = {one.name: one.settings.get("padding_idx") for one in report.modules}
    tokens = next(
        (
            call.inputs[0].activation
            for call in report.calls
            if "Embedding" in kinds.get(call.name, ())
            and call.inputs
            and pads.get(call.name) in (None, 0)
        ),
        None,
    )
    if tokens is None or not tokens.zeros or len(tokens.shape) != 2:
        return
    for call in sorted(report.calls, key=lambda one: one.order):
        found = _true(call, tokens.shape)
        real = tokens.numel - tokens.zeros
        if found is None or found != real or real == tokens.zeros:
            continue
        yield RULE.finding(
            call.name,
            f"its key_padding_mask is True at {found:,} of {tokens.numel:,} places "
            f"({percent(found / tokens.numel)}), as many as there are tokens, and False at the "
            f"{tokens.zeros:,} of padding (token 0). True means ignore: the mask is inverted, and "
            "attention sees the padding alone.",
            call=call.call,
            value=found / tokens.numel,
        )
        return


def _true(call: ModuleCall, shape: tuple[int, ...]) -> int | None:
    """Return the number of True entries in a call's padding mask; None without one."""
    for one in call.inputs:
        mask = one.activation
        if one.path in _MASKS and mask.dtype == "bool" and mask.shape == shape:
            return mask.numel - (mask.zeros or 0)
    return None
