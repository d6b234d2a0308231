"""Follows each training step from its first backward to its end, and records it as the schedule
says.

A step ends with ``optimizer.step()``; in a script without an optimizer it ends with each backward.
The forwards and backwards between two steps belong to the second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.capture.nodes import NodeStacks
from gradscope.capture.optimizer_steps import LastStep
from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.loop import LoopRecord
from gradscope.records.tensors import finite_or_none
from gradscope.records.training import TrainingEvent
from gradscope.training.current_step import CurrentStep, LossScales, loss_of
from gradscope.training.extra_passes import refusal
from gradscope.training.gradients import are_finite, small
from gradscope.training.guard import Guard
from gradscope.training.limit import Limit
from gradscope.training.loop.loop import Loop
from gradscope.training.metrics_schedule import MetricsSchedule
from gradscope.training.models import Models
from gradscope.training.nan_detector.detector import NanDetector
from gradscope.training.optimizer_turns import OptimizerTurns
from gradscope.training.optimizers import ObservedOptimizer, Optimizers, settings
from gradscope.training.parameter_norms import ParameterNormRecords
from gradscope.training.patches import Root
from gradscope.training.placements import Placements
from gradscope.training.sample_schedule import Schedule, is_fixed, next_fixed, seconds_in_queue
from gradscope.training.sampled_step import update_rms
from gradscope.training.spikes.spikes import Spikes
from gradscope.training.traced_steps import CauseTracer, TracedSteps

if TYPE_CHECKING:
    from gradscope.training.compiled_calls import CompiledCalls, ProbeShift
    from gradscope.training.leak_check import LeakCheck

#: The first step after which the loop is judged: a fact of fewer steps proves little.
_FIRST_JUDGED = 5


@dataclass(slots=True)
class Parts:
    """Parts that a step needs; the observer creates them, and some serve the models' calls too.

    ``nan_detector`` is None if it is off, ``placements`` in a run of one process, ``leaks`` without
    ``--leaks``, ``spikes`` if no step is kept, ``compiled`` without ``--compiled``.
    """

    schedule: Schedule
    metrics: MetricsSchedule
    current: CurrentStep
    sampling: OptimizerTurns
    stacks: NodeStacks
    deep: TracedSteps
    nan_detector: NanDetector | None
    loop: Loop
    tracer: CauseTracer
    placements: Placements | None
    models: Models
    optimizers: Optimizers
    guard: Guard
    leaks: LeakCheck | None
    spikes: Spikes | None
    compiled: CompiledCalls | None


class Steps:
    """Follows one step after the other.

    Attributes:
        number: the number of ended steps.
        stopping: True if the script must end at its next backward or step.
        stop_on_nan: True if it must end at the first NaN or Inf.
        limit: the steps or seconds after which it must end; None: no limit.
        cut: True if gradscope ended it.
        began: the start of the run, by ``time.perf_counter``: before the script imported PyTorch.

    Args:
        parts: the parts that a step uses.
        prepare: called before each step for which the schedule may want records.
        write: takes the records of each step.
        located: takes the origin of a NaN or Inf of a step.
        judge: takes the record of the loop so far, at fixed steps.
    """

    stopping = False
    stop_on_nan = False
    limit: Limit | None = None
    cut = False

    def __init__(
        self,
        parts: Parts,
        *,
        prepare: Callable[[], None],
        write: Callable[..., None],
        located: Callable[[int, tuple[NonFiniteOrigin, ...]], None],
        judge: Callable[[LoopRecord], None],
        began: float,
    ) -> None:
        self.number = 0
        self.scales = LossScales()
        self._parts, self._prepare = parts, prepare
        self._write, self._on_located, self._judge = write, located, judge
        self._located = False
        self._scaler_steps: list[int] = []
        self.began, self._last = began, time.perf_counter()
        # The thread's time in the queue for a processor, as a step began that is sampled.
        self._queued: float | None = seconds_in_queue()
        #: The next step at which the schedule wants records; the seconds of those before it, and
        #: gradscope's.
        self._due = 0
        self._rested: list[tuple[float, float]] = []
        self._closure_ended = parts.guard(self._closure_returned)
        self._norms = ParameterNormRecords(parts.models)

    def interrupt_rest(self) -> None:
        """Prepare for records of the current step, which the schedule wants."""
        self._due = 0

    def event(self, kind: str, message: str, **details: Any) -> None:
        """Record an event at the current step."""
        now = time.perf_counter() - self.began
        self._write(TrainingEvent(self.number + 1, now, kind, message, details))

    def _end_script(self) -> None:
        """End the script by an exception that is no ``Exception``: the script or the guard could
        catch one.
        """
        self.stopping, self.cut = False, True
        raise SystemExit(1)

    # ---------------------------------------------------------------- backward

    def backward_begins(
        self,
        begun: Sequence[Root],
        gradients: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
    ) -> bool:
        """Note the start of a backward from a loss with its graph.

        Args:
            begun: what it starts from; only an edge if a pipeline stage has released the tensor.
            gradients: the gradients passed for these; none for a plain loss.
            leaves: those that no operation made.

        Returns:
            True if ``backward_ended`` must be called; that call, by the engine, takes time.
        """
        parts, current = self._parts, self._parts.current
        if self.limit is not None and self.limit.backward_begins(self.number):
            self._end_script()
        roots = []
        for root in begun:
            if isinstance(root, torch.Tensor):
                roots.append(root)
        deep, nan_detector, sampler = parts.deep.tracer, parts.nan_detector, parts.sampling.sampler
        if deep is not None:
            deep.backward_begins(roots)
        loss = loss_of(roots)
        scale = self.scales.of(roots) if self.scales.any else None
        current.add_loss(loss, scale, anew=current.backwards > 0 and not self._any_gradient())
        sample = 0 if sampler is None else parts.sampling.number
        parts.loop.backward_begins(begun, loss, scale=scale, sample=sample, given=bool(gradients))
        if parts.compiled is not None:
            parts.compiled.backward_begins()
        if not self.number and is_fixed(parts.loop.backwards):
            self._judge_so_far(parts.loop.backwards)
        if nan_detector is not None and roots:
            kind = nan_detector.backward_begins(roots, gradients, loss)
            if kind is not None:
                current.loss_is(kind)
        if parts.spikes is not None and roots:
            parts.spikes.backward_begins(self.number + 1, roots, loss, scale)
        if parts.stacks.kept and begun:
            parts.stacks.end()
            if nan_detector is not None and roots:
                nan_detector.sampled_lines(roots)
        if parts.tracer.active:
            with nullcontext() if nan_detector is None else nan_detector.overlooking():
                parts.tracer.backward_begins(roots, gradients, leaves)
        if sampler is not None and begun:
            sampler.backward_begins(begun, lines=parts.sampling.wants_lines)
            parts.sampling.wants_lines = False
        if self.stopping:
            self._end_script()
        return sampler is not None or deep is not None or not parts.optimizers.any or self._reads()

    def _reads(self) -> bool:
        """True if all gradients are read after this backward.

        With several backwards in a step, they are read after the last: the steps before show how
        many there are.
        """
        parts = self._parts
        return parts.metrics.reads and parts.current.backwards >= parts.optimizers.backwards

    def _any_gradient(self) -> bool:
        """Return True if a parameter has a gradient; an optimizer may hold copies that never have
        one."""
        models = self._parts.models
        return self._parts.optimizers.any_gradient() or any(
            p.grad is not None for one in models for p in one.module.parameters()
        )

    def backward_ended(self) -> None:
        """Note the end of a backward: its gradients exist."""
        parts = self._parts
        optimized = parts.optimizers.any
        if parts.deep.tracer is not None:
            parts.deep.tracer.backward_ended()
        if not self._read_gradients() and not (
            optimized or not parts.metrics.checked or are_finite(small(self._parameters()))
        ):
            parts.current.read(self._parameters())
        if not optimized:
            parts.current.measure_all()
            self._norms.gradients_ready(None, parts.current)
            self._locate()
            self._end(None, None)

    def divided(self, by: float) -> None:
        """Note that a pipeline divided its gradients: its losses then count as means over its
        microbatches."""
        self._parts.current.divisor = by
        self._read_gradients()

    def _read_gradients(self) -> bool:
        """Read the gradients before the script clips them, if this step reads them."""
        sampler = self._parts.sampling.sampler
        if sampler is None and not self._reads():
            return False
        if sampler is not None:
            sampler.backward_ended()
        measured = None if sampler is None else sampler.gradients()
        self._parts.current.read(self._parameters(), measured)
        return True

    def _parameters(self) -> list[nn.Parameter]:
        """Return all parameters that may have a gradient: the optimizers', or the models'."""
        held = self._parts.optimizers.held()
        if held:
            return held
        models = self._parts.models
        return list(dict.fromkeys(p for model in models for p in model.module.parameters()))

    # ---------------------------------------------------------------- step

    def begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the start of the optimizer's step: gradients are final, unless a closure computes
        them later."""
        known = self._parts.optimizers.known(optimizer)
        if self._parts.sampling.sampler is not None:
            known.settings = settings(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure") if kwargs else None
        if not callable(closure):
            self._gradients_ready(optimizer, known)
        if self.stopping:
            self._end_script()
        if not callable(closure):
            return None

        def followed(*given: Any, **named: Any) -> Any:
            result = closure(*given, **named)
            self._closure_ended(optimizer, known)
            return result

        if len(args) > 1:
            return (args[0], followed, *args[2:]), kwargs
        return args, {**kwargs, "closure": followed}

    def _closure_returned(self, optimizer: Optimizer, known: ObservedOptimizer) -> None:
        self._parts.current.closure_returned()
        self._gradients_ready(optimizer, known, closure=True)

    def _gradients_ready(
        self, optimizer: Optimizer, known: ObservedOptimizer, *, closure: bool = False
    ) -> None:
        """Read the gradients, before the optimizer moves the weights."""
        parts, current = self._parts, self._parts.current
        sampler, metrics = parts.sampling.sampler, parts.metrics
        parts.loop.step_begins(optimizer, known, closure=closure)
        if not self.number and parts.compiled is not None:
            self._measure_shift(parts.compiled.shift)
        spikes, step = parts.spikes, self.number + 1
        if not (
            sampler is not None
            or (spikes is not None and spikes.is_unusual(step, known, current))
            or current.nonfinite is not None
            or metrics.reads
            or (metrics.checked and not are_finite(known.small))
        ):
            if spikes is not None:
                spikes.gradients_ready(step, optimizer, known, current)
            return
        there = [p for p in known.held if p.grad is not None]
        if not current.is_read:  # a step of fewer backwards than the one before, or with NaN or Inf
            current.read(self._parameters(), late=True)
        current.measure(there, known.name)
        self._norms.gradients_ready(known, current)
        parts.loop.gradients_read(optimizer, known, current)
        self._locate()
        if parts.loop.tokens.wants_replay:
            self._replay_tokens()
        if spikes is not None:
            with parts.sampling.paused():
                spikes.gradients_ready(step, optimizer, known, current)
        if sampler is not None:
            if not closure:
                calls = () if parts.nan_detector is None else parts.nan_detector.calls
                current.parts = sampler.parts(current, calls, known.held)
            sampler.before_update(known.held, step)
        if parts.deep.tracer is not None:
            parts.deep.tracer.step_begins()

    def _measure_shift(self, shift: ProbeShift) -> None:
        """Run the forward of step 1 again without probes, before the weights move."""
        parts = self._parts
        if parts.nan_detector is None:
            return
        began = time.perf_counter()
        with parts.sampling.paused(), parts.nan_detector.replaying() as calls:
            shift.measure(calls, list(parts.models), parts.current, alone=parts.placements is None)
        self.event("probes", shift.line(), moved=shift.moved, loss=parts.current.loss)
        # The time that the compiler takes counts for no step.
        took = time.perf_counter() - began
        parts.guard.seconds -= took
        self._last += took

    def _replay_tokens(self) -> None:
        """Find the tokens that outputs of this step's calls depend on, with the weights of these
        calls.
        """
        parts = self._parts
        if parts.nan_detector is None or parts.tracer.active:
            return
        with parts.sampling.paused(), parts.nan_detector.replaying() as calls:
            parts.loop.tokens.replay(calls, list(parts.models), refusal)

    def ended(self, optimizer: Optimizer, *_: object) -> None:
        """Note the end of the optimizer's step: the weights have moved."""
        known = self._parts.optimizers.known(optimizer)
        known.steps += 1
        deep = self._parts.deep.tracer
        if deep is not None:
            origins = deep.step_ended()
            if origins and not self._located:
                self._located = True
                self._on_located(self.number + 1, origins)
        self._parts.loop.step_ended(optimizer, known)
        self._end(optimizer, known)

    def _end(self, optimizer: Optimizer | None, known: ObservedOptimizer | None) -> None:
        """End a step: record as the schedule demands, and free the rest.

        If the schedule wants nothing, this does as little as possible; the next recorded step makes
        up for the rest.
        """
        parts, now = self._parts, time.perf_counter()
        self.number += 1
        sampled = parts.sampling.sampler is not None
        recorded = sampled or parts.metrics.is_recorded(known)
        wanted = recorded or known is None or self.number >= self._due
        if wanted:
            self.make_up()
        reading = 0.0
        last = None
        if optimizer is not None and recorded and (sampled or parts.metrics.reads_update):
            last = LastStep(optimizer)
        if last is not None and not sampled:
            reading = self._read_update(last)
        record = parts.current.record(
            self.number, optimizer, known, self.began, self._last, now, sampled=sampled
        )
        parts.metrics.unrecorded = None if recorded else record
        if recorded:
            step = record()
            placed = () if parts.placements is None else parts.placements.records(parts.models)
            held = set(parts.optimizers.held()) if sampled else set()
            samples = parts.sampling.records(step, known, last, held)
            if sampled and last is not None:  # after its sample: that reads most of the state
                parts.current.measure_update(last)
                rms = finite_or_none(parts.current.update_rms)
                if rms is None and samples:
                    rms = update_rms(samples, last.optimizer)
                step = replace(step, update_rms=rms)
            began = time.perf_counter()
            norms = list(self._norms.records(self.number, known, parts.current))
            named = time.perf_counter() - began
            self._write(*placed, *samples, *norms, step)
            if known is not None:
                known.loss = step.loss
            if not sampled:
                recording = time.perf_counter() - now - named - reading
                parts.metrics.took(parts.guard.seconds, named, recording)
        self._let_go(known, optimizer)
        if parts.tracer.active or parts.tracer.lingers:
            self._traced(optimizer)
        if is_fixed(self.number):
            self._judge_so_far(self.number)
            wanted = wanted or parts.tracer.wanted
        judges = parts.leaks is not None and parts.leaks.is_next(self.number)
        wanted = wanted or judges
        if wanted:
            self._account(optimizer, known, now, sampled=sampled)
            if judges:
                self._judge_leaks()
            self._prepare()
        else:
            if self.number + 1 == self._due:
                parts.metrics.step_ended(self.number)
            self._rested.append((now - self._last, parts.guard.seconds))
            parts.guard.seconds, self._last = 0.0, now
        if self.limit is not None and self.limit.step_ended(self.number):
            self._end_script()

    def _read_update(self, last: LastStep) -> float:
        """Read how far the step has moved the weights, and return the seconds that this takes."""
        began = time.perf_counter()
        is_read = self._parts.current.measure_update(last)
        seconds = time.perf_counter() - began
        if is_read:
            self._parts.metrics.updates.took(seconds)
        return seconds

    def loop(self, *, ended: bool) -> LoopRecord:
        """Return the record of the loop so far, with the traces' results."""
        tracer = self._parts.tracer
        if ended and tracer.active:
            tracer.conclude()
        return self._parts.loop.record(
            ended=ended,
            cut=ended and self.cut,
            causes=tracer.causes,
            untraced=tracer.untraced,
        )

    def _judge_so_far(self, count: int) -> None:
        """Judge the loop after so many steps, or backwards if no optimizer steps.

        The first steps are judged too, for a run that ends early or whose objects die before its
        end.
        """
        loop = self.loop(ended=False)
        if count >= _FIRST_JUDGED:
            self._judge(loop)
            self._parts.tracer.consider(loop)

    def _judge_leaks(self) -> None:
        """Judge the dependencies of the models' outputs; the time for it counts for no step."""
        parts, began = self._parts, time.perf_counter()
        if parts.leaks is not None:
            parts.leaks.judge(self.number)
        took = time.perf_counter() - began
        parts.guard.seconds -= took
        self._last += took

    def _traced(self, optimizer: Optimizer | None) -> None:
        """Judge the results of a traced step that has ended."""
        parts, tracer = self._parts, self._parts.tracer
        if tracer.lingers:
            tracer.end()
            return
        stepping = [
            id(one) for one in parts.optimizers.alive() if parts.optimizers.known(one).steps
        ]
        held = () if optimizer is None else parts.optimizers.known(optimizer).held
        shown = tracer.step_ended(id(optimizer), stepping, held)
        parts.sampling.hold(tracer.take_nodes())
        if shown:
            self._judge(self.loop(ended=False))

    def _let_go(self, known: ObservedOptimizer | None, optimizer: Optimizer | None) -> None:
        """Release all state of the current step."""
        parts = self._parts
        if parts.spikes is not None:
            parts.spikes.step_ended(optimizer, known, parts.current.update_rms)
        if parts.stacks.kept:
            parts.stacks.end()
        if known is not None:
            known.backwards = parts.current.until_ready
            known.is_unscaled = False
        parts.current.begin(None if known is None else known.held)
        if parts.compiled is not None:
            parts.compiled.step_ended()
        if parts.nan_detector is not None:
            parts.nan_detector.step_ended()

    def _account(
        self,
        optimizer: Optimizer | None,
        known: ObservedOptimizer | None,
        now: float,
        *,
        sampled: bool,
    ) -> None:
        """Count the cost of the step, and set when the next records are wanted."""
        parts = self._parts
        if sampled:
            parts.loop.functions.sample_ended()
            parts.loop.functions.check(self.number)
            parts.sampling.step_ended(optimizer, parts.optimizers.alive())
        else:
            parts.sampling.free_graphs()
        # The time spent here since the step ended belongs to that step, and is not counted again.
        ended = time.perf_counter()
        own = parts.guard.seconds + ended - now
        queued = 0.0
        if sampled and self._queued is not None:
            queued = max(0.0, seconds_in_queue() - self._queued)
        parts.schedule.ended(ended - self._last, sampled=sampled, own=own, queued=queued)
        self._queued = seconds_in_queue() if parts.schedule.samples_next() else None
        parts.guard.seconds, self._last = now - ended, ended
        parts.metrics.step_ended(self.number)
        # After a sample its graph is released. Several processes read the same steps. If only
        # backwards make steps, each is read.
        every = sampled or parts.placements is not None or known is None
        self._due = 0
        if not every:  # the step before a fixed one is: it is then that the next is sampled
            sampled_next = next_fixed(self.number + 1) - 1
            self._due = min(parts.metrics.next_recorded(self.number), sampled_next)

    def make_up(self) -> None:
        """Report the time of the steps without records to the schedules."""
        parts = self._parts
        for seconds, own in self._rested:
            parts.schedule.ended(seconds, sampled=False, own=own)
            parts.metrics.passed(own)
        self._rested.clear()

    # ---------------------------------------------------------------- gradient scaler

    def scaler_step_begins(self, optimizer: Optimizer) -> None:
        """Note that a gradient scaler is about to decide whether the optimizer makes its step."""
        self._scaler_steps.append(self.number)

    def scaler_step_ended(self, optimizer: Optimizer) -> None:
        """Note that a scaler skipped the step, if the optimizer made none."""
        parts = self._parts
        if self._scaler_steps and self._scaler_steps.pop() == self.number:
            known = parts.optimizers.known(optimizer)
            self.event(
                "skipped-step",
                "the gradient scaler skipped a step: a scaled gradient was NaN or Inf",
                optimizer=known.name,
                loss_scale=parts.current.scale,
            )
            known.is_unscaled = False
            parts.current.skip()
            if parts.nan_detector is not None:
                parts.nan_detector.step_ended()
            if parts.spikes is not None:
                parts.spikes.step_ended()

    # ---------------------------------------------------------------- NaN and Inf

    def _locate(self) -> None:
        """Find the origin of a NaN or Inf, while the weights are still those of the forward."""
        parts, current = self._parts, self._parts.current
        if current.nonfinite is None:
            return
        self.stopping = self.stop_on_nan
        if parts.nan_detector is None or self._located or parts.deep.tracer is not None:
            # Later steps inherit it; and if every operation is traced, the trace tells more.
            return
        self._located = True
        where = "loss" if current.in_loss else "gradients"
        sampler = parts.sampling.sampler
        with parts.sampling.paused():
            calls = None if sampler is None else sampler.calls
            origins = parts.nan_detector.locate(where=where, seen=calls)
            if parts.compiled is not None:
                models = [(parts.models.name(model), model.module) for model in parts.models]
                replayed = parts.nan_detector.replayed
                origins = parts.compiled.refined(origins, models, where, replayed=replayed)
            self._on_located(self.number + 1, origins)
        kind = "NaN" if current.nonfinite == "nan" else "Inf"
        self.event("non-finite", f"{kind} in the {where}")
