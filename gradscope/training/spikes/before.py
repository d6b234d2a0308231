"""History before a step: its signals, and the state of its optimizer."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradscope.capture.reductions import gradient_norms
from gradscope.records.spike import OptimizerState, SpikeSignals
from gradscope.records.tensors import finite_or_none
from gradscope.rules import (
    Limits,
    StepWindows,
    Window,
    are_unusual_copies,
    is_unusual_constant,
    is_unusual_input,
    is_unusual_length,
    is_unusual_loss,
    is_unusual_text,
)
from gradscope.rules.gs601_loss_spike import stands_out as loss_stands_out
from gradscope.rules.gs602_gradient_spike import stands_out as gradient_stands_out
from gradscope.training.current_step import CurrentStep
from gradscope.training.optimizers import ObservedOptimizer, settings
from gradscope.training.spikes.batch_figures import BatchFigures, BatchWindows
from gradscope.training.spikes.later_losses import LaterLosses
from gradscope.training.spikes.outside_changes import OutsideChanges

#: Number of steps that rules over time compare with.
_STEPS = 128
#: One step: its number, loss, gradient norms, learning rate, weight norm, loss scale, update,
#: largest loss of a sample and largest input.
_Row = list[Any]
#: The fields of a row that are filled after it was added, or read again.
_NORM, _WEIGHTS, _UPDATE, _SAMPLE = 2, 5, 7, 8
#: Number of steps needed to know how a figure scatters, and the smallest scatter that is used.
_KNOWN, _FLOOR = 32, 0.1
#: For this many steps, a change of the optimizer or of the weights adds this to the score, so
#: that these steps are kept before all others that do not stand out.
_SOON, _CHANGED = 8, 100.0
#: Updates that move the weights far add as much as an unusual loss.
_FAR = 10.0
_NONE = BatchFigures()
#: A learning rate jumps if it grows by more than this factor; weights that the script wrote to
#: count as moved from this share of their norm.
_JUMP, _MOVED = 3.0, 0.05
#: Number of steps between two readings of the weights, as a rule.
_READING = 16
#: A gradient jumps, as in GS602, if it is this many times as large as nearly all before.
_PROBE = 6.0
#: A loss jumps if it is this many times the largest of the last 32 steps, and this many times the
#: largest of the last 128.
_ABOVE_RECENT, _ABOVE_ALL = 3.0, 1.5
#: The score of GS601.
_DEVIATIONS = 7.0


class StepsBefore:
    """The steps of one optimizer. Each step costs microseconds.

    Attributes:
        count: the number of steps.
        windows: the losses and gradient norms of the steps.
        batches: the figures of the steps' batches.
        changes: changes of the optimizer and of the weights between the steps.
        later: the sample for which the model is asked again.
    """

    def __init__(self) -> None:
        self.count = 0
        self.windows = StepWindows()
        self.batches = BatchWindows()
        self.changes = OutsideChanges()
        self.later = LaterLosses()
        self._taken, self._paces, self._probes = Window(), Window(), Window()
        self._jump = 0.0  # the score of a small parameter's gradient in this step
        self._pace = 0.0  # the score of the last update
        self._changed = self._moved = -math.inf  # the step of the last change, or of a large update
        self._weights: float | None = None  # their norm when last read, and that step
        self._weighed = 0
        self._rows: deque[_Row] = deque(maxlen=_STEPS)

    @property
    def gradient(self) -> Window:
        """The norms of the gradient."""
        return self.windows.gradient

    def losses(self, backwards: int) -> Window:
        """Return the losses of the steps with this number of backwards."""
        return self.windows.losses(backwards)

    def loss_spike(self, backwards: int, loss: float | None, limits: Limits | None) -> float:
        """Return how far a loss stands out by GS601, in deviations; 0 if it does not.

        If the loss has fallen within the steps that GS601 compares with, they scatter too far. Then
        the loss is compared with the last of them.
        """
        if limits is None:
            return 0.0
        before = self.losses(backwards)
        found = loss_stands_out(before, loss, limits)
        return _above_recent(before, loss) if found is None else found[0]

    def gradient_spike(self, norm: float | None, limits: Limits | None) -> float:
        """Return how far a gradient's norm stands out by GS602, in deviations; 0 if it does not."""
        if (
            limits is None
            or norm is None
            or gradient_stands_out(self.gradient, norm, limits) is None
        ):
            return 0.0
        return self.gradient.deviations(norm, 1e-3)

    def unusual_batch(self, figures: BatchFigures) -> str:
        """Return "input" or "sample" if one input or one sample's loss is unlike all before, else
        "".
        """
        if figures == _NONE:
            return ""  # as of most steps that take less than a millisecond
        history = self.batches.history
        if (
            is_unusual_input(figures.input_max, history)
            or is_unusual_length(figures.length, history)
            or are_unusual_copies(
                figures.copies, figures.count, history, figures.sample_loss, figures.median_loss
            )
            or (figures.constant and history.constant == 0 and history.steps >= _KNOWN)
            or any(
                count and is_unusual_constant(path, figures.sample_loss, history)
                for path, count in figures.constants.items()
            )
            or (figures.twins and history.twins == 0 and history.steps >= _KNOWN)
        ):
            return "input"
        unusual = is_unusual_loss(
            figures.sample_loss, figures.median_loss, history, sure=figures.sure
        )
        if figures.texts:
            unusual |= is_unusual_text(figures.sample_loss, figures.median_loss, history)
        return "sample" if unusual else ""

    def probe(self, known: ObservedOptimizer) -> bool:
        """Return True if the gradient of one small parameter jumps; then all gradients are read."""
        gradient = known.small[0].grad if known.small else None
        if gradient is None or gradient.layout != torch.strided:
            return False
        norm = float(torch.linalg.vector_norm(gradient.detach()))
        window = self._probes
        jumps = window.count >= _KNOWN and norm > _PROBE * max(window.high, window.usual)
        if jumps:
            self._jump = window.deviations(norm, _FLOOR)
        window.add(norm)
        return jumps

    def ratio_of_loss(self, figures: BatchFigures) -> float | None:
        """Return the largest loss of a sample over the largest of the steps before; None if few of
        these are known.
        """
        known = [row[_SAMPLE] for row in self._rows if row[_SAMPLE] is not None]
        if figures.sample_loss is None or len(known) < 2 * _KNOWN:
            return None
        return figures.sample_loss / max(known) if max(known) > 0 else None

    def input_size(self, figures: BatchFigures) -> float:
        """Return the distance of a batch's inputs from those of the steps before, in robust
        deviations."""
        found = [_DEVIATIONS]  # of one repeated value, or of copies
        for window, value in (
            (self.batches.inputs, figures.input_max),
            (self.batches.lengths, figures.length),
        ):
            found += [] if value is None else [window.deviations(value, _FLOOR)]
        return max(found)

    def score(self, step: int, current: CurrentStep, figures: BatchFigures) -> float:
        """Return how far a step stands out by any of its figures, in robust deviations.

        A recent change of the optimizer or of the weights adds to it.
        """
        found = [self._pace, self._jump]
        for window, value in (
            (self.losses(len(current.losses)), current.loss),
            (self.gradient, current.gradient_norm),
            (self._taken, current.clipped_norm),
            (self.batches.inputs, figures.input_max),
            (self.batches.losses, figures.sample_loss),
            (self.batches.lengths, figures.length),
        ):
            if value is not None and window.count >= _KNOWN:
                found.append(window.deviations(value, _FLOOR))
        far = _FAR if step - self._moved < _SOON else 0.0
        # Deviations have no bound if a figure is nearly constant, as a hinge loss is.
        score = min(max(found) + far, _CHANGED)
        return score + (2 * _CHANGED if step - self._changed < _SOON else 0.0)

    def note(
        self,
        step: int,
        optimizer: Optimizer,
        known: ObservedOptimizer,
        current: CurrentStep,
        factor: float | None,
    ) -> None:
        """Find the changes since the step before; called before the update.

        ``factor`` is the constant that the script multiplies the loss by; None if unknown.
        """
        self.changes.step_begins(step, optimizer, known.held)
        has_scale = current.scale is not None and not known.is_unscaled
        scaled = has_scale and not getattr(optimizer, "_step_supports_amp_scaling", False)
        self.changes.loss_scale_is(step, factor, current.scale if scaled else None)
        if self.changes.weights_written:
            current.measure_values(list(known.held))
        rate = _rate(optimizer)
        before = _number(self._rows[-1][4]) if self._rows else None
        if before and rate is not None and rate > _JUMP * before:
            self._changed = step
        weights = math.hypot(*current.values.values()) if current.values else None
        changed = bool(self.changes.found) and self.changes.found[-1].step == step
        last = self._weights
        if weights and last:
            # Training moves them too, from one reading to the next and further between others.
            readings = max(1.0, (step - self._weighed) / _READING)
            moved = abs(weights - last) > _MOVED * last * readings
            if moved:
                self._moved = step
            if self.changes.weights_written:
                self.changes.weights_moved(step, self._weighed, last, weights)
                losses = self.losses(len(current.losses))
                changed = changed or moved or (current.loss or 0.0) > losses.high
        if weights:
            self._weights, self._weighed = weights, step
        if changed:
            self._changed = step

    def add(
        self, step: int, optimizer: Optimizer, current: CurrentStep, figures: BatchFigures
    ) -> None:
        """Add a step whose gradients are complete to the earlier ones."""
        self.count += 1
        loss = current.loss
        values = current.values
        weights = math.hypot(*values.values()) if values else None
        norms = current.gradient_norm, current.clipped_norm
        batch = figures.sample_loss, figures.input_max
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        self._rows.append([step, loss, *norms, rate, weights, current.scale, None, *batch])
        self.windows.add(loss, len(current.losses), current.gradient_norm)
        self._taken.add(current.clipped_norm)
        self.batches.add(figures)

    def norm_is_known(self, norm: float | None) -> None:
        """Note the gradient norm of the latest step, if it was read late."""
        if self._rows and self._rows[-1][_NORM] is None:
            self._rows[-1][_NORM] = norm

    def step_ended(
        self, optimizer: Optimizer, known: ObservedOptimizer, update_rms: float | None
    ) -> None:
        """Note the optimizer's state after the step, and the update."""
        self.changes.step_ended(optimizer, known.held)
        self._pace = self._jump = 0.0
        if update_rms is None or not self._rows:
            return
        self._rows[-1][_UPDATE] = update_rms
        rate = _rate(optimizer)
        if rate:
            pace = update_rms / rate
            if self._paces.count >= _KNOWN:
                self._pace = self._paces.deviations(pace, _FLOOR)
            self._paces.add(pace)

    def signals(self, optimizer: Optimizer) -> tuple[SpikeSignals, ...]:
        """Return the signals of the steps before and of the latest step, the latter with the norm
        of the weights."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        group = optimizer.param_groups[0]
        plain = type(optimizer).__name__ == "SGD" and not group.get("momentum")
        plain = plain and not group.get("weight_decay")
        found = []
        if self._rows and self._rows[-1][_WEIGHTS] is None:
            weights = [p.detach() for p in held if not is_lazy(p)]
            self._rows[-1][_WEIGHTS] = math.hypot(*gradient_norms(weights))
        for step, loss, norm, clipped, rate, weights, scale, rms, sample, largest in self._rows:
            lr = None if rate is None else float(rate)
            update = lr * clipped if plain and lr is not None and clipped is not None else None
            figures = (loss, norm, clipped, lr, update, weights, scale, rms, sample, largest)
            found.append(SpikeSignals(step, *map(finite_or_none, figures)))
        return tuple(found)


def _above_recent(before: Window, loss: float | None) -> float:
    """Return how far a loss is above those just before, in deviations of their logarithms; 0 unless
    it is far above these, and above all losses before.
    """
    values = before.values
    if loss is None or not math.isfinite(loss) or len(values) < 2 * _KNOWN:
        return 0.0
    if loss <= _ABOVE_RECENT * values[-1]:
        return 0.0  # as nearly all
    recent = Window(_KNOWN)
    for value in list(values)[-_KNOWN:]:
        recent.add(value)
    if min(recent.values) <= 0 or loss <= _ABOVE_RECENT * max(recent.values):
        return 0.0
    if loss <= _ABOVE_ALL * max(values):
        return 0.0
    return max(_DEVIATIONS, recent.deviations(loss, _FLOOR))


def state_of(optimizer: Optimizer) -> OptimizerState:
    """Return the state of the optimizer before the step."""
    kind = type(optimizer).__name__
    held = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = settings(optimizer)
    steps = [_number(optimizer.state.get(p, {}).get("step")) for p in held]
    made = [int(one) for one in steps if one is not None]
    first = second = squares = 0.0
    count = 0
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                state = optimizer.state.get(p, {})
                m, v = state.get("exp_avg"), state.get("exp_avg_sq")
                step = _number(state.get("step"))
                if not isinstance(m, torch.Tensor) or not isinstance(v, torch.Tensor) or not step:
                    continue
                betas = [float(beta) for beta in group.get("betas", (0.9, 0.999))]
                # In place: a copy of all moments in float64 takes as long as a step.
                kind_of = torch.float64 if v.dtype == torch.float64 else torch.float32
                first += float(m.abs().sum(dtype=kind_of))
                second += float(v.sum(dtype=kind_of))
                scale = v.to(kind_of, copy=True).div_(1 - betas[1] ** step).sqrt_()
                scale.add_(float(group.get("eps", 1e-8)))
                update = torch.div(m.to(kind_of), scale, out=scale).square_()
                squares += float(update.sum()) / (1 - betas[0] ** step) ** 2
                count += m.numel()
    return OptimizerState(
        kind,
        numbers,
        sum(p.numel() for p in held if not is_lazy(p)),
        steps=max(made, default=0 if kind.startswith(("Adam", "NAdam", "RAdam")) else None),
        first_moment=first / count if count else None,
        second_moment=math.sqrt(second / count) if count else None,
        update_rms=finite_or_none(math.sqrt(squares / count)) if count else None,
    )


def _rate(optimizer: Optimizer) -> float | None:
    """Return the learning rate of its first group."""
    return _number(optimizer.param_groups[0].get("lr")) if optimizer.param_groups else None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
