"""The step that is going on: what is known of its losses and of its gradients so far."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.capture.shards import is_spread, local, placements_of
from gradscope.records.placements import GroupNorm
from gradscope.records.training import TrainingStep
from gradscope.training.gradients import Gradients, read
from gradscope.training.optimizers import SeenOptimizer
from gradscope.training.placements import Placements


class LossScales:
    """What a gradient scaler multiplied the latest loss with.

    Attributes:
        any: whether there was such a loss.
    """

    any = False

    def __init__(self) -> None:
        self._of: tuple[weakref.ref[torch.Tensor], torch.Tensor] | None = None

    def add(self, loss: object, scale: torch.Tensor) -> None:
        """A scaler made this loss of another."""
        if isinstance(loss, torch.Tensor):
            self._of, self.any = (weakref.ref(loss), scale), True

    def of(self, roots: Sequence[torch.Tensor]) -> float | None:
        """The factor of the one that a backward begins with; None where it was not scaled."""
        if self._of is None:
            return None
        loss = self._of[0]()
        return float(self._of[1].item()) if any(root is loss for root in roots) else None


@dataclass(slots=True)
class CurrentStep:
    """Filled while a step goes on, and begun anew after it.

    Attributes:
        losses: of each backward, without the scaler's factor; None where it is no finite scalar.
        scale: the scaler's factor.
        nonfinite: "nan" or "inf", the first that was seen.
        in_loss: whether it was seen in a loss, before any gradient.
        backwards: how many have begun.
        gradients: as a backward left them.
        gradient_norm: of all that the optimizer holds, as backward left them, unscaled.
        clipped_norm: of the same as the optimizer got them.
        placements: where parameters are, in a run of several processes.
        norms: of each group of them, both norms.
        ready: when its first backward began.
        batch: how many samples outermost models were called on; only counted in several processes.
    """

    losses: list[float | None] = field(default_factory=list)
    scale: float | None = None
    nonfinite: str | None = None
    in_loss: bool = False
    backwards: int = 0
    gradients: Gradients = field(default_factory=Gradients)
    gradient_norm: float | None = None
    clipped_norm: float | None = None
    placements: Placements | None = None
    norms: tuple[GroupNorm, ...] = ()
    ready: float | None = None
    batch: int | None = None
    _read_after: int = 0  # how many backwards, when the gradients were read last

    def add_loss(self, loss: float | None, scale: float | None) -> None:
        """A backward begins with it; of several scales in a step the last holds."""
        if not self.losses:  # the first of its step: nothing of the one before holds for it
            self.scale = None
        self.scale = self.scale if scale is None else scale
        if loss is not None:
            loss = loss / (self.scale or 1.0) if math.isfinite(loss) else None
        self.losses.append(loss)
        self.backwards += 1

    def add_batch(self, size: int) -> None:
        """A model is called on so many samples."""
        self.batch = (self.batch or 0) + size

    def loss_is(self, kind: str) -> None:
        """The loss was "nan" or "inf"."""
        if self.nonfinite is None:
            self.nonfinite, self.in_loss = kind, True

    def read(self, parameters: Sequence[nn.Parameter]) -> None:
        """Read all gradients as they are now."""
        self.gradients, self._read_after = read(parameters), self.backwards

    @property
    def is_read(self) -> bool:
        """Whether the gradients were read after the last backward."""
        return self._read_after == self.backwards

    def measure(self, parameters: Sequence[nn.Parameter], optimizer: str) -> None:
        """The norms of these parameters' gradients, as read and as the optimizer gets them now."""
        left = self.gradients
        changed = [p for p in parameters if left.changed(p)]
        before = {p: left.norms[p] for p in parameters if p in left.norms}
        now = before | read(changed).norms if changed else before
        self.clipped_norm = math.hypot(*now.values()) if parameters else None
        # Without a backward the gradients were taken otherwise.
        self.gradient_norm = (
            math.hypot(*before.values()) / (self.scale or 1.0) if before else self.clipped_norm
        )
        self._see(self.clipped_norm)
        if self.placements is not None:
            self.norms = self.placements.norms(optimizer, before, now, self.scale or 1.0)

    def measure_all(self) -> None:
        """The norms of all gradients that were read, where no optimizer takes them."""
        norms = self.gradients.norms
        self.gradient_norm = self.clipped_norm = math.hypot(*norms.values()) if norms else None
        if self.placements is not None:
            self.norms = self.placements.norms("", norms, norms, 1.0)
        self._see(self.clipped_norm)

    def record(
        self,
        step: int,
        optimizer: Optimizer | None,
        known: SeenOptimizer | None,
        began: float,
        last: float,
        now: float,
        *,
        sampled: bool,
    ) -> Callable[[], TrainingStep]:
        """Makes the vital signs of the step that has ended ``now``.

        Args:
            began: when the run began.
            last: when the step before it ended.
        """
        rates = []
        if optimizer is not None:
            for group in optimizer.param_groups:  # now, for they may be tensors
                if "lr" in group:
                    rates.append(float(group["lr"]))
        name, number = ("", step) if known is None else (known.name, known.steps)
        # At the least cost, for most are never asked for.
        return partial(
            _record,
            (step, name, number, now - began, now - last, sampled),
            (self.losses, self.nonfinite, self.gradient_norm, self.clipped_norm, rates, self.scale),
            # How long it took until it first had to wait for other processes.
            (self.norms, self.batch, self.ready and max(0.0, self.ready - last)),
        )

    def begin(self, held: Collection[nn.Parameter] | None = None) -> None:
        """The next one; gradients of parameters that were not ``held`` wait for their optimizer."""
        if self.gradients.norms:
            self.gradients = Gradients() if held is None else self.gradients.after_step_of(held)
        self.gradient_norm = self.clipped_norm = None
        self.norms = ()
        self.skip()

    def skip(self) -> None:
        """The optimizer leaves this one out: what its backwards gave is of no use."""
        self.backwards, self._read_after, self.losses = 0, 0, []
        self.nonfinite, self.in_loss = None, False
        self.ready = self.batch = None

    def _see(self, norm: float | None) -> None:
        if norm is not None and not math.isfinite(norm):
            self.nonfinite = self.nonfinite or ("nan" if math.isnan(norm) else "inf")


def loss_of(roots: Sequence[torch.Tensor]) -> float | None:
    """The value that a backward begins with; None where it is no real scalar, or not all here."""
    if len(roots) != 1:
        return None
    root = roots[0]
    if root.numel() != 1 or root.is_complex():
        return None
    if type(root) is torch.Tensor:
        return float(root.item())
    if is_spread(root) and not all(one.is_replicate() for one in placements_of(root)):
        return None
    return float(local(root).item())


def _record(
    made: tuple[int, str, int, float, float, bool],
    signs: tuple[
        list[float | None], str | None, float | None, float | None, list[float], float | None
    ],
    of_several: tuple[tuple[GroupNorm, ...], int | None, float | None],
) -> TrainingStep:
    step, optimizer, optimizer_step, time, seconds, sampled = made
    losses, nonfinite, gradient_norm, clipped_norm, rates, scale = signs
    norms, batch, own_seconds = of_several
    return TrainingStep(
        step=step,
        optimizer=optimizer,
        optimizer_step=optimizer_step,
        time=time,
        seconds=seconds,
        losses=tuple(losses),
        nonfinite=nonfinite,
        gradient_norm=_finite(gradient_norm),
        clipped_norm=_finite(clipped_norm),
        learning_rates=tuple(rates),
        loss_scale=scale,
        sampled=sampled,
        norms=norms,
        own_seconds=own_seconds,
        batch=batch,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
