"""Shapes that a recurrent layer or an attention does not take."""

from __future__ import annotations

from typing import Any

from gradscope.explain.errors.explanation import Case, Explanation, given_as
from gradscope.explain.errors.failed_operation import Operand


def recurrent(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """LSTM, GRU, RNN and their cells: width of the input, shape of the state."""
    failed = case.failed
    name, shape = failed.layer_title, given.shape
    if shape and shape[-1] != layer.input_size:
        return Explanation(
            f"`{name}` has input_size = {layer.input_size}, {given_as(failed, given)} has"
            f" {shape[-1]} in its last dimension.",
            f"make `{name}` a `nn.{type(layer).__name__}({shape[-1]}, {layer.hidden_size}, …)`, or"
            f" project the input to {layer.input_size} first",
        )
    if ("hidden" not in case.text and "batch" not in case.text) or len(failed.operands) < 2:
        return None
    hidden = failed.operands[1]
    first = getattr(layer, "batch_first", False)
    batch = shape[0 if first else 1] if len(shape) == 3 else None
    layers = getattr(layer, "num_layers", 1) * (2 if getattr(layer, "bidirectional", False) else 1)
    size = getattr(layer, "proj_size", 0) or layer.hidden_size
    wanted = (layers, batch, size) if batch is not None else (layers, size)
    order = f"batch_first={first}"
    text = "the hidden state"
    return Explanation(
        f"{text} of `{name}` is {list(hidden.shape)}; with {order} and {given_as(failed, given)} it"
        f" must be {wanted}: layers, batch, hidden_size.",
        f"make it `x.new_zeros{wanted}`, its batch read from dimension {0 if first else 1} of the"
        " input",
    )


def attention(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """MultiheadAttention: width of the query, shape of the mask."""
    failed = case.failed
    name = failed.layer_title
    if given.shape and given.shape[-1] != layer.embed_dim:
        return Explanation(
            f"`{name}` has embed_dim = {layer.embed_dim}, the query has {given.shape[-1]} in its"
            " last dimension.",
            f"make `{name}` a `nn.MultiheadAttention({given.shape[-1]}, {layer.num_heads}, …)`, or"
            f" project the query to {layer.embed_dim} first",
        )
    if "mask" in case.text:
        first = layer.batch_first
        return Explanation(
            f"`{name}` was built with batch_first={first}, so the query {list(given.shape)} is"
            f" {'[batch, length, width]' if first else '[length, batch, width]'};"
            " key_padding_mask is [batch, length of the keys].",
            f"give the mask that shape, or build the layer with `batch_first={not first}`",
        )
    return None
