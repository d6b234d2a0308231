"""The state of the current step: its losses and gradients so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.capture.optimizer_steps import LastStep
from gradscope.capture.reductions import gradient_norms
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.shards import is_plain_or_spread, is_spread, local, placements_of
from gradscope.nesting import find
from gradscope.records.run import GroupNorm
from gradscope.records.tensors import TensorStats, finite_or_none
from gradscope.records.training import GradientParts, TrainingStep, sum_of
from gradscope.training.gradients import Gradients, read
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.placements import Placements

#: The gradient norm of each parameter.
Norms = dict[nn.Parameter, float]
#: Number of scaled losses known, if a script keeps them all.
_MOST_SCALED = 64


class LossScales:
    """The loss scale of each live loss that a gradient scaler multiplied.

    Attributes:
        any: True if there was such a loss.
    """

    any = False

    def __init__(self) -> None:
        self._known: list[tuple[RememberedTensor, torch.Tensor]] = []

    def add(self, losses: object, scale: torch.Tensor) -> None:
        """Note the scaled losses, in any nesting, that a scaler returned."""
        self._known = [one for one in self._known if one[0]() is not None][-_MOST_SCALED:]
        for _, loss in find(losses, torch.Tensor):
            self._known.append((remembered(loss), scale))
            self.any = True

    def of(self, roots: Sequence[torch.Tensor]) -> float | None:
        """Return the factor of the loss that a backward begins with; None if it was not scaled."""
        for known, scale in self._known:
            loss = known()
            if any(root is loss for root in roots):
                return float(scale.item())
        return None


@dataclass(slots=True)
class CurrentStep:
    """State of a step while it runs, reset after it.

    Attributes:
        losses: the loss of each backward, without the scaler's factor; None if it is not a
            finite scalar.
        first: the index of the first loss whose gradients the optimizer gets.
        end: the number of losses when the step's closure first returned.
        divisor: the divisor of the gradients in a pipeline, after all backwards.
        scale: the scaler's factor.
        nonfinite: "nan" or "inf", the first one found.
        in_loss: True if it was found in a loss, before any gradient.
        backwards: the number of backwards so far.
        gradients: the gradients after a backward.
        gradient_norm: the norm over all parameters of the optimizer after backward, unscaled.
        clipped_norm: the norm that the optimizer got.
        placements: the placements of parameters, in a run of several processes.
        norms: both norms of each group of placed parameters.
        left: the norm of each gradient of the optimizer after backward, with the scaler's
            factor; None if read too late.
        got: the norm of each gradient that the optimizer got; None before it is measured.
        values: the norm of each parameter before the update, in steps in which they are read.
        seconds: the time spent on reading.
        update_rms: the root mean square of Δw over all parameters with a gradient, after the
            optimizer's step.
        ready: the time at which the first backward began.
        batch: the number of samples of outermost calls; only counted with several processes.
        sums: the norm of all gradients after each backward that was followed by a reading.
        parts: the gradient's norm over parts of the batch, in a sampled step.
    """

    losses: list[float | None] = field(default_factory=list)
    first: int = 0
    end: int | None = None
    divisor: float = 1.0
    scale: float | None = None
    nonfinite: str | None = None
    in_loss: bool = False
    backwards: int = 0
    gradients: Gradients = field(default_factory=Gradients)
    gradient_norm: float | None = None
    clipped_norm: float | None = None
    placements: Placements | None = None
    norms: tuple[GroupNorm, ...] = ()
    left: Norms | None = None
    got: Norms | None = None
    values: Norms = field(default_factory=dict)
    seconds: float = 0.0
    update_rms: float | None = None
    ready: float | None = None
    batch: int | None = None
    sums: list[float] = field(default_factory=list)
    parts: GradientParts | None = None
    _read_after: int = 0  # how many backwards, when the gradients were read last
    _late: bool = False  # whether they may have been clipped by then

    def add_loss(self, loss: float | None, scale: float | None, *, anew: bool = False) -> None:
        """Note the loss of a backward; if a step has several scales, the last counts.

        Args:
            loss: its value; None if it is not a single number.
            scale: a gradient scaler's factor in it; None without one.
            anew: True if no gradient of an earlier backward is left.
        """
        if not self.losses:  # the first of its step: nothing of the one before holds for it
            self.scale = None
        if anew and self.end is None:
            self.first = len(self.losses)
        self.scale = self.scale if scale is None else scale
        if loss is not None:
            loss = loss / (scale or 1.0) if math.isfinite(loss) else None
        self.losses.append(loss)
        self.backwards += 1

    @property
    def summed(self) -> tuple[int, int] | None:
        """The slice of losses that count, as in ``TrainingStep``."""
        ends = self.first, len(self.losses) if self.end is None else self.end
        return None if ends == (0, len(self.losses)) else ends

    @property
    def loss(self) -> float | None:
        """The loss of the step, from its backwards so far."""
        found = sum_of(self.losses[self.first : self.end])
        return None if found is None else found / self.divisor

    def closure_returned(self) -> None:
        """Note the return of the optimizer's closure, which it may call again."""
        if self.end is None:
            self.end = len(self.losses)

    def add_batch(self, size: int) -> None:
        """Note the number of samples of a model's call."""
        self.batch = (self.batch or 0) + size

    def loss_is(self, kind: str) -> None:
        """Note a loss of "nan" or "inf"."""
        if self.nonfinite is None:
            self.nonfinite, self.in_loss = kind, True

    def read(
        self,
        parameters: Sequence[nn.Parameter],
        measured: Mapping[int, TensorStats] | None = None,
        *,
        late: bool = False,
    ) -> None:
        """Read all gradients at their present values.

        Args:
            parameters: their parameters.
            measured: the known statistics, by the ``id`` of the gradient.
            late: True if the script may have clipped them, or divided them by the loss scale.
        """
        began = perf_counter()
        self.gradients, self._read_after = read(parameters, measured), self.backwards
        self._late = late
        if not late:
            self.sums.append(math.hypot(*self.gradients.norms.values()))
        self.seconds += perf_counter() - began

    @property
    def until_ready(self) -> int:
        """Number of backwards until gradients were ready for the first time."""
        return max(1, self.backwards if self.end is None else self.end)

    @property
    def is_read(self) -> bool:
        """True if the gradients were read after the last backward."""
        return self._read_after == self.backwards

    def measure(self, parameters: Sequence[nn.Parameter], optimizer: str) -> None:
        """Measure the norms of these parameters' gradients, as read and as the optimizer gets
        them.

        A norm that was read late is not the norm before clipping.
        """
        began = perf_counter()
        left = self.gradients
        before = {p: left.norms[p] for p in parameters if p in left.norms}
        changed = left.changed(parameters)
        now = before | changed if changed else before
        self.left, self.got = None if self._late else before, now
        self.clipped_norm = math.hypot(*now.values()) if parameters else None
        # Without a backward the gradients were taken otherwise.
        self.gradient_norm = (
            math.hypot(*before.values()) / (self.scale or 1.0) if before else self.clipped_norm
        )
        self._see(self.clipped_norm)
        if self.placements is not None:
            self.norms = self.placements.norms(optimizer, before, now, self.scale or 1.0)
        if self._late:
            self.gradient_norm = None
            self.norms = tuple((group, None, clipped) for group, _, clipped in self.norms)
        self.seconds += perf_counter() - began

    def measure_values(self, parameters: Sequence[nn.Parameter]) -> None:
        """Measure the norms of the parameters, once in a step: an update moves them."""
        began = perf_counter()
        values = self.values
        new = [p for p in parameters if p not in values and is_plain_or_spread(p)]
        new = [p for p in new if p.is_floating_point()]
        values.update(zip(new, gradient_norms(new), strict=True))
        self.seconds += perf_counter() - began

    def measure_update(self, last: LastStep) -> bool:
        """Measure the optimizer's step from its state; return True if the state has it."""
        found = last.squares()
        if found is not None:
            squares, count = found
            self.update_rms = math.sqrt(squares / count)
        return found is not None

    def measure_all(self) -> None:
        """Measure the norms of all gradients that were read, if no optimizer takes them."""
        norms = self.gradients.norms
        self.gradient_norm = self.clipped_norm = math.hypot(*norms.values()) if norms else None
        self.left = self.got = norms
        if self.placements is not None:
            self.norms = self.placements.norms("", norms, norms, 1.0)
        self._see(self.clipped_norm)

    def record(
        self,
        step: int,
        optimizer: Optimizer | None,
        known: ObservedOptimizer | None,
        began: float,
        last: float,
        now: float,
        *,
        sampled: bool,
    ) -> Callable[[], TrainingStep]:
        """Make the step metrics of the step that has ended ``now``.

        Args:
            began: the start of the run.
            last: the end of the step before.
        """
        rates = []
        if optimizer is not None:
            for group in optimizer.param_groups:  # now, for they may be tensors
                if "lr" in group:
                    rates.append(float(group["lr"]))
        name, number = ("", step) if known is None else (known.name, known.steps)
        losses, summed = [_divided(loss, self.divisor) for loss in self.losses], self.summed
        nonfinite, scale, ready = self.nonfinite, self.scale, self.ready
        before, after, moved = self.gradient_norm, self.clipped_norm, self.update_rms
        norms, batch, parts = self.norms, self.batch, self.parts

        def made() -> TrainingStep:  # most are never asked for
            return TrainingStep(
                step=step,
                optimizer=name,
                optimizer_step=number,
                time=now - began,
                seconds=now - last,
                losses=tuple(losses),
                nonfinite=nonfinite,
                gradient_norm=finite_or_none(before),
                clipped_norm=finite_or_none(after),
                learning_rates=tuple(rates),
                loss_scale=scale,
                sampled=sampled,
                norms=norms,
                # How long it took until it first had to wait for other processes.
                own_seconds=ready and max(0.0, ready - last),
                batch=batch,
                summed=summed,
                update_rms=finite_or_none(moved),
                parts=parts,
            )

        return made

    def begin(self, held: Collection[nn.Parameter] | None = None) -> None:
        """Begin the next step; gradients of parameters that are not in ``held`` wait for their
        optimizer.
        """
        if self.gradients.norms:
            self.gradients = Gradients() if held is None else self.gradients.after_step_of(held)
        self.gradient_norm = self.clipped_norm = self.update_rms = None
        self.norms = ()
        self.left = self.got = None
        self.skip()

    def skip(self) -> None:
        """Drop the step's backwards: the optimizer skips this step."""
        self.backwards, self._read_after, self.losses = 0, 0, []
        self.first, self.end, self.divisor, self._late = 0, None, 1.0, False
        self.nonfinite, self.in_loss = None, False
        self.ready = self.batch = self.parts = None
        self.seconds = 0.0
        if self.sums:
            self.sums = []
        if self.values:
            self.values = {}

    def _see(self, norm: float | None) -> None:
        if norm is not None and not math.isfinite(norm):
            self.nonfinite = self.nonfinite or ("nan" if math.isnan(norm) else "inf")


def loss_of(roots: Sequence[torch.Tensor]) -> float | None:
    """Return the value from which a backward starts; None if it is not a real scalar, or is
    sharded."""
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


def _divided(loss: float | None, by: float) -> float | None:
    return loss if loss is None or by == 1.0 else loss / by
