"""Measures the factor of gradient clipping at every step.

``clip_grad_norm_`` returns the norm. On an accelerator, norms are collected and read in groups,
because each read waits for the device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

import torch

from gradscope.capture.shards import is_spread
from gradscope.records.loop_figures import LoopClipping
from gradscope.training.loop.script_lines import bound_line

#: Number of latest factors kept, and of norms that may wait to be read.
_KEPT, _WAITING = 128, 32
#: A gradient that was clipped is smaller than it was by more than rounding; the largest factor.
_CLIPPED, _MOST = 1 + 1e-3, 1e30


class _Of:
    """The clipping of one optimizer's gradients."""

    def __init__(self) -> None:
        self.clips = 0
        self.by_call = False
        self.bound: float | None = None
        self.location: str | None = None
        self.factors: deque[float] = deque(maxlen=_KEPT)
        self.waiting: list[tuple[torch.Tensor, float]] = []

    def add(self, norm: float, bound: float) -> None:
        """Note a clip: the norm before, and the bound of the norm after."""
        if not math.isfinite(norm) or norm <= 0:
            return
        factor = min(norm / bound, _MOST) if bound > 0 else 1.0
        self.factors.append(factor if factor > _CLIPPED else 1.0)

    def read(self) -> None:
        """Read the collected norms."""
        waiting, self.waiting = self.waiting, []
        for device in {norm.device for norm, _ in waiting}:
            here = [(norm.float(), bound) for norm, bound in waiting if norm.device == device]
            norms = torch.stack([norm for norm, _ in here]).tolist()  # it waits once
            for norm, (_, bound) in zip(norms, here, strict=True):
                self.add(norm, bound)


class Clipping:
    """The factors of each optimizer, by its name.

    Clipping by the script's own code shows in the norms before and after.
    """

    def __init__(self) -> None:
        self._of: dict[str, _Of] = {}

    def clipped(self, of: str, norm: object, bound: float, location: str | None) -> None:
        """Note the norm that ``clip_grad_norm_`` returned.

        Args:
            of: the name of the optimizer.
            bound: the largest norm.
            location: the line.
        """
        if not isinstance(norm, torch.Tensor) or is_spread(norm) or norm.numel() != 1:
            return
        known = self._of.setdefault(of, _Of())
        if not known.by_call:
            known.by_call, known.clips, known.location = True, 0, location
            known.factors.clear()
        known.clips += 1
        known.bound = bound
        if norm.is_cpu:
            known.add(norm.item(), bound)
            return
        known.waiting.append((norm.detach().reshape(()), bound))
        if len(known.waiting) >= _WAITING:
            known.read()

    def measured(self, of: str, before: float | None, after: float | None) -> None:
        """Note the norm of the optimizer's gradients, after backward and at the step."""
        known = self._of.setdefault(of, _Of())
        if known.by_call or before is None or after is None:
            return
        known.clips += 1
        known.add(before, after)

    def records(self) -> Sequence[LoopClipping]:
        """Return a record per clipped optimizer."""
        found = []
        for name, known in self._of.items():
            known.read()
            if known.factors:
                found.append(
                    LoopClipping(
                        optimizer=name,
                        clips=known.clips,
                        known=len(known.factors),
                        shortened=sum(factor > 1 for factor in known.factors),
                        factor=median(known.factors),
                        bound=known.bound,
                        location=bound_line(known.location) or known.location,
                    )
                )
        return found
