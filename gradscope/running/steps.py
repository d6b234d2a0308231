"""The steps themselves: seed, forward, loss, backward, optimizer; each under a recorder."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import Call
from gradscope.capture.containers import call_tensors, map_tensors
from gradscope.capture.hooks import select_layers
from gradscope.capture.parameters import parameter_stats, statistics, total_norm, update_ratios
from gradscope.capture.recorder import Recorder
from gradscope.capture.saved import counting_saved
from gradscope.errors import ConfigError
from gradscope.loading import Batch, Workload, seed_everything
from gradscope.records import (
    ModuleCall,
    ParameterStats,
    Seconds,
    StepParameter,
    StepRecord,
    TensorRecord,
    Verification,
)
from gradscope.running.state import gradients_kept, kept_as_found
from gradscope.running.verification import Gradients, Verifier


@dataclass(frozen=True, slots=True)
class Plan:
    """How to look: which layers, which chains, and whether to prove that looking is harmless."""

    layers: tuple[str, ...] = ("**",)
    chain: tuple[str, ...] = ()
    verify: bool = False
    restore: bool = True  # the weights too, which is for models that somebody goes on to use


@dataclass(slots=True)
class Outcome:
    """What a run left, complete or not: ``failure`` says what stopped it, and ``phase`` where."""

    calls: tuple[ModuleCall, ...] = ()
    parameters: tuple[ParameterStats, ...] = ()
    history: list[StepRecord] = field(default_factory=list)
    loss: float | None = None
    loss_nonfinite: str | None = None
    gradient_norm: float | None = None
    phase: str = "input"
    seconds: Seconds = field(default_factory=Seconds)
    recorder: Recorder | None = None
    verified: Verification | None = None
    optimizer: str | None = None
    notices: list[str] = field(default_factory=list)
    failure: BaseException | None = None

    def executing(self) -> list[Call]:
        """The calls that had not returned when the run stopped, outermost first."""
        return self.recorder.executing() if self.recorder and self.phase == "forward" else []


def run(workload: Workload, plan: Plan) -> Outcome:
    """Run the steps and record the last one that began.

    An exception, of the user's code or Ctrl-C, ends the run and is found in ``failure``: what was
    recorded until then is in the outcome all the same.

    Raises:
        LayerError: a layer pattern that matches nothing.
    """
    model = workload.model
    selected = select_layers(model, plan.layers)
    chained = select_layers(model, plan.chain) if plan.chain else {}
    outcome = Outcome()
    with contextlib.ExitStack() as kept:
        kept.enter_context(kept_as_found(model, weights=plan.restore))
        kept.enter_context(_eager(model))
        kept.enter_context(_deeper())
        loss = workload.criterion.spec
        if isinstance(loss, nn.Module):
            kept.enter_context(kept_as_found(loss, weights=plan.restore))
        try:
            _Runner(workload, plan, outcome, selected, chained).run()
        except BaseException as failure:
            outcome.failure = failure
        if outcome.recorder:
            outcome.calls = outcome.recorder.calls()
        if not outcome.parameters:
            outcome.parameters = parameter_stats(model)
        norms = [p.gradient.norm for p in outcome.parameters if p.gradient]
        outcome.gradient_norm = total_norm(norms)
        owned = {
            f"{named.name}.{name}".lstrip(".")
            for module, named in selected.items()
            for name, _ in module.named_parameters(recurse=False)
        }
        outcome.parameters = tuple(p for p in outcome.parameters if {p.name, *p.aliases} & owned)
    return outcome


class _Runner:
    """The loop over steps, filling an outcome as it goes."""

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        outcome: Outcome,
        selected: dict[nn.Module, Any],
        chained: dict[nn.Module, Any],
    ) -> None:
        self.workload = workload
        self.plan = plan
        self.outcome = outcome
        self.selected = selected
        self.chained = chained
        self.optimizer: torch.optim.Optimizer | None = None

    def run(self) -> None:
        workload, outcome = self.workload, self.outcome
        if workload.make_optimizer:
            self.optimizer = workload.make_optimizer(workload.model)
            outcome.optimizer = type(self.optimizer).__name__
        batches = workload.batches()
        batch: Batch | None = None
        for step in range(workload.steps):
            outcome.phase = "input"
            batch = next(batches, batch)
            if batch is None:
                raise ConfigError("the input gives no batch at all", help="yield one or more")
            verifier = self._verifier(batch) if self.plan.verify and step == 0 else None
            self._step(step, batch, verifier)
        if batch and outcome.recorder and outcome.recorder.needs_counting_run:
            self._count_saved(batch, outcome.recorder)

    def _step(self, step: int, batch: Batch, verifier: Verifier | None) -> None:
        workload, outcome = self.workload, self.outcome
        for parameter in workload.model.parameters():
            parameter.grad = None
        args, kwargs, target = _fresh(batch)
        recorder = outcome.recorder = Recorder(
            workload.model, self.selected, accumulate=workload.repeats > 1, chained=self.chained
        )
        inputs = {name: t for name, t in call_tensors(args, kwargs) if t.requires_grad}
        names = {id(t): _input_name(name, len(args)) for name, t in inputs.items()}
        with contextlib.ExitStack() as watching:
            watching.enter_context(recorder.installed())
            loss = self._forward(args, kwargs, target)
            recorder.connect([loss], names)
            watching.enter_context(gradients_kept(recorder.leaves))
            activations = statistics(inputs)
            for repeat in range(workload.repeats):
                self._backward(loss)
                if workload.steps * workload.repeats > 1:
                    outcome.history.append(self._history(step, repeat, inputs, activations))
        if verifier:
            outcome.verified = verifier.compare(self._gradients(args, kwargs))
        del loss
        outcome.parameters = parameter_stats(workload.model, held=self._held())
        if self.optimizer:
            self._move(batch)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> torch.Tensor:
        outcome = self.outcome
        outcome.phase = "forward"
        seed_everything(self.workload.seed)
        began = self._clock()
        try:
            with self._autocast():
                output = self.workload.model(*args, **kwargs)
                outcome.phase = "loss"
                loss = self.workload.criterion(output, target)
        finally:
            seconds = outcome.seconds
            outcome.seconds = replace(seconds, forward=seconds.forward + self._clock() - began)
        outcome.loss, outcome.loss_nonfinite = _loss_value(loss)
        return loss

    def _backward(self, loss: torch.Tensor) -> None:
        outcome = self.outcome
        outcome.phase = "backward"
        began = self._clock()
        try:
            _backward(loss, self.workload)
        finally:
            seconds = outcome.seconds
            outcome.seconds = replace(seconds, backward=seconds.backward + self._clock() - began)

    def _move(self, batch: Batch) -> None:
        assert self.optimizer is not None
        outcome = self.outcome
        outcome.phase = "step"
        before = {p: p.detach().clone() for p in self._held() or ()}
        self._optimizer_step(batch)
        ratios = update_ratios(self.workload.model, before)
        outcome.parameters = tuple(
            replace(p, update_ratio=ratios.get(p.name)) for p in outcome.parameters
        )
        if outcome.history:
            last = outcome.history[-1]
            moved = tuple(replace(p, update_ratio=ratios.get(p.name)) for p in last.parameters)
            outcome.history[-1] = replace(last, parameters=moved)

    def _optimizer_step(self, batch: Batch) -> None:
        """One step; an optimizer that evaluates the loss itself (LBFGS) is given a closure."""
        assert self.optimizer is not None

        def closure() -> torch.Tensor:
            args, kwargs, target = _fresh(batch)
            for parameter in self.workload.model.parameters():
                parameter.grad = None
            with torch.enable_grad():
                loss = self._loss(args, kwargs, target)
                _backward(loss, self.workload)
            return loss.detach()

        wanted = inspect.signature(self.optimizer.step).parameters.get("closure")
        if wanted is not None and wanted.default is inspect.Parameter.empty:
            self.optimizer.step(closure)  # type: ignore[arg-type]  # LBFGS takes a tensor too
        else:
            self.optimizer.step()

    def _loss(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> torch.Tensor:
        """Forward and loss as they are, seeded, with nobody watching."""
        seed_everything(self.workload.seed)
        with self._autocast():
            return self.workload.criterion(self.workload.model(*args, **kwargs), target)

    def _held(self) -> set[nn.Parameter] | None:
        if self.optimizer is None:
            return None
        return {p for group in self.optimizer.param_groups for p in group["params"]}

    def _history(
        self,
        step: int,
        repeat: int,
        inputs: Mapping[str, torch.Tensor],
        activations: Mapping[str, Any],
    ) -> StepRecord:
        named = list(self.workload.model.named_parameters())
        measured = statistics({name: p.grad for name, p in named})
        arrived = statistics({name: t.grad for name, t in inputs.items()})
        norms = {name: None if stats is None else stats.norm for name, stats in measured.items()}
        return StepRecord(
            step=step,
            backward=repeat,
            loss=self.outcome.loss,
            loss_nonfinite=self.outcome.loss_nonfinite,
            gradient_norm=total_norm(list(norms.values())),
            inputs=tuple(
                TensorRecord(name, activations[name], arrived[name], None, True) for name in inputs
            ),
            parameters=tuple(StepParameter(name, norm) for name, norm in norms.items()),
        )

    # ---------------------------------------------------------------- runs beside the observed one

    def _plain(self, batch: Batch, *, backward: bool) -> Gradients:
        """The same step with nobody watching; the model is left as it was before."""
        args, kwargs, target = _fresh(batch)
        with kept_as_found(self.workload.model, weights=False):
            loss = self._loss(args, kwargs, target)
            if not backward:
                return []
            for _ in range(self.workload.repeats):
                _backward(loss, self.workload)
            return self._gradients(args, kwargs)

    def _gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Gradients:
        tensors = [*self.workload.model.parameters(), *(t for _, t in call_tensors(args, kwargs))]
        return [t.grad for t in tensors if t.is_leaf]

    def _verifier(self, batch: Batch) -> Verifier | None:
        try:
            return Verifier(lambda: self._plain(batch, backward=True))
        except Exception:
            # The observed step that follows raises the same, and names the layer.
            return None

    def _count_saved(self, batch: Batch, recorder: Recorder) -> None:
        try:
            with counting_saved(self.workload.model) as saved:
                self._plain(batch, backward=False)
        except Exception as error:
            # `torch.func` forbids hooks on saved tensors, for one: the report goes without.
            first = (str(error) or type(error).__name__).splitlines()[0]
            self.outcome.notices.append(f"saved bytes: not counted: {first}")
        else:
            recorder.set_saved(saved)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.workload.autocast is None:
            return nullcontext()
        return torch.autocast(self.workload.device.type, dtype=self.workload.autocast)

    def _clock(self) -> float:
        if self.workload.device.type == "cuda":
            torch.cuda.synchronize(self.workload.device)
        return time.perf_counter()


@contextlib.contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    """Compiled modules run as they were written: a hook in a compiled graph would be traced."""
    in_place = {m: m._compiled_call_impl for m in model.modules() if m._compiled_call_impl}
    # By name: to import dynamo for its class would cost a second.
    wrappers = [m for m in model.modules() if type(m).__name__ == "OptimizedModule"]
    forwards = {wrapper: wrapper.__dict__.get("forward") for wrapper in wrappers}
    for module in in_place:
        module._compiled_call_impl = None
    for wrapper in wrappers:
        wrapper.__dict__["forward"] = wrapper._orig_mod
    try:
        yield
    finally:
        for module, call in in_place.items():
            module._compiled_call_impl = call
        for wrapper, forward in forwards.items():
            wrapper.__dict__["forward"] = forward


@contextlib.contextmanager
def _deeper() -> Iterator[None]:
    """Room for the frame that a hook adds to each level of a deeply nested model."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + limit // 2)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _fresh(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """The batch on tensors of its own: what is written into inputs or target stays in the run."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    args, kwargs, target = map_tensors(copy, (batch.args, batch.kwargs, batch.target))
    return args, kwargs, target


def _input_name(path: str, positional: int) -> str:
    """A keyword argument by its name; ``input``, numbered where there are several, for the rest."""
    if not path.split(".")[0].isdigit():
        return path
    return f"input {path}" if positional > 1 else "input"


def _backward(loss: torch.Tensor, workload: Workload) -> None:
    """One backward, with the external gradient in the loss's own dtype, device and shape."""
    gradient = workload.gradient
    if gradient is not None:
        gradient = torch.as_tensor(gradient, dtype=loss.dtype, device=loss.device)
        gradient = gradient.expand_as(loss) if gradient.dim() == 0 else gradient
    loss.backward(gradient, retain_graph=workload.retain_graph)  # type: ignore[no-untyped-call]


def _loss_value(loss: torch.Tensor) -> tuple[float | None, str | None]:
    if loss.numel() != 1 or loss.is_complex() or loss.device.type == "meta":
        return None, None
    value = float(loss.detach().item())
    if math.isfinite(value):
        return value, None
    return None, "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
