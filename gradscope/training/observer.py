"""Sees the steps of a training that somebody else runs, and hands their records on.

A step ends with ``optimizer.step()``; in a script that makes no optimizer it ends with each
backward. Between two steps stand the forwards and backwards of the second.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.capture.hooks import OwnHook, hook_calls
from gradscope.capture.recompute import in_backward
from gradscope.capture.signals import raised_by_a_handler
from gradscope.explain.non_finite.steps import StepWatch
from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.ranks import UNUSED
from gradscope.records.training import TrainingEvent, TrainingStep
from gradscope.training.cadence import Cadence
from gradscope.training.current_step import CurrentStep, LossScales, loss_of
from gradscope.training.discovery import optimizers_of
from gradscope.training.gradients import GradientReader, are_finite, small
from gradscope.training.interval import Interval
from gradscope.training.launch import Script
from gradscope.training.models import Model, Models
from gradscope.training.node_stacks import NodeStacks
from gradscope.training.optimizers import SeenOptimizer, settings
from gradscope.training.patches import Root, listen, listen_to_stages
from gradscope.training.placements import Placements
from gradscope.training.replicas import batch_size, several_processes
from gradscope.training.sampling import Sampling
from gradscope.training.sentinel.sentinel import Sentinel
from gradscope.training.stages import stages_imported
from gradscope.training.unused import unused_parameters


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
        # Half the budget is for the vital signs: to read all gradients, and to record a step.
        self.readings, self.records = Cadence(interval, 1 / 4), Cadence(interval, 1 / 4)
        self._reader = GradientReader(self.readings)
        #: Steps that other threads made than the one that is observed.
        self.elsewhere = 0
        self._thread: int | None = None
        #: The last step, where it was not due to be recorded.
        self.unrecorded: TrainingStep | None = None
        self._write, self._on_located, self._failed = write, located, failed
        self._stop_on_nan, self._stopping = stop_on_nan, False
        self._deep_steps = deep
        self._deep: StepWatch | None = None
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, SeenOptimizer] = (
            weakref.WeakKeyDictionary()
        )
        self._any_optimizer = False
        self._sentinel = Sentinel(self._trained) if sentinel else None
        self._patches: ExitStack | None = None
        self._roots: list[OwnHook] = []
        self._sampling = Sampling(layers, self._guarded)
        self._stacks = NodeStacks()
        self._scales = LossScales()
        self._placements = Placements() if processes > 1 else None
        self._current = CurrentStep(placements=self._placements)
        self._scaler_steps: list[int] = []
        self._located = False
        self._in_stages = self._listens_to_stages = self._is_aside = False
        self._began = self._last = time.perf_counter()
        self._own = 0.0
        self._inside = False

    # ---------------------------------------------------------------- the life of the observer

    def start(self) -> None:
        """Listen from now on."""
        self._patches = listen(self)

    def watch(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Look at these models and no others, from the first step on.

        Without optimizers, those count that hold a parameter of the models.
        """
        self.models.only(models)
        for optimizer in optimizers or optimizers_of(models):
            self._any_optimizer = True
            self._optimizers[optimizer] = SeenOptimizer()
        self._guarded(self._search)

    def stop(self) -> None:
        """Take everything away that was set."""
        if self._deep is not None:
            self._deep.remove()
            self._deep = None
        self._stacks.end()
        self._sampling.end()
        if self._sentinel is not None:
            self._sentinel.close()
        for handle in self._roots:
            handle.remove()
        self._roots.clear()
        if self._patches is not None:
            self._patches.close()
            self._patches = None

    @property
    def device(self) -> str | None:
        """Where the first model was that was looked at."""
        return self._sampling.device

    @property
    def time(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    def script_failed(self, error: BaseException) -> None:
        """The script raises this, and its models are still there."""
        self._guarded(self._script_failed, error)

    def _script_failed(self, error: BaseException) -> None:
        details = unused_parameters(error, self.models)
        if details is not None:
            message = "parameters got no gradient, and DistributedDataParallel gave up"
            # It says so in the forward after.
            self._write(TrainingEvent(max(self.step, 1), self.time, UNUSED, message, details))

    def event(self, kind: str, message: str, **details: Any) -> None:
        """Something that happened once, at the step that is going on."""
        self._write(TrainingEvent(self.step + 1, self.time, kind, message, details))

    # ---------------------------------------------------------------- what PyTorch tells

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """A model was made by now, and no step yet."""
        self._guarded(self._optimizer_made, optimizer)

    def backward_begins(self, roots: Sequence[Root], gradients: Sequence[torch.Tensor]) -> bool:
        """A loss is there, with its graph."""
        if self._is_elsewhere():
            return False
        to_the_end = self._guarded(self._backward_begins, roots, gradients)
        self._end_script()
        return bool(to_the_end)

    def backward_ended(self) -> None:
        """Gradients are there, as backward left them."""
        self._guarded(self._backward_ended)

    def step_begins(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Gradients are there, as the optimizer gets them; with a closure they come later."""
        if self._is_elsewhere():
            return None
        given = self._guarded(self._step_begins, optimizer, args, kwargs)
        self._end_script()
        return given

    def step_ended(self, optimizer: Optimizer) -> None:
        """The weights have moved."""
        if self._is_elsewhere():
            self.elsewhere += 1
            return
        self._guarded(self._step_ended, optimizer)

    def scaled(self, loss: object, scale: torch.Tensor) -> None:
        """A gradient scaler made this loss of another."""
        self._scales.add(loss, scale)

    def scaler_step(self, optimizer: Optimizer, *, ended: bool) -> None:
        """Whether a scaler left a step out."""
        self._guarded(self._scaler_step, optimizer, ended)

    def divided(self) -> None:
        """Gradients are there once more, as the schedule of a pipeline leaves them."""
        self._guarded(self._gradients_left)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is called in the block is no part of the training."""
        sampler = self._sampling.sampler
        with nullcontext() if sampler is None else sampler.paused():
            self._is_aside = True
            try:
                yield
            finally:
                self._is_aside = False

    def compiled(self, what: object) -> None:
        """No hook is set from now on where the compiler would trace it."""
        self._guarded(self._compiled, what)

    def _is_elsewhere(self, *, trains: bool = True) -> bool:
        """Whether another thread trains than this one.

        What several threads do at a time would be taken for one step. The first that ``trains`` is
        observed for as long as it lives.
        """
        here = threading.get_ident()
        if here == self._thread or not (trains or self._thread):
            return False
        if any(thread.ident == self._thread for thread in threading.enumerate()):
            return True
        self._thread = here
        return False

    def end_script(self) -> None:
        """Have the script end at its next backward or step."""
        self._stopping = True

    def _end_script(self) -> None:
        """Where it was asked for: not an ``Exception``, which a script may well catch."""
        if self._stopping:
            self._stopping = False
            raise SystemExit(1)

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a part of the observer; its errors are never the script's."""
        if self._patches is None or self._inside:  # stopped, or what we run ourselves
            return None
        began = time.perf_counter()
        self._inside = True
        try:
            if self._deep is None:
                return function(*args)
            with self._deep.ignoring():
                return function(*args)
        except Exception as error:
            if raised_by_a_handler(error):
                raise
            self.stop()
            self._failed(error)
            return None
        finally:
            self._inside = False
            self._own += time.perf_counter() - began

    # ---------------------------------------------------------------- models

    def _optimizer_made(self, optimizer: Optimizer) -> None:
        self._any_optimizer = True
        self._optimizers[optimizer] = SeenOptimizer()
        self._search()

    def _search(self) -> None:
        imported = stages_imported()
        if imported is not None and self._patches is not None and not self._listens_to_stages:
            self._listens_to_stages = True
            listen_to_stages(self._patches, self, imported)
        if self.models.search():
            self._watch_roots()
            self._sampling.end()
            self._arm()

    def _settle(self) -> None:
        """Forward has come to all models: a stage of a pipeline is known by what runs it."""
        self._in_stages = self.models.settle() or self._in_stages

    def _compiled(self, what: object) -> None:
        # `module.compile()` compiles a method of it.
        if not isinstance(getattr(what, "__self__", what), nn.Module):
            self.models.traced = True
        self._sampling.end()
        for handle in self._roots:
            handle.remove()
        self._roots.clear()
        self.models.forget_hooks()

    def _watch_roots(self) -> None:
        """The two hooks on each outermost model that stay: what its calls take and give."""
        if self._sentinel is None and not several_processes():
            return
        for handle in self._roots:
            handle.remove()
        self._roots.clear()
        for model in self.models:
            outer = model.outer()
            if outer is None or self.models.traced or outer._compiled_call_impl is not None:
                continue
            before, after = partial(self._call_begins, model), partial(self._call_ended, model)
            self._roots += hook_calls(outer, before, after)

    def _call_begins(
        self, model: Model, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not self._is_seen():
            return
        if several_processes():
            self._guarded(self._called, model, args, kwargs)
        if self._sentinel is not None:
            if self._stacks.kept:
                self._guarded(self._stacks.end)
            self._guarded(self._sentinel.call_began, model.name, model.module, args, kwargs)

    def _called(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What of a call other processes' calls are held against."""
        size = batch_size(args, kwargs)
        if size is not None:
            self._current.add_batch(size)
        if self._sampling.sampler is not None and not in_backward():
            self._sampling.sampler.called(model, args, kwargs)

    def _call_ended(
        self, model: Model, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        if self._sentinel is not None and self._is_seen():
            self._guarded(self._sentinel.call_ended, model.name, model.module, output)
            # Between the model and the backward only: it takes time.
            if self._sampling.sampler is not None and not in_backward():
                self._guarded(self._stacks.begin)

    def _is_seen(self) -> bool:
        """Whether a call belongs to the training that is observed, and is of plain tensors."""
        return (
            torch.is_grad_enabled()
            and not self._is_aside
            and not torch._C._are_functorch_transforms_active()
            and not self._is_elsewhere(trains=False)
        )

    def _trained(self) -> list[tuple[str, nn.Module]]:
        return [(model.name, model.module) for model in self.models]

    # ---------------------------------------------------------------- a step

    def _arm(self) -> None:
        """Before a step begins: look at it, or not."""
        if self.models.stale and self.models.search():
            self._watch_roots()
        if self._deep_steps is not None:
            self._watch_operations(*self._deep_steps)
        looked_at = self._sampling.sampler is not None
        if not looked_at and (self._deep is not None or self.interval.wants()):
            models = list(self.models)
            for model in models:
                self.models.name(model)
            self._sampling.begin(models)

    def _watch_operations(self, first: int, last: int) -> None:
        upcoming = self.step + 1
        if self._deep is None and first <= upcoming <= last:
            models = {self.models.name(model): model.module for model in self.models}
            if models:
                self._deep = StepWatch(models, Script.run.__code__)
        elif self._deep is not None and upcoming > last:
            self._deep.remove()
            self._deep = None

    def _backward_begins(self, begun: Sequence[Root], gradients: Sequence[torch.Tensor]) -> bool:
        roots = [root for root in begun if isinstance(root, torch.Tensor)]
        self._settle()
        if not self._any_optimizer and not self.step and not list(self.models):
            self._search()
        if self._deep is not None:
            self._deep.backward_begins(roots)
        current = self._current
        loss = loss_of(roots)
        current.add_loss(loss, self._scales.of(roots))
        if current.ready is None:
            current.ready = time.perf_counter()
        if self._sentinel is not None and roots:
            current.loss_is(self._sentinel.backward_begins(roots, gradients, loss))
        sampler = self._sampling.sampler
        if sampler is not None and begun:
            if self._stacks.end() and self._sentinel is not None and roots:
                self._sentinel.sampled_lines(roots)
            sampler.backward_begins(begun)
        return (
            sampler is not None
            or self._deep is not None
            or not self._any_optimizer
            or self._is_last_read()
        )

    def _is_last_read(self) -> bool:
        """Whether all gradients are read in this step, and no backward is to come before that.

        Before the last of several nobody asks what has arrived: as many as the steps before had.
        """
        if not self._is_read():
            return False
        optimizers = self._optimizers.values()
        return self._current.backwards >= min([o.backwards for o in optimizers], default=1)

    def _is_read(self) -> bool:
        """Whether all gradients are read in the step that is going on."""
        return self.records.due(self.step) and self.readings.due(self.step)

    def _backward_ended(self) -> None:
        current = self._current
        if self._deep is not None:
            self._deep.backward_ended()
        if not self._gradients_left() and not (
            self._any_optimizer or self._are_finite(small(self._parameters()))
        ):
            current.read(self._reader, self._parameters())
        if not self._any_optimizer:
            current.measure_all()
            self._locate()
            self._finish(None, None)

    def _gradients_left(self) -> bool:
        """Read the gradients, where they are in this step, before anybody clips them."""
        sampler = self._sampling.sampler
        if sampler is None and not self._is_last_read():
            return False
        self._current.read(self._reader, self._parameters())
        if sampler is not None:
            sampler.backward_ended()
        return True

    def _are_finite(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Without a sentinel nobody asks."""
        return self._sentinel is None or are_finite(parameters)

    def _parameters(self) -> list[nn.Parameter]:
        """All that may have got a gradient: of the optimizers, or of the models."""
        held = [p for known in self._optimizers.values() for p in known.held]
        if not held:
            held = [p for model in self.models for p in model.module.parameters()]
        return list(dict.fromkeys(held))

    def _step_begins(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = self._known(optimizer)
        place = 1 if len(args) > 1 else "closure"
        if self._sampling.sampler is not None:
            known.settings = settings(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._gradients_ready(known)
            return None

        def watched(*given: Any, **named: Any) -> Any:
            result = closure(*given, **named)
            self._guarded(self._gradients_ready, known)
            return result

        if place == 1:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def _known(self, optimizer: Optimizer) -> SeenOptimizer:
        known = self._optimizers.get(optimizer)
        if known is None:
            known = self._optimizers[optimizer] = SeenOptimizer()
        if known.look(optimizer):
            mine = {p for model in self.models for p in model.module.parameters()}
            if not known.held <= mine:
                self._search()
        return known

    def _gradients_ready(self, known: SeenOptimizer) -> None:
        """Before the optimizer moves the weights."""
        self._settle()
        current, sampler = self._current, self._sampling.sampler
        whole = sampler is not None or current.nonfinite is not None
        if not (whole or self._is_read()) and self._are_finite(known.small):
            return
        there = [p for p in known.held if p.grad is not None]
        if not current.is_read:  # a backward more than expected: read late
            current.read(self._reader, self._parameters())
        current.measure(there, self._reader, known.name)
        self._locate()
        if sampler is not None:
            sampler.before_update(known.held, self.step + 1)
        if self._deep is not None:
            self._deep.step_begins()

    def _step_ended(self, optimizer: Optimizer) -> None:
        known = self._optimizers.get(optimizer) or self._known(optimizer)
        known.steps += 1
        if self._deep is not None:
            origins = self._deep.step_ended()
            if origins and not self._located:
                self._located = True
                self._on_located(self.step + 1, origins)
        self._finish(optimizer, known)

    def _finish(self, optimizer: Optimizer | None, known: SeenOptimizer | None) -> None:
        """A step has ended: its records, and what is kept of it let go."""
        current, now = self._current, time.perf_counter()
        self.step += 1
        sampled = self._sampling.sampler is not None
        step = current.record(
            optimizer,
            known,
            step=self.step,
            optimizer_step=self.step if known is None else known.steps,
            time=now - self._began,
            seconds=now - self._last,
            sampled=sampled,
            own_seconds=self._own_seconds(),
            batch=current.batch,
        )
        if self._placements is not None:
            self._write(*self._placements.records(self.models))
        if sampled or self._is_recorded(known):
            began = time.perf_counter()
            self._write(*self._sampling.records(step, known, self._optimizers), step)
            self.unrecorded = None
            if known is not None:
                known.loss = step.loss
            if not sampled:
                self.records.took(time.perf_counter() - began)
        else:
            self.unrecorded = step
        self._stacks.end()
        if known is not None:
            known.backwards = max(1, current.backwards)
        current.begin(None if known is None else known.held)
        if self._sentinel is not None:
            self._sentinel.step_ended()
        self.interval.ended(now - self._last, watched=sampled, own=self._own)
        self.readings.ended(self.step)
        self.records.ended(self.step)
        self._own = 0.0
        self._sampling.step_ended(optimizer, self._optimizers)
        self._arm()
        self._last = time.perf_counter()

    def _own_seconds(self) -> float | None:
        """How long the step took until it first had to wait for other processes."""
        ready = self._current.ready
        if ready is None or self._in_stages or not several_processes():
            return None
        return max(0.0, ready - self._last)

    def _is_recorded(self, known: SeenOptimizer | None) -> bool:
        """Whether the vital signs of the step that has ended are kept: all that stand out are."""
        current = self._current
        if current.nonfinite is not None or self.records.due(self.step - 1):
            return True
        before, now = None if known is None else known.loss, current.losses
        return bool(now) and before is not None and _differ(before, now[-1])

    def _scaler_step(self, optimizer: Optimizer, ended: bool) -> None:
        if not ended:
            self._scaler_steps.append(self.step)
        elif self._scaler_steps and self._scaler_steps.pop() == self.step:
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
        if self._sentinel is None or self._located or self._deep is not None:
            # What comes later inherits it; and where every operation is watched, that tells more.
            return
        self._located = True
        where = "loss" if current.in_loss else "gradients"
        with nullcontext() if sampler is None else sampler.paused():
            seen = None if sampler is None else sampler.calls
            self._on_located(self.step + 1, self._sentinel.locate(where=where, seen=seen))
        kind = "NaN" if current.nonfinite == "nan" else "an infinity"
        self.event("non-finite", f"{kind} in the {where}")


def _differ(before: float, now: float | None) -> bool:
    """Whether a loss is another by more than half."""
    return now is None or abs(now - before) > 0.5 * abs(before)
