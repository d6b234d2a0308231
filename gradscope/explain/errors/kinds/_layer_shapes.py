"""Shapes that a layer of ``torch.nn`` does not take: what it wants, what came, the smallest fix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from gradscope.explain.errors.explanation import (
    Case,
    Explanation,
    factors,
    given_as,
    method,
)
from gradscope.explain.errors.failed_operation import FailedOperation, Operand
from gradscope.explain.errors.kinds import _norm_shapes, _sequence_shapes

LayerExplainer = Callable[[Case, Any, Operand], Explanation | None]


def explain(case: Case) -> Explanation | None:
    """What the layer that raised wants, against what it was given."""
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
    """The shape that the input had before it was flattened to [N, features]."""
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
    """The pooling that would give what the layer wants, where there is one."""
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
    ((nn.modules.batchnorm._NormBase,), _norm_shapes.batch_norm),
    ((nn.LayerNorm,), _norm_shapes.layer_norm),
    ((nn.GroupNorm,), _norm_shapes.group_norm),
    ((nn.RNNBase, nn.RNNCellBase), _sequence_shapes.recurrent),
    ((nn.MultiheadAttention,), _sequence_shapes.attention),
    ((nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd), _pooling),
)
