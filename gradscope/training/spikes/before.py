"""History before a step: its signals, and the state of its optimizer."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch.optim import Optimizer

from gradscope.capture.norms import gradient_norms
from gradscope.records.spike import OptimizerState, SpikeSignals
from gradscope.rules import Limits, StepWindows, Window
from gradscope.rules.gs601_loss_spike import stands_out as loss_stands_out
from gradscope.rules.gs602_gradient_spike import stands_out as gradient_stands_out
from gradscope.training.current_step import CurrentStep
from gradscope.training.optimizers import settings

#: Number of steps that rules over time compare with.
_STEPS = 128
#: One step: its number, loss, gradient norms, learning rate, weight norm and loss scale.
_Row = list[Any]


class StepsBefore:
    """The steps of one optimizer. What is done in each step costs microseconds.

    Attributes:
        count: how many there were.
        windows: their losses and the norms of their gradients.
    """

    def __init__(self) -> None:
        self.count = 0
        self.windows = StepWindows()
        self._rows: deque[_Row] = deque(maxlen=_STEPS)

    @property
    def gradient(self) -> Window:
        """The norms of the gradient."""
        return self.windows.gradient

    def losses(self, backwards: int) -> Window:
        """The losses of the steps with so many backwards."""
        return self.windows.losses(backwards)

    def loss_spike(self, backwards: int, loss: float | None, limits: Limits | None) -> float:
        """Return how far a loss stands out by GS601, in deviations; 0 if it does not."""
        before = self.losses(backwards)
        found = None if limits is None else loss_stands_out(before, loss, limits)
        return 0.0 if found is None else found[0]

    def gradient_spike(self, norm: float | None, limits: Limits | None) -> float:
        """Return how far a gradient's norm stands out by GS602, in deviations; 0 if it does not."""
        if (
            limits is None
            or norm is None
            or gradient_stands_out(self.gradient, norm, limits) is None
        ):
            return 0.0
        return self.gradient.deviations(norm, 1e-3)

    def add(self, step: int, optimizer: Optimizer, current: CurrentStep) -> None:
        """Add a step whose gradients are complete to the earlier ones."""
        self.count += 1
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        loss = current.loss
        values = current.values
        weights = math.hypot(*values.values()) if values else None
        norms = current.gradient_norm, current.clipped_norm
        self._rows.append([step, loss, *norms, rate, weights, current.scale])
        self.windows.add(loss, len(current.losses), current.gradient_norm)

    def signals(self, optimizer: Optimizer) -> tuple[SpikeSignals, ...]:
        """Return the signals of the steps before, and of the latest one, with its weights."""
        held = [p for group in optimizer.param_groups for p in group["params"]]
        group = optimizer.param_groups[0]
        plain = type(optimizer).__name__ == "SGD" and not group.get("momentum")
        plain = plain and not group.get("weight_decay")
        found = []
        for number, (step, loss, norm, clipped, rate, weights, scale) in enumerate(self._rows):
            if number == len(self._rows) - 1:
                weights = math.hypot(*gradient_norms([p.detach() for p in held]))
            lr = None if rate is None else float(rate)
            update = lr * clipped if plain and lr is not None and clipped is not None else None
            found.append(
                SpikeSignals(
                    step,
                    *map(_finite, (loss, norm, clipped, lr, update, weights, scale)),
                )
            )
        return tuple(found)


def state_of(optimizer: Optimizer) -> OptimizerState:
    """The optimizer as it stands before the step."""
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
                m, v = m.double(), v.double()
                first += float(m.abs().sum())
                second += float(v.sum())
                unbiased = (v / (1 - betas[1] ** step)).sqrt() + float(group.get("eps", 1e-8))
                squares += float((m / (1 - betas[0] ** step) / unbiased).square().sum())
                count += m.numel()
    return OptimizerState(
        kind,
        numbers,
        sum(p.numel() for p in held),
        steps=max(made, default=0 if kind.startswith(("Adam", "NAdam", "RAdam")) else None),
        first_moment=first / count if count else None,
        second_moment=math.sqrt(second / count) if count else None,
        update_rms=_finite(math.sqrt(squares / count)) if count else None,
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
