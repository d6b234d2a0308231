"""Sees the steps of a training that somebody else runs, and hands their records on.

A step ends with ``optimizer.step()``; in a script that makes no optimizer it ends with each
backward. Between two steps stand the forwards and backwards of the second.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.ranks import UNUSED
from gradscope.records.training import TrainingEvent
from gradscope.training.current_step import CurrentStep, LossScales, loss_of
from gradscope.training.deep import DeepSteps
from gradscope.training.discovery import optimizers_of
from gradscope.training.gradients import are_finite, small
from gradscope.training.guard import Guard
from gradscope.training.interval import Interval
from gradscope.training.model_calls import ModelCalls
from gradscope.training.models import Models
from gradscope.training.node_stacks import NodeStacks
from gradscope.training.optimizers import SeenOptimizer, settings
from gradscope.training.patches import Root, listen, listen_to_stages
from gradscope.training.placements import Placements
from gradscope.training.replicas import several_processes
from gradscope.training.sampling import Sampling
from gradscope.training.sentinel.sentinel import Sentinel
from gradscope.training.stages import stages_imported
from gradscope.training.unused import unused_parameters
from gradscope.training.vital_signs import VitalSigns


class Observer:
    """Listens to PyTorch while a script trains.

    Args:
        write: takes the records of each step.
        located: takes where a NaN or an infinity of a step came from.
        interval: which steps are looked at.
        layers: patterns of the modules whose calls are recorded.
        deep: the first and the last step that are watched operation by operation.
        sentinel: whether a NaN or an infinity is located in the step that made it.
        stop_on_nan: whether the script ends at the first of them.
        processes: how many train together.
        failed: takes an error of gradscope's own; from then on nothing is observed.
    """

    def __init__(
        self,
        write: Callable[..., None],
        located: Callable[[int, tuple[NonFiniteOrigin, ...]], None],
        interval: Interval,
        *,
        layers: Sequence[str] = ("**",),
        deep: tuple[int, int] | None = None,
        sentinel: bool = True,
        stop_on_nan: bool = False,
        processes: int = 1,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.step = 0
        self.interval = interval
        self.models = Models()
        #: Steps that other threads made than the one that is observed.
        self.elsewhere = 0
        self._write, self._on_located, self._failed = write, located, failed
        self._stop_on_nan, self._stopping = stop_on_nan, False
        self._guarded = guard = Guard(self._give_up)
        self._deep = DeepSteps(deep, self._guarded)
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, SeenOptimizer] = (
            weakref.WeakKeyDictionary()
        )
        # The one that stepped last; weak, as it holds the parameters.
        self._latest: tuple[weakref.ref[Optimizer], weakref.ref[SeenOptimizer]] | None = None
        self._any_optimizer = False
        self._sentinel = Sentinel(self._trained) if sentinel else None
        self._patches: ExitStack | None = None
        self._sampling = Sampling(layers, self._guarded)
        self._stacks = NodeStacks()
        self._scales = LossScales()
        self._placements = Placements() if processes > 1 else None
        self._current = CurrentStep(placements=self._placements)
        self.signs = VitalSigns(interval, self._current, checked=sentinel)
        self._calls = ModelCalls(self._sentinel, self._current, self._sampling, self._stacks, guard)
        self._scaler_steps: list[int] = []
        self._located = False
        self._stages_imported = self._in_stages = False
        self._began = self._last = time.perf_counter()
        #: The next step at which anything is due; the seconds of those before it, and gradscope's.
        self._due = 0
        self._passed: list[tuple[float, float]] = []
        # What PyTorch calls: `patches.Listener` says when.
        self.optimizer_made = guard(self._optimizer_made)
        self.backward_begins = guard.in_training(self._backward_begins)
        self.backward_ended = guard(self._backward_ended)
        self.step_begins = guard.in_training(self._step_begins)
        self.step_ended = guard.in_training(self._step_ended, elsewhere=self._stepped_elsewhere)
        self.scaled = self._scales.add
        self.scaler_step_begins = guard(self._scaler_step_begins)
        self.scaler_step_ended = guard(self._scaler_step_ended)
        self.divided = guard(self._gradients_left)
        self.compiled = guard(self._compiled)
        #: The script raises this, and its models are still there.
        self.script_failed = guard(self._script_failed)
        self._closure_ended = guard(self._gradients_ready)

    # ---------------------------------------------------------------- the life of the observer

    def start(self) -> None:
        """Listen from now on."""
        self._patches = listen(self)
        self._guarded.listening = True

    def watch(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Look at these models and no others, from the first step on.

        Without optimizers, those count that hold a parameter of the models.
        """
        self.models.only(models)
        for optimizer in optimizers or optimizers_of(models):
            self._any_optimizer = True
            self._optimizers[optimizer] = SeenOptimizer()
        self._guarded(self._search)()

    def stop(self) -> None:
        """Take everything away that was set."""
        self._count_passed()
        self._guarded.listening = False
        self._deep.end()
        self._stacks.end()
        self._sampling.end()
        if self._sentinel is not None:
            self._sentinel.close()
        self._calls.close()
        if self._patches is not None:
            self._patches.close()
            self._patches = None

    def _give_up(self, error: BaseException) -> None:
        self.stop()
        self._failed(error)

    @property
    def device(self) -> str | None:
        """Where the first model was that was looked at."""
        return self._sampling.device

    @property
    def time(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    def _script_failed(self, error: BaseException) -> None:
        details = unused_parameters(error, self.models)
        if details is not None:
            message = "parameters got no gradient, and DistributedDataParallel gave up"
            # It says so in the forward after.
            self._write(TrainingEvent(max(self.step, 1), self.time, UNUSED, message, details))

    def event(self, kind: str, message: str, **details: Any) -> None:
        """Something that happened once, at the step that is going on."""
        self._write(TrainingEvent(self.step + 1, self.time, kind, message, details))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is called in the block is no part of the training."""
        sampler = self._sampling.sampler
        with nullcontext() if sampler is None else sampler.paused():
            self._calls.aside = True
            try:
                yield
            finally:
                self._calls.aside = False

    def end_script(self) -> None:
        """Have the script end at its next backward or step."""
        self._stopping = True

    def _end_script(self) -> None:
        """By what is not an ``Exception``, which a script may well catch, as may the guard."""
        self._stopping = False
        raise SystemExit(1)

    def _stepped_elsewhere(self, *_: object) -> None:
        self.elsewhere += 1

    # ---------------------------------------------------------------- models

    def _optimizer_made(self, optimizer: Optimizer) -> None:
        self._any_optimizer = True
        self._optimizers[optimizer] = SeenOptimizer()
        self._search()

    def _search(self) -> None:
        imported = stages_imported()
        if imported is not None and self._patches is not None and not self._stages_imported:
            self._stages_imported = True
            listen_to_stages(self._patches, self, imported)
        if self.models.search():
            self._listen_to_calls()
            self._sampling.end()
            self._arm()

    def _compiled(self, what: object) -> None:
        # `module.compile()` compiles a method of it.
        if not isinstance(getattr(what, "__self__", what), nn.Module):
            self.models.traced = True
        self._sampling.end()
        self._calls.close()
        self.models.forget_hooks()
        self._due = 0

    def _find_stages(self) -> None:
        """After forward has come to all models: a pipeline's stage is known by what runs it."""
        self._in_stages = self.models.settle() or self._in_stages

    def _listen_to_calls(self) -> None:
        self._calls.several = several_processes()
        self._calls.listen(() if self.models.traced else self.models)

    def _trained(self) -> list[tuple[str, nn.Module]]:
        return [(model.name, model.module) for model in self.models]

    # ---------------------------------------------------------------- a step

    def _arm(self) -> None:
        """Before a step begins: look at it, or not."""
        if self.models.stale and self.models.search():
            self._listen_to_calls()
        if self._deep.wanted:
            self._deep.arm(self.step + 1, self.models)
            self._due = 0
        if self._sampling.sampler is not None:
            return
        if self._deep.watch is not None or self.interval.wants():
            models = list(self.models)
            for model in models:
                self.models.name(model)
            if several_processes() and not self._calls.several:  # since the models were made
                self._listen_to_calls()
            self._sampling.begin(models)
            self._due = 0

    def _backward_begins(self, begun: Sequence[Root], gradients: Sequence[torch.Tensor]) -> bool:
        """A loss is there, with its graph."""
        if self._stages_imported:
            self._find_stages()
        roots = []
        for root in begun:
            if isinstance(root, torch.Tensor):
                roots.append(root)
        if not self._any_optimizer and not self.step and not list(self.models):
            self._search()
        if self._deep.watch is not None:
            self._deep.watch.backward_begins(roots)
        current = self._current
        loss = loss_of(roots)
        current.add_loss(loss, self._scales.of(roots) if self._scales.any else None)
        if self._calls.several and current.ready is None and not self._in_stages:
            current.ready = time.perf_counter()
        if self._sentinel is not None and roots:
            kind = self._sentinel.backward_begins(roots, gradients, loss)
            if kind is not None:
                current.loss_is(kind)
        sampler = self._sampling.sampler
        if sampler is not None and begun:
            if self._stacks.end() and self._sentinel is not None and roots:
                self._sentinel.sampled_lines(roots)
            sampler.backward_begins(begun)
        if self._stopping:
            self._end_script()
        return (
            sampler is not None
            or self._deep.watch is not None
            or not self._any_optimizer
            or (self.signs.are_read and self._is_last())
        )

    def _is_last(self) -> bool:
        """Whether no backward is to come before all gradients are read.

        Before the last of several nobody asks what has arrived: as many as the steps before had.
        """
        optimizers = self._optimizers.values()
        return self._current.backwards >= min([o.backwards for o in optimizers], default=1)

    def _backward_ended(self) -> None:
        """Gradients are there, as backward left them."""
        if self._deep.watch is not None:
            self._deep.watch.backward_ended()
        if not self._gradients_left() and not (
            self._any_optimizer or not self.signs.checked or are_finite(small(self._parameters()))
        ):
            self.signs.read(self._parameters())
        if not self._any_optimizer:
            self._current.measure_all()
            self._locate()
            self._finish(None, None)

    def _gradients_left(self) -> bool:
        """Read the gradients, where they are in this step, before anybody clips them."""
        sampler = self._sampling.sampler
        if sampler is None and not (self.signs.are_read and self._is_last()):
            return False
        self.signs.read(self._parameters())
        if sampler is not None:
            sampler.backward_ended()
        return True

    def _parameters(self) -> list[nn.Parameter]:
        """All that may have got a gradient: of the optimizers, or of the models."""
        held = [p for known in self._optimizers.values() for p in known.held]
        if not held:
            held = [p for model in self.models for p in model.module.parameters()]
        return list(dict.fromkeys(held))

    def _step_begins(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Gradients are there, as the optimizer gets them; with a closure they come later."""
        latest = self._latest
        known = latest[1]() if latest is not None and latest[0]() is optimizer else None
        if known is None or not known.is_as_seen(optimizer):
            known = self._known(optimizer)
        if self._sampling.sampler is not None:
            known.settings = settings(optimizer)
        if len(args) > 1 or kwargs:
            return self._with_closure(known, args, kwargs)
        self._gradients_ready(known)
        if self._stopping:
            self._end_script()
        return None

    def _with_closure(
        self, known: SeenOptimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The arguments of a step, its closure being one that says when it has ended."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._gradients_ready(known)
        if self._stopping:
            self._end_script()
        if not callable(closure):
            return None

        def watched(*given: Any, **named: Any) -> Any:
            result = closure(*given, **named)
            self._closure_ended(known)
            return result

        if len(args) > 1:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def _known(self, optimizer: Optimizer) -> SeenOptimizer:
        known = self._optimizers.get(optimizer)
        if known is None:
            known = self._optimizers[optimizer] = SeenOptimizer()
        self._latest = weakref.ref(optimizer), weakref.ref(known)
        if not known.is_as_seen(optimizer):
            known.look(optimizer)
            mine = {p for model in self.models for p in model.module.parameters()}
            if not known.held <= mine:
                self._search()
        return known

    def _gradients_ready(self, known: SeenOptimizer) -> None:
        """Before the optimizer moves the weights."""
        if self._stages_imported:
            self._find_stages()
        current, sampler = self._current, self._sampling.sampler
        whole = sampler is not None or current.nonfinite is not None
        if not (
            whole or self.signs.are_read or (self.signs.checked and not are_finite(known.small))
        ):
            return
        there = [p for p in known.held if p.grad is not None]
        if not current.is_read:  # a backward more than expected: read late
            self.signs.read(self._parameters())
        current.measure(there, known.name)
        self._locate()
        if sampler is not None:
            sampler.before_update(known.held, self.step + 1)
        if self._deep.watch is not None:
            self._deep.watch.step_begins()

    def _step_ended(self, optimizer: Optimizer, *_: object) -> None:
        """The weights have moved."""
        latest = self._latest
        known = latest[1]() if latest is not None and latest[0]() is optimizer else None
        if known is None:
            known = self._known(optimizer)
        known.steps += 1
        if self._deep.watch is not None:
            origins = self._deep.watch.step_ended()
            if origins and not self._located:
                self._located = True
                self._on_located(self.step + 1, origins)
        if self.step + 1 < self._due and not self.signs.is_recorded(known):
            self._pass(optimizer, known)
        else:
            self._finish(optimizer, known)

    def _pass(self, optimizer: Optimizer, known: SeenOptimizer) -> None:
        """A step has ended at which nothing is due: as little as can be is done."""
        current, now = self._current, time.perf_counter()
        self.step += 1
        self.signs.unrecorded = current.record(
            self.step, optimizer, known, self._began, self._last, now, sampled=False
        )
        known.backwards = current.backwards or 1
        current.begin(known.held)
        if self._sentinel is not None:
            self._sentinel.step_ended()
        if self.step + 1 == self._due:
            self.signs.step_ended(self.step)
        self._passed.append((now - self._last, self._guarded.seconds))
        self._guarded.seconds, self._last = 0.0, now

    def _count_passed(self) -> None:
        for seconds, own in self._passed:
            self.interval.ended(seconds, watched=False, own=own)
            self.signs.passed(own)
        self._passed.clear()

    def _finish(self, optimizer: Optimizer | None, known: SeenOptimizer | None) -> None:
        """A step has ended: its records, and what is kept of it let go."""
        current, signs, now = self._current, self.signs, time.perf_counter()
        self._count_passed()
        self.step += 1
        sampled = self._sampling.sampler is not None
        if self._placements is not None:
            self._write(*self._placements.records(self.models))
        record = current.record(
            self.step, optimizer, known, self._began, self._last, now, sampled=sampled
        )
        if sampled or signs.is_recorded(known):
            step = record()
            self._write(*self._sampling.records(step, known, self._optimizers), step)
            signs.unrecorded = None
            if known is not None:
                known.loss = step.loss
            if not sampled:
                signs.took(self._guarded.seconds, time.perf_counter() - now)
        else:
            signs.unrecorded = record
        if self._stacks.kept:
            self._stacks.end()
        if known is not None:
            known.backwards = max(1, current.backwards)
        current.begin(None if known is None else known.held)
        if self._sentinel is not None:
            self._sentinel.step_ended()
        if sampled:
            self._sampling.step_ended(optimizer, self._optimizers)
        else:
            self._sampling.free_graphs()
        # What has been done here since the step ended belongs to it, and is not counted again.
        ended = time.perf_counter()
        own = self._guarded.seconds + ended - now
        self.interval.ended(ended - self._last, watched=sampled, own=own)
        self._guarded.seconds, self._last = now - ended, ended
        signs.step_ended(self.step)
        # After a look its graph is let go of; several processes do the same at the same steps; and
        # where nothing makes steps but backwards, each is looked into.
        several = self._placements is not None
        every = sampled or several or known is None
        self._due = 0 if every else signs.next_due(self.step)
        self._arm()

    def _scaler_step_begins(self, optimizer: Optimizer) -> None:
        self._scaler_steps.append(self.step)

    def _scaler_step_ended(self, optimizer: Optimizer) -> None:
        """A scaler has left the step out, if none was made."""
        if self._scaler_steps and self._scaler_steps.pop() == self.step:
            known = self._known(optimizer)
            self.event(
                "skipped-step",
                "the gradient scaler skipped a step: a scaled gradient was not finite",
                optimizer=known.name,
                loss_scale=self._current.scale,
            )
            self._current.skip()
            if self._sentinel is not None:
                self._sentinel.step_ended()

    # ---------------------------------------------------------------- what is not finite

    def _locate(self) -> None:
        """Where what is not finite came from, while the weights are still those of the forward."""
        current, sampler = self._current, self._sampling.sampler
        if current.nonfinite is None:
            return
        self._stopping = self._stop_on_nan
        if self._sentinel is None or self._located or self._deep.watch is not None:
            # What comes later inherits it; and where every operation is watched, that tells more.
            return
        self._located = True
        where = "loss" if current.in_loss else "gradients"
        with nullcontext() if sampler is None else sampler.paused():
            seen = None if sampler is None else sampler.calls
            self._on_located(self.step + 1, self._sentinel.locate(where=where, seen=seen))
        kind = "NaN" if current.nonfinite == "nan" else "an infinity"
        self.event("non-finite", f"{kind} in the {where}")
