"""The gradients of a step: their norms, whether they are finite, and how often all are read."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torch import nn

from gradscope.capture.norms import gradient_norms
from gradscope.capture.reductions import BLOCK
from gradscope.training.interval import Interval

#: Over so many readings of all gradients it is measured what one takes, and how rare they may get.
_MEASURED, _RAREST = 16, 64


@dataclass(slots=True)
class Gradients:
    """The gradients at the end of a backward: their norms, and what tells whether they changed."""

    norms: dict[nn.Parameter, float] = field(default_factory=dict)
    versions: dict[nn.Parameter, tuple[int, int]] = field(default_factory=dict)

    def changed(self, parameter: nn.Parameter) -> bool:
        """Whether a gradient is another one, or was written to, since it was read."""
        gradient = parameter.grad
        assert gradient is not None
        return self.versions.get(parameter) != (id(gradient), gradient._version)

    def after_step_of(self, held: Collection[nn.Parameter]) -> Gradients:
        """Those that wait for another optimizer's step, where one backward is for several."""
        return Gradients(
            {p: norm for p, norm in self.norms.items() if p not in held},
            {p: version for p, version in self.versions.items() if p not in held},
        )


class GradientReader:
    """Reads gradients: all of them as often as half the budget pays for.

    Args:
        interval: knows the budget, and what a plain step takes.
    """

    def __init__(self, interval: Interval) -> None:
        #: All gradients are read every so many steps.
        self.every = 1
        self._interval = interval
        self._seconds: deque[float] = deque(maxlen=_MEASURED)

    def reads_all(self, step: int) -> bool:
        """Whether all gradients are read in the step that comes after so many."""
        return step % self.every == 0

    def read(self, parameters: Sequence[nn.Parameter]) -> Gradients:
        """Of those that have one, as it is now."""
        there = {p: p.grad for p in parameters if p.grad is not None}
        if not there:
            return Gradients()
        began = time.perf_counter()
        norms = gradient_norms(list(there.values()))
        self._seconds.append(time.perf_counter() - began)
        return Gradients(
            dict(zip(there, norms, strict=True)),
            {p: (id(g), g._version) for p, g in there.items()},
        )

    @staticmethod
    def are_finite(parameters: Sequence[nn.Parameter]) -> bool:
        """In the other steps: whether the gradients of these are finite."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        return all(map(math.isfinite, gradient_norms(gradients)))

    def ended(self, steps: int) -> None:
        """So many steps have been made: now and then it is measured what reading takes."""
        if steps % _MEASURED or self._interval.every is not None or not self._seconds:
            return
        plain = self._interval.plain
        if not plain:
            return
        share = statistics.median(self._seconds) / plain
        self.every = min(_RAREST, max(1, math.ceil(2 * share / self._interval.budget)))


def small(parameters: Collection[nn.Parameter]) -> list[nn.Parameter]:
    """Those whose gradients are read in every step: biases and norms.

    There is one in nearly every layer, and what is not finite is so in all that backward comes to
    later.
    """
    return [p for p in parameters if p.numel() <= BLOCK]
