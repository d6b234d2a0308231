"""A training loop written by hand, which tells a NaN detector what a run's observer would tell
it."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradscope.capture.nodes import stacks_recorded
from gradscope.records.answers import NonFiniteOrigin
from gradscope.training.nan_detector.detector import NanDetector

#: The step at which the broken programs break, counted from 1.
BAD = 6
STEPS = 8


@dataclass
class Program:
    """Models by name, and a step: it calls them through the loop and goes back from its losses."""

    models: dict[str, nn.Module]
    step: Callable[[Loop, int], None]
    rate: float = 1e-3


@dataclass(frozen=True)
class Expected:
    """Origin to find in a broken program; its line is marked ``# origin``."""

    phase: str
    op: str | None
    module: str | None
    reason: str = ""
    line: bool = True


@dataclass(frozen=True)
class Case:
    build: Callable[[bool], Program]
    expected: Expected

    def line(self) -> str:
        """``file:line`` of the marked line."""
        lines, first = inspect.getsourcelines(self.build)
        (found,) = [first + i for i, text in enumerate(lines) if text.rstrip().endswith("# origin")]
        file = Path(inspect.getsourcefile(self.build) or "")
        near = file.is_relative_to(Path.cwd())
        return f"{file.relative_to(Path.cwd()) if near else file}:{found}"


CASES: dict[str, Case] = {}

#: Runs what it is given, and looks at what that changes.
Around = Callable[[Callable[[], Any]], Any]


def located(
    phase: str, op: str | None, module: str | None, reason: str = "", *, line: bool = True
) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Put a program into the table; built with True it has its smallest fix."""

    def keep(build: Callable[[bool], Program]) -> Callable[[bool], Program]:
        CASES[build.__name__] = Case(build, Expected(phase, op, module, reason, line))
        return build

    return keep


@dataclass
class Loop:
    """Runs the steps of a program, up to the first that is NaN or Inf."""

    program: Program
    sampled: Sequence[int] = (1, 2)
    detector: NanDetector = field(init=False)
    number: int = 0
    where: str | None = None
    non_finite: tuple[NonFiniteOrigin, ...] = ()

    def __post_init__(self) -> None:
        self.detector = NanDetector(lambda: list(self.program.models.items()))

    def run(self, around: Around = lambda locate: locate()) -> int | None:
        """Train; the step that was NaN or Inf. ``around`` runs the call of ``locate``."""
        try:
            return self._run(around)
        finally:
            self.detector.close()
            gc.collect()  # the graph of an earlier step may wait for it, and has a hook

    def _run(self, around: Around) -> int | None:
        parameters = [p for model in self.program.models.values() for p in model.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=self.program.rate)
        for number in range(1, STEPS + 1):
            self.number, self.where = number, None
            optimizer.zero_grad()
            with stacks_recorded() if number in self.sampled else nullcontext():
                self.program.step(self, number)
            gradients = [p.grad for p in parameters if p.grad is not None]
            if self.where is None and not all(bool(g.isfinite().all()) for g in gradients):
                self.where = "gradients"
            where = self.where
            if where is not None:
                self.non_finite = around(lambda where=where: self.detector.locate(where=where))
                return number
            optimizer.step()
            self.detector.step_ended()
        return None

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a model, as the outermost one."""
        model = self.program.models[name]
        self.detector.call_began(name, model, args, kwargs)
        output = model(*args, **kwargs)
        self.detector.call_ended(model, output)
        return output

    def backward(self, loss: torch.Tensor) -> None:
        """Go back from a loss."""
        if self.number in self.sampled:
            self.detector.sampled_lines([loss])
        if self.detector.backward_begins([loss]):
            self.where = "loss"
        loss.backward()
