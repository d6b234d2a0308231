"""A sample as rows of numbers: a row for each call and each parameter, for series over steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.tensors import TensorStats
from gradscope.records.training import StepSample

Number = float | int | None


def call_rows(sample: StepSample) -> Iterator[tuple[int | str | Number, ...]]:
    """The rows of the table ``call``."""
    for call in sample.report.calls:
        yield sample.step, sample.model, call.name, call.call, call.type, *_of_call(call)


def parameter_rows(sample: StepSample) -> Iterator[tuple[int | str | Number, ...]]:
    """The rows of the table ``parameter``."""
    for one in sample.report.parameters:
        yield sample.step, sample.model, one.name, *_of_parameter(one, sample.clipped)


def joined(parts: Sequence[TensorStats], shape: tuple[int, ...]) -> TensorStats:
    """Several tensors as one of that shape."""
    if len(parts) == 1:
        return replace(parts[0], shape=shape)
    mean, std = _moments(parts)
    return TensorStats(
        *(shape, parts[0].dtype, sum(part.numel for part in parts), _norm(parts), mean, std),
        min=_extreme(min, [part.min for part in parts]),
        max=_extreme(max, [part.max for part in parts]),
        zeros=_count([part.zeros for part in parts]),
        nan=_count([part.nan for part in parts]),
        inf=_count([part.inf for part in parts]),
    )


def _count(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _of_call(call: ModuleCall) -> tuple[Number, ...]:
    outputs = [output.activation for output in call.outputs]
    grad_out = [output.gradient for output in call.outputs if output.gradient is not None]
    grad_in = [given.gradient for given in call.inputs if given.gradient is not None]
    return (
        _norm(outputs),
        *_moments(outputs),
        _extreme(min, [stats.min for stats in outputs]),
        _extreme(max, [stats.max for stats in outputs]),
        _zeros(outputs),
        _nonfinite(outputs),
        _norm(grad_out),
        _nonfinite(grad_out),
        _norm(grad_in),
        _nonfinite(grad_in),
    )


def _of_parameter(one: ParameterStats, clipped: dict[str, float | None]) -> tuple[Number, ...]:
    gradient = [] if one.gradient is None else [one.gradient]
    norm = _norm(gradient)
    both = [one.value, *gradient]
    return (
        _norm([one.value]),
        norm,
        _finite(clipped.get(one.name, norm)),
        _finite(one.update_norm),
        _finite(one.update_ratio),
        _zeros(gradient),
        _nonfinite(both),
    )


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _norm(tensors: Sequence[TensorStats]) -> float | None:
    norms = [stats.norm for stats in tensors if stats.norm is not None]
    if not norms:
        return None
    # `hypot` of one number is that number, and of several it does not overflow.
    return _finite(math.hypot(*norms))


def _moments(tensors: Sequence[TensorStats]) -> tuple[Number, Number]:
    """Mean and standard deviation of the finite elements of all."""
    if len(tensors) == 1:
        return _finite(tensors[0].mean), _finite(tensors[0].std)
    known = [
        (stats.numel - (stats.nan or 0) - (stats.inf or 0), stats.mean, stats.std)
        for stats in tensors
        if stats.mean is not None and stats.std is not None
    ]
    total = sum(count for count, _, _ in known)
    if not total:
        return None, None
    mean = sum(count * mean for count, mean, _ in known) / total
    spread = sum(count * (std * std + (one - mean) ** 2) for count, one, std in known) / total
    return _finite(mean), _finite(math.sqrt(spread))


def _extreme(
    choose: Callable[[list[float]], float], values: Iterable[float | None]
) -> float | None:
    known = [value for value in values if value is not None]
    return _finite(choose(known)) if known else None


def _zeros(tensors: Sequence[TensorStats]) -> float | None:
    known = [(stats.zeros, stats.numel) for stats in tensors if stats.zeros is not None]
    elements = sum(numel for _, numel in known)
    return sum(zeros for zeros, _ in known) / elements if elements else None


def _nonfinite(tensors: Sequence[TensorStats]) -> int | None:
    known = [
        stats.nan + stats.inf
        for stats in tensors
        if stats.nan is not None and stats.inf is not None
    ]
    return sum(known) if known else None
