"""The precision forecast: what narrower dtypes would lose of a run's activations and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from gradscope.capture.hooks import Handle, hook_tensor, hooked, watchable
from gradscope.capture.names import named_parameters
from gradscope.explain.precision.casts import Cast, Counter
from gradscope.explain.shared.module_calls import ModuleCalls
from gradscope.nesting import find
from gradscope.records.report import PrecisionForecast

DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
#: Loss scales: none, a modest one, and the one that PyTorch's GradScaler begins with.
SCALES = (1.0, 2.0**8, 2.0**16)
#: Where a safe scale is searched.
POWERS = tuple(2.0**power for power in range(25))

_Key = tuple[str, int | None, str]  # name, call, kind


def forecast(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    backward: Callable[[torch.Tensor], None],
    *,
    dtypes: Sequence[str] = DTYPES,
    scales: Sequence[float] = SCALES,
) -> tuple[PrecisionForecast, ...]:
    """Which share of the non-zero finite elements a cast would make zero, or overflow.

    Runs forward and backward once, in the run's own precision and without a loss scale, and asks of
    each tensor what a cast to each dtype would do to it: of activations as they are, of gradients
    at each loss scale. Counted exactly, rounding of ties included.

    Args:
        model: its ``.grad`` are None when this begins, and left as ``backward`` leaves them.
        forward: runs the model and the loss and returns the loss.
        backward: of that loss.
        dtypes: names of torch's floating-point dtypes.
        scales: loss scales to tell of.

    Returns:
        For each dtype: the outputs of each call (kind "activation"), the gradient of each call's
        outputs and of each parameter (kind "gradient"), one for each scale, and the totals at every
        power of two up to 2^24 (kind "total"), from which ``safest_scale`` chooses. Tensors without
        a non-zero element are left out.
    """
    counter = Counter([Cast(d, s) for d in dtypes for s in sorted({1.0, *scales, *POWERS})])
    tracer = _CastTracer(model, counter)
    try:
        with hooked(watchable(model), tracer.calls.enter, tracer.leave):
            backward(forward())
    finally:
        tracer.release()
    for parameter, named in named_parameters(model).items():
        if parameter.grad is not None:
            tracer.add((named.name, None, "gradient"), parameter.grad)
    counts = {key: torch.stack(found).sum(0) for key, found in tracer.counts.items()}
    return tuple(_records(counter.casts, _read_back(counts), tuple(scales)))


def safest_scale(
    forecasts: Iterable[PrecisionForecast], dtype: str, *, underflow: float = 0.01
) -> float | None:
    """The smallest power of two at which no gradient overflows in ``dtype`` and no more than this
    share of the parameters' gradients becomes zero; None where there is none up to 2^24."""
    safe = [
        one.scale
        for one in forecasts
        if one.kind == "total" and one.dtype == dtype
        if one.overflow == 0 and one.underflow <= underflow
    ]
    return min(safe, default=None)


class _CastTracer:
    """The counts of each call's outputs and of their gradients; ``leave`` is for hooks."""

    def __init__(self, model: nn.Module, counter: Counter) -> None:
        self.calls = ModuleCalls(model, forecast.__code__)
        self.counts: dict[_Key, list[torch.Tensor]] = {}
        self._counter = counter
        self._handles: list[Handle] = []

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """A module's forward returned; one that a checkpoint ran again is counted already."""
        call = self.calls.innermost(module)
        self.calls.leave(module, args, kwargs, output)
        if call is None or call.recomputed:
            return
        for _, tensor in find(output, torch.Tensor):
            if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                continue  # one sample's, inside vmap or grad: it has no elements to count
            self.add((call.name, call.number, "activation"), tensor)
            if tensor.requires_grad:
                key = (call.name, call.number, "gradient")
                self._handles.append(hook_tensor(tensor, self._reader(key)))

    def add(self, key: _Key, tensor: torch.Tensor) -> None:
        """Count a tensor's elements as part of what ``key`` stands for."""
        counts = self._counter.count(tensor)
        if counts.device.type != "meta":
            self.counts.setdefault(key, []).append(counts)

    def release(self) -> None:
        """Remove every hook that is still set."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _reader(self, key: _Key) -> Callable[[torch.Tensor | None], None]:
        def read(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                self.add(key, gradient)

        return read


_Counts = dict[_Key, list[int]]


def _read_back(counts: dict[_Key, torch.Tensor]) -> _Counts:
    """Everything that still lies on an accelerator, fetched together."""
    devices: dict[torch.device, list[_Key]] = {}
    for key, found in counts.items():
        devices.setdefault(found.device, []).append(key)
    done: _Counts = {}
    for keys in devices.values():
        done.update(zip(keys, torch.stack([counts[key] for key in keys]).tolist(), strict=True))
    return {key: done[key] for key in counts if done[key][-1]}


def _records(
    casts: Sequence[Cast], counts: _Counts, scales: tuple[float, ...]
) -> Iterable[PrecisionForecast]:
    """The activations in the order of forward, then gradients, then the totals, dtype by dtype."""
    for i, cast in enumerate(casts):
        for (name, call, kind), found in counts.items():
            if cast.scale in ((1.0,) if kind == "activation" else scales):
                share = _shares(found, i, len(casts))
                yield PrecisionForecast(
                    name, kind, cast.dtype, cast.scale, found[-1], *share, call=call
                )
        if cast.scale in POWERS:
            yield from _total(cast, i, len(casts), counts)


def _total(cast: Cast, i: int, n: int, counts: _Counts) -> Iterable[PrecisionForecast]:
    gradients = {key: found for key, found in counts.items() if key[2] == "gradient"}
    if not gradients:
        return
    parameters = _summed([found for key, found in gradients.items() if key[1] is None])
    everything = _summed(list(gradients.values()))
    under, over = _shares(parameters, i, n)[0], _shares(everything, i, n)[1]
    numel = parameters[-1] if parameters else 0
    yield PrecisionForecast("**", "total", cast.dtype, cast.scale, numel, under, over)


def _summed(counts: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*counts, strict=True)]


def _shares(found: list[int], i: int, n: int) -> tuple[float, float]:
    """The shares that cast number ``i`` of ``n`` makes zero and infinite."""
    if not found:
        return 0.0, 0.0
    return found[i] / found[-1], found[n + i] / found[-1]
