"""The three steps that are compared with each other: the twin's, the plain one, the observed
one."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

import gradscope
from gradscope.records.json import to_data
from truth.cases import Case, weighted_sum
from truth.reference import Truth, observe


def truth_of(case: Case, dtype: torch.dtype = torch.float32) -> Truth:
    """The twin's step."""
    model, inputs = case.build(dtype)
    args, kwargs = case.arguments(inputs)
    return observe(model, args, kwargs, weighted_sum, autocast=case.autocast)


def report_of(case: Case, dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, Any]:
    """The data of the case's report."""
    model, inputs = case.build(dtype)
    return inspected(model, inputs, case, **options)


def inspected(model: nn.Module, inputs: Any, case: Case, **options: Any) -> dict[str, Any]:
    """The data of a report on this model, run as the case says."""
    autocast = str(case.autocast).removeprefix("torch.") if case.autocast else None
    report = gradscope.inspect(
        model, inputs, loss=weighted_sum, seed=0, autocast=autocast, **options
    )
    data: dict[str, Any] = to_data(report)
    return data


def plain_step(case: Case, dtype: torch.dtype = torch.float32) -> dict[str, Tensor | None]:
    """The parameter gradients of an unobserved step."""
    model, inputs = case.build(dtype)
    args, kwargs = case.arguments(inputs)
    cast = torch.autocast("cpu", case.autocast) if case.autocast else contextlib.nullcontext()
    torch.manual_seed(0)
    with cast:
        loss = weighted_sum(model(*args, **kwargs))
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}


def identical(one: Tensor | None, other: Tensor | None) -> bool:
    """Return True if two gradients have the same bits (and the same layout)."""
    if one is None or other is None:
        return one is other
    if one.is_sparse or other.is_sparse:
        same = one.is_sparse and other.is_sparse
        return same and torch.equal(one.coalesce().to_dense(), other.coalesce().to_dense())
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    return one.dtype == other.dtype and torch.equal(
        one.flatten().view(torch.uint8), other.flatten().view(torch.uint8)
    )
