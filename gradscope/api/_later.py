"""A few optimizer steps more: whether gradients that are zero stay so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from gradscope.capture.hooks import named_parameters
from gradscope.loading import Batch, Workload
from gradscope.loading.optimizers import RATE
from gradscope.running.plain import take_step


class Later:
    """Optimizer steps one after another; each call makes one and looks again.

    The first takes the gradients that the watched run of ``batch`` has left.
    """

    def __init__(
        self,
        workload: Workload,
        names: Sequence[str],
        batch: Batch,
        following: Iterator[Batch],
        run: Callable[[Batch], None],
    ) -> None:
        self.workload, self.names, self.batch = workload, names, batch
        self.following, self.run = following, run
        self.optimizer: torch.optim.Optimizer | None = None

    def __call__(self) -> Collection[str] | None:
        """The names whose gradient is still zero; None where no step could be made."""
        model = self.workload.model
        parameters = {named.name: p for p, named in named_parameters(model).items()}
        try:
            self._step()
            for parameter in model.parameters():
                parameter.grad = None
            self.batch = next(self.following, self.batch)
            self.run(self.batch)
        except Exception:
            # An optimizer that cannot step like this leaves one question open.
            return None
        gradients = {name: parameters[name].grad for name in self.names}
        return [name for name, g in gradients.items() if g is None or not _any(g)]

    def _step(self) -> None:
        workload = self.workload
        if workload.make_optimizer is not None:
            self.optimizer = self.optimizer or workload.make_optimizer(workload.model)
            take_step(self.optimizer, workload, self.batch)
            return
        # SGD by hand: PyTorch's own would load its compiler first, which takes a second.
        with torch.no_grad():
            for parameter in workload.model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=RATE)


def _any(gradient: torch.Tensor) -> bool:
    values = gradient._values() if gradient.layout == torch.sparse_coo else gradient
    return bool(((values != 0) & ~values.isnan()).any())
