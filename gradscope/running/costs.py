"""Forward again, for what each call costs: its seconds, and its floating-point operations.

Each in its own runs, without an observer: a recorder takes longer than many layers do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gradscope.capture.hooks import hooked, watchable
from gradscope.capture.names import named_modules
from gradscope.running.step import Step, repeated

#: A call by its module's name and its number.
Key = tuple[str, int]
#: Forwards that are timed; the fastest of a call counts.
_ROUNDS = 3


@dataclass
class _Meter:
    """Reads a figure that only grows at both ends of each call, and keeps the differences."""

    names: dict[nn.Module, str]
    read: Callable[[], float]
    found: dict[Key, float] = field(default_factory=dict)
    counts: Counter[nn.Module] = field(default_factory=Counter)
    running: list[tuple[nn.Module, Key, float]] = field(default_factory=list)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A call begins."""
        key = self.names[module], self.counts[module]
        self.counts[module] += 1
        self.running.append((module, key, self.read()))

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """It returns; calls inside it that have not were left by an exception."""
        now = self.read()
        while self.running:
            begun, key, start = self.running.pop()
            if begun is module:
                self.found[key] = now - start
                return


def seconds(step: Step) -> dict[Key, float]:
    """The seconds of each call's forward, calls inside it included: the fastest of three.

    A device is waited for at both ends of each call. None of anything on ``meta``.
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
    """The operations of each call's forward as PyTorch's own counter knows them.

    It counts matrix products, convolutions and attention; all else is nothing to it.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports triton: 0.2 s

    with FlopCounterMode(display=False) as counter:
        found = _metered(step, counter.get_total_flops)
    return {key: int(count) for key, count in found.items()}


def _metered(step: Step, read: Callable[[], float]) -> dict[Key, float]:
    model = step.workload.model
    meter = _Meter({module: named.name for module, named in named_modules(model).items()}, read)
    hookable = watchable(model)
    with repeated(step, weights=True) as plain, hooked(hookable, meter.before, meter.after):
        plain.forward()
    return meter.found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
