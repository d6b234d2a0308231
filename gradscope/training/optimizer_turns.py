"""Turns of optimizers: steps are sampled together until every optimizer has stepped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.graph import free_nodes
from gradscope.capture.optimizer_steps import LastStep
from gradscope.records.training import TrainedModel, TrainingRecord, TrainingStep
from gradscope.training.guard import Guard
from gradscope.training.memory import Heap
from gradscope.training.models import Model
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.sampled_step import SampledStep

if TYPE_CHECKING:
    from gradscope.training.compiled_calls import CompiledCalls

#: If several optimizers take turns, one sample lasts at most this many steps.
_LONGEST_ROUND = 8


class OptimizerTurns:
    """The sample of the current step, if it is sampled.

    Args:
        layers: patterns of the modules whose calls are recorded.
        probes: the parts of a transformer that are recorded.
        guard: makes functions of the hooks that never raise.
        compiled: has the calls of compiled models; None: they are not recorded.
    """

    def __init__(
        self,
        layers: Sequence[str],
        probes: Collection[str],
        guard: Guard,
        compiled: CompiledCalls | None = None,
    ) -> None:
        self.sampler: SampledStep | None = None
        self.number = 0  # how many samplers there were
        #: True in the first sample, which records the lines of the loss's operations.
        self.wants_lines = True
        self.device: str | None = None  # of the first model that was sampled
        self._layers, self._probes, self._guard = layers, probes, guard
        self._compiled = compiled
        self._models: Sequence[Model] = ()
        self._optimizers: set[int] = set()  # that made a step since the sampler was set
        self._steps = 0
        self._nodes: list[list[Node]] = []  # that were seen, of the latest samples
        self._heap = Heap()

    def begin(self, models: Sequence[Model]) -> None:
        """Sample these models from now on."""
        self._models = models
        self._optimizers, self._steps = set(), 0
        self.number += 1
        self._heap.sample_begins()
        self.sampler = SampledStep(models, self._layers, self._probes, self._guard, self._compiled)

    def end(self) -> None:
        """Remove every hook."""
        if self.sampler is not None:
            self._nodes.append(self.sampler.remove())
            self.sampler = None

    def paused(self) -> AbstractContextManager[None]:
        """Ignore calls in the block: they are not the script's."""
        return nullcontext() if self.sampler is None else self.sampler.paused()

    def records(
        self,
        step: TrainingStep,
        optimizer: ObservedOptimizer | None,
        last: LastStep | None,
        held: Collection[nn.Parameter],
    ) -> list[TrainingRecord]:
        """Return the records of an ended step: new models, and samples.

        Args:
            step: its step metrics.
            optimizer: the optimizer that made the step.
            last: its step.
            held: the parameters of all optimizers.
        """
        if self.sampler is None:
            return []
        samples = self.sampler.taken(step, optimizer, last, elsewhere=held)
        models: list[TrainedModel] = []
        by_id = {model.id: model for model in self._models}
        for sample in samples:
            news = by_id[sample.model].news(step.step)
            if news is not None:
                models.append(news)
            self.device = self.device or sample.report.run.device
        return [*models, *samples, *self.sampler.fingerprints(step.step)]

    def step_ended(self, optimizer: object, optimizers: Iterable[object]) -> None:
        """Note the end of a sampled step; the sample goes on until every optimizer has made a
        step."""
        self._optimizers.add(id(optimizer))
        self._steps += 1
        if self._steps >= _LONGEST_ROUND or not set(map(id, optimizers)) - self._optimizers:
            self.end()
            self._heap.give_back()
        self.free_graphs(but=1)

    def let_go(self) -> None:
        """Release all graphs now, because a tensor in them is about to be swapped."""
        if self.sampler is not None:
            self.sampler.let_go()
            self._nodes.append(self.sampler.take_nodes())
        self.free_graphs()

    def hold(self, nodes: list[Node]) -> None:
        """Free these nodes, too, when their graph is gone."""
        if nodes:
            self._nodes.append(nodes)

    def free_graphs(self, *, but: int = 0) -> None:
        """Release the graphs, which hold parameters, except for the last few: the script holds the
        graph of a step until the next one.
        """
        while len(self._nodes) > but:
            free_nodes(self._nodes.pop(0))
