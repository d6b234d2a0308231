"""Repeats a step of a run from its start, for a full sample."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from gradscope.capture.names import named_parameters
from gradscope.loading.step_methods import RATE
from gradscope.loading.workload import Workload
from gradscope.running.state import post_accumulate_hooks_disabled
from gradscope.running.step import Observer, Step, as_found, cloned_batch, steps, zero_gradients


@contextmanager
def rerun(
    workload: Workload,
    number: int = 0,
    *,
    observer: Observer | None = None,
    weights: bool | None = True,
    hooks: bool = False,
) -> Iterator[Step]:
    """The model before a step of the run, and that step; then all state is restored.

    Args:
        workload: the workload of the run.
        number: of the step; those before it are run.
        observer: of all these steps.
        weights: as for ``as_found``.
        hooks: call those that wait for complete gradients too.
    """
    with ExitStack() as kept:
        kept.enter_context(as_found(workload, weights=weights))
        if not hooks:
            kept.enter_context(post_accumulate_hooks_disabled(workload.model))
        run = kept.enter_context(closing(steps(workload, observer)))
        for step in run:
            if step.number == number:
                yield step
                return
            step.run()


@dataclass(kw_only=True)
class StepNames(Observer):
    """Tells the name of each step, and of each of its backwards, as it begins."""

    begins: Callable[[str], None]

    def before_step(self, step: Step) -> None:
        self.begins(self._name(step))

    def around_backward(self, step: Step, repeat: int) -> AbstractContextManager[None]:
        repeats = [f"repeat {repeat + 1}"] if step.workload.repeats > 1 else []
        self.begins(" of ".join(filter(None, [*repeats, self._name(step)])))
        return nullcontext()

    @staticmethod
    def _name(step: Step) -> str:
        return f"step {step.number + 1}" if step.workload.steps > 1 else ""


class StepsUntilGradient:
    """Optimizer steps one after another: whether gradients that are zero stay so.

    Each call makes one and looks again. The first takes the gradients that a run of ``step`` left.
    """

    def __init__(self, step: Step, names: Sequence[str]) -> None:
        self.step, self.names = step, names

    def __call__(self) -> Collection[str] | None:
        """The names whose gradient is still zero; None where no step could be made."""
        model = self.step.workload.model
        parameters = {named.name: p for p, named in named_parameters(model).items()}
        try:
            self._update()
            zero_gradients(model)
            batch = next(self.step.following, self.step.batch)
            with ExitStack() as kept:
                step = replace(self.step, batch=batch, clone=cloned_batch(batch), kept=kept)
                step.compute_gradients()
            self.step = replace(self.step, batch=batch)
        except Exception:
            # An optimizer that cannot step like this leaves one question open.
            return None
        gradients = {name: parameters[name].grad for name in self.names}
        return [name for name, g in gradients.items() if g is None or not _any(g)]

    def _update(self) -> None:
        if self.step.optimizer is not None:
            self.step.update()
            return
        # SGD by hand: PyTorch's own would load its compiler first, which takes a second.
        with torch.no_grad():
            for parameter in self.step.workload.model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=RATE)


def _any(gradient: torch.Tensor) -> bool:
    values = gradient._values() if gradient.layout == torch.sparse_coo else gradient
    return bool(((values != 0) & ~values.isnan()).any())
