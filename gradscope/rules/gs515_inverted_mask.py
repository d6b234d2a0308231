"""GS515: a padding mask that hides the tokens and shows the padding."""

from __future__ import annotations

from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.records.tensors import TensorStats
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import percent

RULE = Rule(
    code="GS515",
    name="inverted-mask",
    severity="error",
    summary="an attention mask is inverted: it hides the tokens and shows the padding",
    what=(
        "Counts the zeros in an embedding's token indices, and the True entries of the "
        "`key_padding_mask` of attention layers. It fires if the mask has as many True entries "
        "as there are tokens other than 0, and not as many as there are zeros. Masks of all True "
        "or all False do not count. It also reads the weights of each self-attention: it fires "
        "if all keys of every row are masked, or if every head attends only to keys after the "
        "query."
    ),
    why=(
        "True means ignore: attention sees only the padding, which is the same in all samples. A "
        "row without padding has no key left and becomes NaN. An inverted causal mask shows the "
        "future and hides the past."
    ),
    fix=(
        "Give `key_padding_mask=(tokens == pad)`: in `nn.MultiheadAttention`, True is masked. In "
        "`scaled_dot_product_attention` it is the reverse: True takes part."
    ),
    sources=(
        "PyTorch, torch.nn.MultiheadAttention: key_padding_mask, True is ignored",
        "PyTorch, scaled_dot_product_attention: attn_mask, True takes part in attention",
        "PyTorch forum: TransformerEncoder src_key_padding_mask, True or False for padding",
    ),
    runs=Runs(per="model", parameters="all", calls=True, structure="attention", at_call=True),
    explains=("GS103", "GS201", "GS301", "GS513", "GS603", "GS613"),
)
#: A larger weight on later keys is all of the weight, except for rounding.
_ALL = 1 - 1e-6
#: Largest number of tokens that a model may add to those of its input.
_OWN = 2
_MASKS = ("key_padding_mask", "src_key_padding_mask")


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding, at the first layer with such a mask."""
    found = next(_padding(report), None) or next(_weights(report), None)
    if found is not None:
        yield found


def _weights(report: Report) -> Findings:
    """Judge the mask by the attention weights."""
    for call in report.attention:
        if call.queries != call.keys or call.keys < 3:
            continue
        if all(x == 1 for x in call.masked_rows):
            message = "all its keys are masked, in every row that was read: the mask is inverted."
            yield RULE.finding(call.name, message, call=call.call, value=1.0)
        elif all(x is not None and x > _ALL for x in call.ahead):
            message = (
                "every head attends only to keys after the query: the causal mask is inverted, "
                "and the model sees the future."
            )
            yield RULE.finding(call.name, message, call=call.call, value=1.0)


def _padding(report: Report) -> Findings:
    """Judge a padding mask by the padding."""
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
        mask = _mask(call, tokens.shape)
        if mask is None:
            continue
        found = mask.numel - (mask.zeros or 0)
        # A token of the model's own, such as [CLS], is before or after those of the input.
        own = mask.numel - tokens.numel
        if found != tokens.numel - tokens.zeros + own or found == tokens.zeros:
            continue
        beside = f" and the {own:,} that the model adds" if own else ""
        yield RULE.finding(
            call.name,
            f"its key_padding_mask is True at {found:,} of {mask.numel:,} places "
            f"({percent(found / mask.numel)}), as many as there are tokens{beside}, and False at "
            f"the {tokens.zeros:,} of padding (token 0). True means ignore: the mask is inverted, "
            "and attention sees only the padding.",
            call=call.call,
            value=found / mask.numel,
        )
        return


def _mask(call: ModuleCall, shape: tuple[int, ...]) -> TensorStats | None:
    """Return a call's padding mask for tokens of this shape, with a few more for the model's own
    tokens; None without one."""
    for one in call.inputs:
        mask = one.activation
        if one.path not in _MASKS or mask.dtype != "bool" or len(mask.shape) != 2:
            continue
        if mask.shape[0] == shape[0] and 0 <= mask.shape[1] - shape[1] <= _OWN:
            return mask
    return None
