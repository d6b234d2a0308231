"""The gradients that steps give every parameter: the first pass of ``why``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.facts import misspelt_flags
from gradscope.capture.graph import edge_of, free_nodes, walk
from gradscope.capture.names import named_modules, named_parameters
from gradscope.capture.parameters import any_nonfinite, statistics
from gradscope.capture.recorder import Recorder
from gradscope.capture.stats import head_of
from gradscope.loading.workload import Workload
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.running.losses import loss_value
from gradscope.running.step import GraphRoot, Observer, Step, run


@dataclass(kw_only=True)
class GradientObserver(Observer):
    """The gradients of the step that began last, complete or not.

    Attributes:
        modules: names of modules whose ``calls`` are recorded too.
        complete: what has no gradient by now will have none.
        first_nonfinite: the number of the first step whose loss or gradients were NaN or Inf.
    """

    modules: frozenset[str]
    parameters: tuple[ParameterStats, ...] = ()
    calls: tuple[ModuleCall, ...] = ()
    complete: bool = False
    first_nonfinite: int | None = None
    _loss_is_finite: bool = True
    _nodes: list[Node] = field(default_factory=list)

    def before_step(self, step: Step) -> None:
        model = step.workload.model
        self.complete = False
        asked = {m: n for m, n in named_modules(model).items() if n.name in self.modules}
        self.recorder = Recorder(model, asked, accumulate=step.workload.repeats > 1)

    def leaves(self, step: Step, root: GraphRoot) -> Sequence[torch.Tensor]:
        assert self.recorder is not None
        assert isinstance(root, torch.Tensor)
        self.complete = not root.requires_grad
        if step.workload.steps > 1:
            self._loss_is_finite = loss_value(root)[1] is None
        if self.modules:
            self.recorder.connect([root], {id(t): name for name, t in step.named_inputs})
        walked = walk([edge_of(root)] if root.requires_grad else [], set())
        self._nodes = walked.nodes
        return walked.leaves

    def after_backward(self, step: Step) -> None:
        assert self.recorder is not None
        self.complete = True
        self.recorder.free_nodes()
        free_nodes(self._nodes)
        self.calls = self.recorder.calls()
        self.parameters = _parameters(step.workload.model)
        bad = not self._loss_is_finite or any_nonfinite(p.gradient for p in self.parameters)
        if bad and self.first_nonfinite is None:
            self.first_nonfinite = step.number

    def wants_update(self, step: Step) -> bool:
        """Not after the last one: its gradients are what is asked about."""
        return step.number + 1 < step.workload.steps

    def around_update(self, step: Step) -> AbstractContextManager[None]:
        self.complete = False
        return nullcontext()

    def after_run(self, workload: Workload) -> None:
        if self.failure is not None:
            self.parameters = _parameters(workload.model)


def observe_gradients(workload: Workload, modules: Collection[str]) -> GradientObserver:
    """Run the steps. An exception, of the user's code or Ctrl-C, is found in ``failure``.

    Args:
        workload: what to run.
        modules: names of modules whose calls are recorded too.
    """
    observer = GradientObserver(modules=frozenset(modules))
    run(workload, observer)
    return observer


def _parameters(model: nn.Module) -> tuple[ParameterStats, ...]:
    """Every parameter with its gradient's numbers; its values are not read."""
    named = named_parameters(model)
    gradients = statistics({each.name: p.grad for p, each in named.items()})
    return tuple(
        ParameterStats(
            name=each.name,
            shape=tuple(p.shape),
            requires_grad=p.requires_grad,
            value=head_of(p),
            gradient=gradients[each.name],
            aliases=each.aliases,
            misspelt=misspelt_flags(p),
        )
        for p, each in named.items()
    )
