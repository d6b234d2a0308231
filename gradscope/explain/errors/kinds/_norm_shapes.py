"""Shapes that a normalisation does not take."""

from __future__ import annotations

from typing import Any

from gradscope.explain.errors.explanation import Case, Explanation, given_as
from gradscope.explain.errors.failed_operation import Operand


def batch_norm(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """BatchNorm and InstanceNorm: dimensions and channels."""
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


def layer_norm(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """LayerNorm: the last dimensions."""
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


def group_norm(case: Case, layer: Any, given: Operand) -> Explanation | None:
    """GroupNorm: channels."""
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
