"""Explains wrong shapes in a layer of ``torch.nn``: the needed shape, the given one, the smallest
fix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from gradscope.explain.errors.explanation import (
    Case,
    Explanation,
    FailedOperation,
    Operand,
    factors,
    given_as,
    method,
)


def _recurrent(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """Explain LSTM, GRU, RNN and their cells: width of the input, shape of the state."""
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


def _attention(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """Explain MultiheadAttention: width of the query, shape of the mask."""
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


def _batch_norm(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """Explain BatchNorm and InstanceNorm: dimensions and channels."""
    failed = case.failed
    name, shape, wanted = failed.layer_title, given.shape, layer.num_features
    allowed = {"1d": (2, 3), "2d": (4,), "3d": (5,)}.get(type(layer).__name__[-2:], ())
    if allowed and len(shape) + 1 == min(allowed) and shape[:1] == (wanted,):
        return Explanation(
            f"`{name}`, a {type(layer).__name__}, takes {' or '.join(map(str, allowed))}"
            f" dimensions, {given_as(failed, given)} has {len(shape)}, its {wanted} channels first:"
            " the batch dimension is missing.",
            "give the model a batch: `x.unsqueeze(0)` for one sample `x`, or `input.batch`",
        )
    if allowed and len(shape) not in allowed:
        better = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}.get(len(shape))
        kind = type(layer).__name__
        fix = f"use `nn.{kind[:-2]}{better}`" if better else "bring the input to those dimensions"
        return Explanation(
            f"`{name}`, a {kind}, takes {' or '.join(map(str, allowed))} dimensions,"
            f" {given_as(failed, given)} has {len(shape)}.",
            fix,
        )
    if len(shape) > 1 and shape[1] != wanted:
        return Explanation(
            f"`{name}` has num_features = {wanted}, {given_as(failed, given)} has {shape[1]}"
            " channels at dimension 1.",
            f"make `{name}` a `nn.{type(layer).__name__}({shape[1]})`",
        )
    return None


def _layer_norm(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """Explain LayerNorm: the last dimensions."""
    failed = case.failed
    wanted = list(layer.normalized_shape)
    got = list(given.shape[-len(wanted) :])
    if got == wanted:
        return None
    shape_of = f"`{failed.layer_title}` has normalized_shape = {wanted}"
    fact = f"{shape_of}, {given_as(failed, given)} ends with"
    return Explanation(
        f"{fact} {got}.",
        f"make `{failed.layer_title}` a `nn.LayerNorm({got[0] if len(got) == 1 else got})`",
    )


def _group_norm(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """Explain GroupNorm: channels."""
    failed = case.failed
    if len(given.shape) < 2 or given.shape[1] == layer.num_channels:
        return None
    name, got = failed.layer_title, given.shape[1]
    groups = layer.num_groups if got % layer.num_groups == 0 else "…"
    return Explanation(
        f"`{name}` has num_channels = {layer.num_channels} in {layer.num_groups} groups,"
        f" {given_as(failed, given)} has {got} channels at dimension 1.",
        f"make `{name}` a `nn.GroupNorm({groups}, {got})`, in groups that divide {got}",
    )


LayerExplainer = Callable[[Case, Any, Operand], Explanation | None]


def explain(case: Case) -> Explanation | None:
    """Explain a shape error by the layer that raised: the shape it needs and the shape it got."""
    failed = case.failed
    if failed.layer is None or not failed.operands:
        return None
    given = failed.operands[0]
    for kinds, explainer in _EXPLAINERS:
        if isinstance(failed.layer, kinds):
            return explainer(case, failed.layer, given)
    return None


def _word(failed: FailedOperation) -> str:
    return failed.argument or "x"


def _conv(case: Case, layer: Any, given: Operand) -> Explanation | None:
    failed = case.failed
    spatial = len(layer.kernel_size)
    shape, name = given.shape, failed.layer_title
    if len(shape) not in (spatial + 1, spatial + 2):
        axes = ", ".join("DHW"[3 - spatial :] if spatial < 4 else "…")
        return Explanation(
            f"`{name}` takes [N, C, {axes}], {given_as(failed, given)} has {len(shape)}"
            " dimensions.",
            "add the batch dimension with `unsqueeze(0)`"
            if len(shape) < spatial + 1
            else f"bring it to {spatial + 2} dimensions, as with `flatten` or `view`",
        )
    axis = len(shape) - spatial - 1
    got, wanted = shape[axis], layer.in_channels
    x = _word(failed)
    if got == wanted:
        return _kernel(failed, layer, given, spatial)
    fact = f"`{name}.weight` expects {wanted} channels, {given_as(failed, given)} has {got}"
    if shape[-1] == wanted:
        order = [*range(axis), len(shape) - 1, *range(axis, len(shape) - 1)]
        turned = f"permute({', '.join(map(str, order))})"
        return Explanation(
            f"{fact} at dimension {axis}; the {wanted} are last.",
            f"put the channels first: `{method(x, turned)}` before `{name}`",
        )
    kind = type(layer).__name__
    fix = f"make `{name}` a `{kind}({got}, {layer.out_channels}, …)`"
    if got == 1 and wanted == 3:
        sizes = ", ".join(["-1", "3", *["-1"] * spatial])
        fix += f", or repeat the grey channel: `{method(x, f'expand({sizes})')}`"
    elif spatial == 1 and shape[-1] != got:
        fix += "; if the features are last, `transpose(1, 2)` first"
    return Explanation(f"{fact}.", fix)


def _kernel(failed: FailedOperation, layer: Any, given: Operand, spatial: int) -> Explanation:
    name = failed.layer_title
    size = "×".join(str(n) for n in given.shape[-spatial:])
    kernel = "×".join(str(n) for n in layer.kernel_size)
    return Explanation(
        f"the kernel of `{name}` is {kernel}, {given_as(failed, given)} only {size}"
        f" (padding {layer.padding}).",
        "use larger images, or fewer strides and pools before it; or a smaller kernel or"
        f" `padding` for `{name}`",
    )


def _linear(case: Case, layer: Any, given: Operand) -> Explanation | None:
    failed = case.failed
    shape, name, wanted = given.shape, failed.layer_title, layer.in_features
    if not shape or shape[-1] == wanted:
        return None
    got = shape[-1]
    fact = f"`{name}.weight` takes in_features = {wanted}, {given_as(failed, given)} has {got}"
    x = _word(failed)
    if len(shape) > 2 and math.prod(shape[1:]) == wanted:
        return Explanation(
            f"{fact} in its last dimension; {factors(shape[1:])} = {wanted} of one sample.",
            f"flatten before `{name}`: `nn.Flatten()` or `{method(x, 'flatten(1)')}`",
        )
    before = _unflattened(case, failed, shape)
    if before is not None:
        sizes = before[1:]
        pool = _pool(sizes, wanted)
        return Explanation(
            f"{fact} = {factors(sizes)}, flattened from {list(before)}.",
            f"replace {wanted} by {got} in `{name}`{pool}",
        )
    if len(shape) > 2 and wanted in shape[1:-1]:
        axis = shape.index(wanted, 1)
        return Explanation(
            f"{fact} in its last dimension and {wanted} at dimension {axis}.",
            f"move it to the end: `{method(x, f'transpose({axis}, -1)')}` before `{name}`",
        )
    return Explanation(
        f"{fact} in its last dimension.",
        f"make `{name}` a `nn.Linear({got}, {layer.out_features})`, or what comes before it"
        f" {wanted} wide",
    )


def _unflattened(
    case: Case, failed: FailedOperation, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the input's shape before it was flattened to [N, features]."""
    if len(shape) != 2:
        return None
    if case.tracer is not None and shape in case.tracer.flattened:
        found = case.tracer.flattened[shape]
        if len(found) > 2:
            return found
    for other in (failed.local_shapes or {}).values():
        if len(other) > 2 and other[0] == shape[0] and math.prod(other[1:]) == shape[1]:
            return other
    return None


def _pool(sizes: tuple[int, ...], wanted: int) -> str:
    """Return the pooling that gives the layer's size; "" without one."""
    channels, *call_site = sizes
    if len(call_site) != 2 or wanted % channels:
        return ""
    side = round((wanted // channels) ** 0.5)
    if side * side * channels != wanted:
        return ""
    return f", or pool to {side}×{side} before it: `nn.AdaptiveAvgPool2d({side})`"


def _pooling(case: Case, layer: Any, given: Operand) -> Explanation | None:
    failed = case.failed
    if "too small" not in case.text:
        return None
    return Explanation(
        f"`{failed.layer_title}` pools by {layer.kernel_size}, {given_as(failed, given)} leaves"
        " nothing to pool.",
        f"use larger images, or remove `{failed.layer_title}` or a stride before it",
    )


_EXPLAINERS: tuple[tuple[Any, LayerExplainer], ...] = (
    ((nn.modules.conv._ConvNd,), _conv),
    ((nn.Linear,), _linear),
    ((nn.modules.batchnorm._NormBase,), _batch_norm),
    ((nn.LayerNorm,), _layer_norm),
    ((nn.GroupNorm,), _group_norm),
    ((nn.RNNBase, nn.RNNCellBase), _recurrent),
    ((nn.MultiheadAttention,), _attention),
    ((nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd), _pooling),
)
