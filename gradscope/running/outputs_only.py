"""Compares compiled models: by outputs and parameter gradients, without hooks inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradscope.capture.differences import Difference, difference
from gradscope.capture.probes import ProbeKey
from gradscope.loading.workload import Workload
from gradscope.nesting import find
from gradscope.running.compared_runs import DRAWS, harmless_step, last_bit
from gradscope.running.compared_step import Comparison
from gradscope.running.divergent_calls import Noise
from gradscope.running.plain_calls import (
    Gradients,
    LossRecorder,
    StepFailed,
    gradients_of,
    plain_step,
)
from gradscope.running.probed_step import Tape, probed_step
from gradscope.running.rerun import rerun
from gradscope.running.step import GraphRoot, Step


def is_compiled(workload: Workload) -> bool:
    """Whether the model, or a part of it, runs otherwise than it was written."""
    return workload.compiled is not None or any(
        type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None
        for m in workload.model.modules()
    )


@dataclass(kw_only=True)
class _OutputRecorder(LossRecorder):
    """Keeps what the model returned, too."""

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)

    def root(self, step: Step, output: Any) -> GraphRoot:
        """The tensors by their paths."""
        self.outputs = {path: t.detach().clone() for path, t in find(output, torch.Tensor)}
        return super().root(step, output)


@dataclass(frozen=True, slots=True)
class OutputDiff:
    """One tensor of A, B's error in it, and the noise of A; a diff of None is a tensor of A
    only."""

    tensor: torch.Tensor
    diff: Difference | None
    noise: Noise

    @property
    def diverges(self) -> bool:
        """Whether it is no noise."""
        return self.diff is None or self.noise.exceeded(self.diff)


@dataclass(frozen=True, slots=True)
class OutputsDivergence:
    """What two steps left at their ends: outputs by path, gradients by A's names, and the losses.

    ``step`` is by how much a number was moved for the noise.
    """

    outputs: dict[str, OutputDiff]
    parameters: dict[str, OutputDiff]
    losses: tuple[torch.Tensor, torch.Tensor]
    step: float


def compare_outputs(a: Workload, b: Workload, parameters: dict[str, str]) -> OutputsDivergence:
    """Run both as they are, compiled or not; the state of each is restored.

    The noise is that of A run as it was written, each number moved by its last bit, twice.

    Args:
        a: what is compared with.
        b: what is compared with it.
        parameters: A's by B's.

    Raises:
        StepFailed: one of them raised.
    """
    one, other = _outputs(a), _outputs(b)
    tape, unprobed, _ = harmless_step(a, plain_step(a), Tape, "A")
    step = max(last_bit(a), last_bit(b))
    draws = [Comparison(tape=tape, noise=step, draw=n) for n in range(DRAWS)]
    for draw in draws:
        probed_step(a, draw, unprobed)
    theirs = {known: other.gradients[name] for name, known in parameters.items()}
    return OutputsDivergence(
        outputs={
            path: _diff(tensor, other.outputs.get(path), step, _of_output(draws, path))
            for path, tensor in one.outputs.items()
        },
        parameters={
            name: _diff(gradient, theirs.get(name), step, [d.parameters.get(name) for d in draws])
            for name, gradient in one.gradients.items()
            if gradient is not None and name in theirs
        },
        losses=(one.loss, other.loss),
        step=step,
    )


@dataclass(frozen=True, slots=True)
class _Outputs:
    outputs: dict[str, torch.Tensor]
    loss: torch.Tensor
    gradients: Gradients


def _outputs(workload: Workload) -> _Outputs:
    observer = _OutputRecorder()
    try:
        with rerun(replace(workload, as_compiled=True), observer=observer) as step:
            step.compute_gradients()
            return _Outputs(observer.outputs, observer.loss, gradients_of(workload.model))
    except Exception as failure:
        raise StepFailed(workload, observer.phase) from failure


def _of_output(draws: Sequence[Comparison], path: str) -> list[Difference | None]:
    return [draw.values.get(ProbeKey("", 0, True, path)) for draw in draws]


def _diff(
    a: torch.Tensor, b: torch.Tensor | None, step: float, draws: Sequence[Difference | None]
) -> OutputDiff:
    same = b is not None and a.shape == b.shape
    return OutputDiff(
        a, difference(a, b) if same and b is not None else None, Noise.of(draws, step)
    )
