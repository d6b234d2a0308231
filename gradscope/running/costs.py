"""Measures the seconds of a step on its device, and the cost of each call in another forward.

Seconds and floating-point operations of calls are measured in their own runs, without an observer:
a recorder takes longer than many layers do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import ModuleCall, ModuleCalls
from gradscope.capture.hooks import hookable_modules, hooked
from gradscope.capture.names import module_names
from gradscope.running.step import Step, repeated


class Stopwatch:
    """Adds up the seconds of the blocks that it surrounds.

    A GPU runs asynchronously: there, events in the GPU's queue mark the start and end of a block,
    and only ``seconds`` waits for the last event.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began = 0.0
        self._seconds = 0.0
        self._start: torch.cuda.Event | None = None
        self._blocks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> None:
        if self._device.type == "cuda":
            self._start = self._mark()
        else:
            self._began = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._device.type == "cuda":
            if self._start is not None:
                self._blocks.append((self._start, self._mark()))
        else:
            self._seconds += time.perf_counter() - self._began

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @property
    def seconds(self) -> float:
        """Return the seconds of all blocks together."""
        milliseconds = 0.0
        for start, end in self._blocks:
            end.synchronize()
            milliseconds += float(start.elapsed_time(end))
        return self._seconds + milliseconds / 1000


#: A call by its module's name and its number.
Key = tuple[str, int]
#: Forwards that are timed; the fastest of a call counts.
_ROUNDS = 3


def seconds(step: Step) -> dict[Key, float]:
    """Return the seconds of each call's forward, with the calls inside it: the fastest of three.

    It waits for the device before and after each call. Empty on ``meta``.
    """
    device = step.workload.device
    if device.type == "meta":
        return {}

    def now() -> float:
        _wait(device)
        return time.perf_counter()

    rounds = [_metered(step, now) for _ in range(_ROUNDS)]
    return {key: min(one[key] for one in rounds if key in one) for key in rounds[0]}


def flops(step: Step) -> dict[Key, int]:
    """Return the floating-point operations of each call's forward by PyTorch's own counter.

    It counts matrix products, convolutions and attention; it counts other operations as 0.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports triton: 0.2 s

    with FlopCounterMode(display=False) as counter:
        found = _metered(step, counter.get_total_flops)
    return {key: int(count) for key, count in found.items()}


def _metered(step: Step, read: Callable[[], float]) -> dict[Key, float]:
    """Return the increase of a growing figure in each call."""
    model = step.workload.model
    calls = ModuleCalls(module_names(model))
    found: dict[Key, float] = {}
    began: dict[ModuleCall, float] = {}

    def before(module: nn.Module, *_: Any) -> None:
        began[calls.begin(module)] = read()

    def after(module: nn.Module, *_: Any) -> None:
        now, call = read(), calls.end(module)
        if call is not None:
            found[call.name, call.number] = now - began[call]

    with repeated(step, weights=True) as plain, hooked(hookable_modules(model), before, after):
        plain.forward()
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
