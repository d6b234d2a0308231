"""Observes a training loop that it does not own; writes one record per step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from gradscope.capture.nodes import NodeStacks
from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.leaks import AxisResult
from gradscope.records.loop import LoopRecord
from gradscope.records.ranks import UNUSED
from gradscope.records.training import TrainingEvent
from gradscope.records.transformer import PROBES
from gradscope.training.current_step import CurrentStep
from gradscope.training.discovery import (
    IN_PLACE,
    compiled_forward,
    compiled_method,
    live_optimizers,
    optimizers_of,
    steps_made,
)
from gradscope.training.guard import Guard
from gradscope.training.limit import Limit
from gradscope.training.loop.loop import Loop
from gradscope.training.loop.patches import LoopObserver, observe_loop
from gradscope.training.loop.script_lines import written_assignment
from gradscope.training.metrics_schedule import MetricsSchedule
from gradscope.training.model_calls import ModelCalls, ModelSearch
from gradscope.training.models import Model, Models
from gradscope.training.nan_detector.detector import NanDetector
from gradscope.training.optimizer_turns import OptimizerTurns
from gradscope.training.optimizers import Optimizers
from gradscope.training.patches import Root, observe, observe_stages
from gradscope.training.placements import Placements, unused_parameters
from gradscope.training.replicas import several_processes
from gradscope.training.sample_schedule import Schedule
from gradscope.training.spikes.spikes import Spikes
from gradscope.training.steps import Parts, Steps
from gradscope.training.traced_steps import CauseTracer, TracedSteps

if TYPE_CHECKING:
    from gradscope.training.leak_check import LeakCheck


class Observer:
    """Observes PyTorch while a script trains. What ``patches.observe`` calls never raises.

    Args:
        write: takes the records of each step.
        located: takes the origin of a NaN or Inf of a step.
        judge: takes the record of the loop so far, at fixed steps.
        schedule: selects the sampled steps.
        layers: patterns of the modules whose calls are recorded.
        probes: the parts of a transformer that are recorded.
        deep: the first and the last step that are traced operation by operation.
        nan_detector: True if the origin of a NaN or Inf is found in the step that produced it.
        stop_on_nan: True if the script ends at the first NaN or Inf.
        limit: the steps or seconds after which the script is ended; None: no limit.
        processes: the number of processes that train together.
        leaks: takes the step, the model's id and the verdicts of ``--leaks``; None: no check.
        spikes: makes the recorder of spikes; None: no step is kept.
        compiled: True if the calls inside compiled models are recorded.
        began: the start of the run, by ``time.perf_counter``; None: now.
        failed: takes an error of gradscope's own; from then on nothing is observed.
    """

    def __init__(
        self,
        write: Callable[..., None],
        located: Callable[[int, tuple[NonFiniteOrigin, ...]], None],
        judge: Callable[[LoopRecord], None],
        schedule: Schedule,
        *,
        layers: Sequence[str] = ("**",),
        probes: Collection[str] = PROBES,
        deep: tuple[int, int] | None = None,
        nan_detector: bool = True,
        stop_on_nan: bool = False,
        limit: Limit | None = None,
        processes: int = 1,
        leaks: Callable[[int, int, Sequence[AxisResult]], None] | None = None,
        spikes: Callable[[NanDetector, Models, Schedule], Spikes] | None = None,
        compiled: bool = False,
        began: float | None = None,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.models = Models()
        self.models.probed = compiled
        #: Steps that other threads made than the one that is observed.
        self.elsewhere = 0
        #: Whether `torch.autograd.grad` was called.
        self.gradients_were_asked = False
        self._write, self._failed = write, failed
        self._guard = guard = Guard(self._give_up)
        self._patches: ExitStack | None = None
        self._loop_patches: ExitStack | None = None
        placements = Placements() if processes > 1 else None
        optimizers = Optimizers(lambda known: self._search.held_others(known))
        self._loop = loop = Loop(self.models, optimizers)
        current = CurrentStep(placements=placements)
        detector = NanDetector(self._trained) if nan_detector else None
        inside = None
        if compiled:  # or else the compiler would be imported, which takes seconds
            from gradscope.training.compiled_calls import CompiledCalls

            inside = CompiledCalls(layers, guard, checked=nan_detector)
        self._parts = parts = Parts(
            schedule=schedule,
            metrics=MetricsSchedule(schedule, current, checked=nan_detector),
            current=current,
            sampling=OptimizerTurns(layers, probes, guard, inside),
            stacks=NodeStacks(),
            deep=TracedSteps(deep, guard),
            nan_detector=detector,
            loop=loop,
            tracer=CauseTracer(guard),
            placements=placements,
            models=self.models,
            optimizers=optimizers,
            guard=guard,
            leaks=self._leak_check(leaks, processes),
            spikes=spikes(detector, self.models, schedule) if detector and spikes else None,
            compiled=inside,
        )
        self._spikes = parts.spikes
        self._calls = ModelCalls(parts, guard)
        self._search = search = ModelSearch(
            parts, self._calls, found=self._prepare, pipelining=self._observe_stages
        )
        if processes > 1:
            parts.tracer.forbid("several processes train together")
        if deep is not None:
            parts.tracer.forbid("`--deep` traces these steps")
            self._forbid_spikes("`--deep` traces steps")
        self._steps = steps = Steps(
            parts,
            prepare=self._prepare,
            write=write,
            located=located,
            judge=judge,
            began=time.perf_counter() if began is None else began,
        )
        steps.stop_on_nan, steps.limit = stop_on_nan, limit
        # The methods that PyTorch's patched functions call.
        self.optimizer_made = guard(self._optimizer_made)
        self.backward_begins = guard.in_training(self._backward_begins)
        self.backward_ended = guard(steps.backward_ended)
        self.step_begins = guard.in_training(self._step_begins)
        self.step_ended = guard.in_training(steps.ended, elsewhere=self._stepped_elsewhere)
        self.scaled = steps.scales.add
        self.scaler_step_begins = guard(steps.scaler_step_begins)
        self.scaler_step_ended = guard(steps.scaler_step_ended)
        self.divided = guard(steps.divided)
        self.graph_is_held = guard(self._let_go)
        self.compiled = guard(self._compiled)
        self.was_compiled = guard(self._was_compiled)
        passed_on = _LoopEvents(parts, search.clearing)
        self._loop_events: LoopObserver = guard.events(LoopObserver, passed_on, loop)
        #: The script raises this, and its models are still there.
        self.script_failed = guard(self._script_failed)

    def _leak_check(
        self, found: Callable[[int, int, Sequence[AxisResult]], None] | None, processes: int
    ) -> LeakCheck | None:
        if found is None:
            return None
        from gradscope.training.leak_check import LeakCheck  # needed for `--leaks` only

        check = LeakCheck(self.models, found)
        if processes > 1:
            check.forbidden = "several processes train together"
        return check

    # ---------------------------------------------------------------- the life of the observer

    def start(self) -> None:
        """Observe from now on."""
        self._patches = observe(self)
        self._loop_patches = observe_loop(self._loop_events)
        self._guard.observing = True

    def adopt(self) -> int | None:
        """Take in the optimizers that were made before ``start``.

        Returns:
            The number of steps that they made; None if none of their parameters has a gradient. An
            optimizer that keeps nothing of its steps counts as one that made none.
        """
        found = live_optimizers()
        for optimizer in found:
            self._parts.optimizers.add(optimizer)
        if found:
            self._guard(self._search.search)()
        held = [p for one in found for group in one.param_groups for p in group["params"]]
        if all(parameter.grad is None for parameter in held):
            return None
        return sum(steps_made(optimizer) or 0 for optimizer in found)

    def observe_only(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Observe only these models, from the first step on.

        Without optimizers, use those that hold a parameter of the models.
        """
        self.models.only(models)
        for optimizer in optimizers or optimizers_of(models):
            self._parts.optimizers.add(optimizer)
        self._guard(self._search.search)()

    def stop(self) -> None:
        """Remove all hooks and patches."""
        self._steps.make_up()
        self._guard.observing = False
        self._parts.deep.end()
        self._parts.tracer.end()
        self._parts.stacks.end()
        self._parts.sampling.end()
        self._loop.functions.sample_ended()
        if self._parts.nan_detector is not None:
            self._parts.nan_detector.close()
        self._calls.close()
        if self._parts.compiled is not None:
            self._parts.compiled.close()
        self._loop.close()
        for patches in (self._patches, self._loop_patches):
            if patches is not None:
                patches.close()
        self._patches = self._loop_patches = None

    def _give_up(self, error: BaseException) -> None:
        self.stop()
        self._failed(error)

    def end_script(self) -> None:
        """End the script at its next backward or step."""
        self._steps.stopping = True

    def _script_failed(self, error: BaseException) -> None:
        details = unused_parameters(error, self.models)
        if details is not None:
            message = "parameters got no gradient, and DistributedDataParallel raised"
            now = time.perf_counter() - self._steps.began
            # DistributedDataParallel raises in the forward after the step without these gradients.
            self._write(TrainingEvent(max(self.step, 1), now, UNUSED, message, details))

    # ---------------------------------------------------------------- what is known

    @property
    def step(self) -> int:
        """Number of steps that have ended."""
        return self._steps.number

    def loop(self) -> LoopRecord:
        """Return the record of the loop, after the script has ended."""
        return self._steps.loop(ended=True)

    def made_at(self, model: int, name: str) -> str | None:
        """Return the line of the script that made a module or a parameter of a model; None if
        unknown."""
        return self._loop.made_at(model, name)

    def called_at(self, model: int, name: str) -> str | None:
        """Return the first line of the script that called a module of a model; None if unknown."""
        return self._loop.model_uses.called_at(model, name)

    def optimizer_at(self, name: str) -> str | None:
        """Return the line of the script that made an optimizer; None if unknown."""
        return self._loop.optimizer_uses.line_of(name)

    def attribute_at(self, name: str) -> str | None:
        """Return the line of the script that sets an attribute of this name; None if there is
        none."""
        return written_assignment(name)

    def leaks(self) -> str | None:
        """Return the result of ``--leaks`` in one line; None without the option."""
        return None if self._parts.leaks is None else self._parts.leaks.line()

    def compiled_lines(self) -> list[str]:
        """Return the lines on compiled models for the end of the run; empty without
        ``--compiled``."""
        return [] if self._parts.compiled is None else self._parts.compiled.lines()

    @property
    def cut(self) -> bool:
        """True if gradscope ended the script early."""
        return self._steps.cut

    @property
    def backwards(self) -> int:
        """Number of backwards that have begun."""
        return self._loop.backwards

    @property
    def schedule(self) -> Schedule:
        """Schedule of the sampled steps, and their cost."""
        return self._parts.schedule

    @property
    def metrics(self) -> MetricsSchedule:
        """Schedule of the recorded step metrics."""
        return self._parts.metrics

    @property
    def device(self) -> str | None:
        """Device of the first model that was sampled."""
        return self._parts.sampling.device

    @property
    def one_of_several(self) -> bool:
        """True if other processes train the same model."""
        return self._calls.several

    # ---------------------------------------------------------------- what PyTorch calls

    def gradients_asked(self, without_graph: bool) -> None:
        """Note a call of ``torch.autograd.grad``."""
        if self._guard.inside:  # a trace did
            return
        self.gradients_were_asked = True
        if without_graph:
            self._guard(self._loop.asked_without_graph)()

    def _stepped_elsewhere(self, *_: object) -> None:
        self.elsewhere += 1

    def _optimizer_made(self, optimizer: Optimizer) -> None:
        self._parts.optimizers.add(optimizer)
        if self._loop.optimizer_made(optimizer):
            self._search.search()

    def _backward_begins(
        self,
        begun: Sequence[Root],
        gradients: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
    ) -> bool:
        self._search.backward_begins(self.step)
        current = self._parts.current
        if not self._loop.backwards and not self.models.are_given:
            held = self._parts.optimizers.held()
            self._loop.copies.find(held, self._loop.steps_ended, self._guard)
        if self._calls.several and current.ready is None and not self._search.in_stages:
            current.ready = time.perf_counter()
        return self._steps.backward_begins(begun, gradients, leaves)

    def _step_begins(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._search.find_stages()
        return self._steps.begins(optimizer, args, kwargs)

    def _compiled(self, what: object) -> None:
        self._guard.keep_untraced()
        module = compiled_forward(what)
        if module is not None:
            self.models.forwards.add(module)
        elif compiled_method(what) != IN_PLACE and not isinstance(what, nn.Module):
            self.models.traced = True
            if self._loop_patches is not None:  # a compiled step would trace them, too
                self._loop_patches.close()
        self._parts.tracer.forbid("`torch.compile` traces what is called")
        self._forbid_spikes("`torch.compile` traces what is called")
        self._parts.sampling.end()
        self._calls.close()
        self._loop.close()
        if self._parts.compiled is not None:
            self._search.probe(what)
        self.models.forget_hooks()
        self._steps.interrupt_rest()

    def _was_compiled(self) -> None:
        """Note a compilation: with probes, the first step can be sampled whenever it happens."""
        if self._parts.compiled is not None:
            self._search.search()

    def _let_go(self) -> None:
        """Release the graphs of the step so far."""
        self._parts.sampling.let_go()
        if self._parts.tracer.active:
            self._parts.tracer.end()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the calls in the block from the training."""
        with self._parts.sampling.paused():
            self._calls.aside = True
            try:
                yield
            finally:
                self._calls.aside = False

    # ---------------------------------------------------------------- models

    def _forbid_spikes(self, why: str) -> None:
        if self._spikes is not None:
            self._spikes.forbidden = self._spikes.forbidden or why

    def _observe_stages(self, stages: ModuleType) -> None:
        assert self._patches is not None
        observe_stages(self._patches, self, stages)

    def _trained(self) -> list[tuple[str, nn.Module]]:
        return [(model.name, model.module) for model in self.models]

    def _prepare(self) -> None:
        """Decide before a step whether to sample it."""
        deep = self._parts.deep
        self._search.refresh()
        if deep.wanted:
            deep.arm(self.step + 1, self.models)
            self._steps.interrupt_rest()
        if self._parts.tracer.wanted or deep.tracer or self.schedule.samples_next():
            with self.models.kept() as models:
                self._observe_closely(models)

    def _observe_closely(self, models: Sequence[Model]) -> None:
        """Trace the step that begins, or sample it."""
        sampling, tracer = self._parts.sampling, self._parts.tracer
        names = {self.models.name(model): model for model in models}
        if tracer.wanted:
            tracer.begin(names.items())
            self._steps.interrupt_rest()
        if sampling.sampler is None and (self._parts.deep.tracer or self.schedule.samples_next()):
            if several_processes() and not self._calls.several:  # since the models were made
                self._search.observe_calls()
            sampling.begin(models)
            self._loop.functions.sample_begins(self._guard(self._loop.functions.keep))
            self._steps.interrupt_rest()


class _LoopEvents:
    """Handles some events of ``loop.patches.LoopObserver``; the loop itself handles the others.

    Args:
        parts: the loop, the current step and the spikes get events.
        search: searches for models if a module was set.
    """

    def __init__(self, parts: Parts, search: Callable[[], None]) -> None:
        self._loop, self._optimizers, self._current = parts.loop, parts.optimizers, parts.current
        self._indices = None if parts.spikes is None else parts.spikes.indices
        self._search = search

    def clearing(self) -> None:
        """Note that ``zero_grad`` is about to clear gradients."""
        self._search()
        self._loop.clearing()

    def clipping(self, parameters: Sequence[torch.Tensor], by_norm: bool) -> None:
        """Note that these parameters' gradients are about to be clipped."""
        if by_norm:
            self._current.gradients.multiplied(parameters, 1)

    def unscaled(self, optimizer: Optimizer) -> None:
        """Note that a gradient scaler divided an optimizer's gradients."""
        known = self._optimizers.known(optimizer)
        known.is_unscaled = True
        self._current.gradients.multiplied(known.held, 0)
        self._loop.unscaled(optimizer)

    def epoch_begins(self, loader: DataLoader[Any]) -> None:
        """Note the start of an iteration over a data loader."""
        self._loop.epoch_begins(loader)
        if self._indices is not None:
            self._indices.epoch_begins(loader)

    def batch_drawn(self, iterator: Any, indices: Any) -> None:
        """Note that a data loader's iterator drew the indices of a batch."""
        self._loop.batch_drawn(iterator, indices)
        if self._indices is not None:
            self._indices.drawn(iterator, indices)
