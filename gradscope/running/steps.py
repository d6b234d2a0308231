"""The steps themselves: seed, forward, loss, backward, optimizer; each under a recorder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gradscope.capture.calls import Call, call_tensors
from gradscope.capture.facts import Buffers, module_facts
from gradscope.capture.hooks import select_layers
from gradscope.capture.parameters import parameter_stats, statistics, total_norm, updates
from gradscope.capture.recorder import Recorder
from gradscope.capture.saved import keeps_scores
from gradscope.capture.stats import Measured, measure, resolve
from gradscope.errors import ConfigError
from gradscope.loading import Batch, Workload, seed_everything
from gradscope.records.modules import ModuleCall, ModuleFacts, ParameterStats
from gradscope.records.run import Seconds, StepParameter, StepRecord, Verification
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.running.plain import (
    autocast,
    backward,
    count_saved,
    fresh,
    gradients,
    plain_step,
    take_step,
)
from gradscope.running.state import (
    deeper_recursion,
    gradients_kept,
    kept_as_found,
    run_eagerly,
)
from gradscope.running.stopwatch import Stopwatch
from gradscope.running.verification import Verifier

_SCORES = (
    "saved bytes: meta has no fused attention, so the scores are among them; a processor or a GPU "
    "that has it keeps less"
)


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
    all_parameters: tuple[ParameterStats, ...] = ()  # of the whole model, whatever is selected
    modules: tuple[ModuleFacts, ...] = ()
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
        kept.enter_context(run_eagerly())
        kept.enter_context(deeper_recursion())
        loss = workload.criterion.spec
        if isinstance(loss, nn.Module):
            kept.enter_context(kept_as_found(loss, weights=plan.restore))
        runner = _Runner(workload, plan, outcome, selected, chained)
        try:
            runner.run()
        except BaseException as failure:
            outcome.failure = failure
        try:
            runner.finish()
        except RuntimeError as failure:
            if workload.device.type == "cpu":
                raise
            # What went wrong on a device shows when it is read, and it may answer nothing more.
            outcome.failure = outcome.failure or failure
        norms = [p.gradient.norm for p in outcome.parameters if p.gradient]
        outcome.gradient_norm = total_norm(norms)
        outcome.all_parameters = outcome.parameters
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
        self.forward, self.backward = Stopwatch(workload.device), Stopwatch(workload.device)
        self.buffers: Buffers | None = None
        self.loss: Measured | None = None

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
        args, kwargs, target = fresh(batch)
        recorder = outcome.recorder = Recorder(
            workload.model, self.selected, accumulate=workload.repeats > 1, chained=self.chained
        )
        inputs = {name: t for name, t in call_tensors(args, kwargs) if t.requires_grad}
        names = {id(t): input_name(name, len(args)) for name, t in inputs.items()}
        with contextlib.ExitStack() as watching:
            watching.enter_context(recorder.installed())
            loss = self._forward(args, kwargs, target)
            recorder.connect([loss], names)
            if workload.device.type == "meta" and keeps_scores(loss):
                outcome.notices.append(_SCORES)
            watching.enter_context(gradients_kept(recorder.leaves))
            activations = statistics(inputs)
            for repeat in range(workload.repeats):
                self._backward(loss)
                if workload.steps * workload.repeats > 1:
                    outcome.history.append(self._history(step, repeat, inputs, activations))
        if verifier:
            outcome.verified = verifier.compare(gradients(workload, args, kwargs))
        del loss
        recorder.let_go()
        outcome.parameters = parameter_stats(workload.model, shown=self.selected, held=self._held())
        self.read()
        if self.optimizer:
            self._move(batch)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any) -> torch.Tensor:
        outcome = self.outcome
        outcome.phase = "forward"
        model = self.workload.model
        self.loss, self.buffers = None, Buffers(model)
        seed_everything(self.workload.seed)
        try:
            with self.forward, autocast(self.workload):
                output = model(*args, **kwargs)
                outcome.phase = "loss"
                loss = self.workload.criterion(output, target)
        finally:
            self.buffers.compare()
            counts = outcome.recorder.counts if outcome.recorder else {}
            outcome.modules = module_facts(model, counts)
        self.loss = measured_loss(loss)
        return loss

    def _backward(self, loss: torch.Tensor) -> None:
        self.outcome.phase = "backward"
        with self.backward:
            backward(loss, self.workload)

    def finish(self) -> None:
        """Complete the outcome, whether or not the steps came to their end."""
        outcome = self.outcome
        if outcome.failure:
            self.read()
        if outcome.recorder:
            outcome.calls = outcome.recorder.calls()
        if not outcome.parameters:
            outcome.parameters = parameter_stats(self.workload.model, shown=self.selected)

    def read(self) -> None:
        """What the step left on its device besides gradients, all of it at once."""
        outcome = self.outcome
        if self.loss is not None:
            loss = resolve([self.loss])[id(self.loss)]
            outcome.loss, outcome.loss_nonfinite = loss_value(loss)
        if self.buffers is not None:
            outcome.modules = self.buffers.entered(outcome.modules)
        outcome.seconds = Seconds(self.forward.seconds, self.backward.seconds)

    def _move(self, batch: Batch) -> None:
        assert self.optimizer is not None
        outcome = self.outcome
        outcome.phase = "step"
        before = {p: p.detach().clone() for p in self._held() or ()}
        take_step(self.optimizer, self.workload, batch)
        found = updates(self.workload.model, before)
        nothing = (None, None)
        outcome.parameters = tuple(
            replace(p, update_ratio=ratio, moved=moved)
            for p in outcome.parameters
            for ratio, moved in [found.get(p.name, nothing)]
        )
        if outcome.history:
            last = outcome.history[-1]
            then = tuple(
                replace(p, update_ratio=found.get(p.name, nothing)[0]) for p in last.parameters
            )
            outcome.history[-1] = replace(last, parameters=then)

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
        self.read()
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

    def _verifier(self, batch: Batch) -> Verifier | None:
        try:
            return Verifier(lambda: plain_step(self.workload, batch))
        except Exception:
            # The observed step that follows raises the same, and names the layer.
            return None

    def _count_saved(self, batch: Batch, recorder: Recorder) -> None:
        try:
            recorder.set_saved(count_saved(self.workload, batch))
        except Exception as error:
            # `torch.func` forbids hooks on saved tensors, for one: the report goes without.
            first = (str(error) or type(error).__name__).splitlines()[0]
            self.outcome.notices.append(f"saved bytes: not counted: {first}")


def input_name(path: str, positional: int) -> str:
    """A keyword argument by its name; ``input``, numbered where there are several, for the rest."""
    if not path.split(".")[0].isdigit():
        return path
    return f"input {path}" if positional > 1 else "input"


def measured_loss(loss: torch.Tensor) -> Measured:
    """The loss for ``resolve`` to read with the rest."""
    plain = type(loss) is torch.Tensor and loss.layout == torch.strided
    if plain or loss.numel() != 1 or loss.is_complex() or loss.device.type == "meta":
        return measure(loss)
    # A subclass may hide what it wraps from all but `item`.
    return measure(torch.tensor(float(loss.detach().item()), dtype=torch.float64))


def loss_value(loss: TensorStats) -> tuple[float | None, str | None]:
    """Its one number, or which kind of number it is not."""
    if loss.numel != 1 or not loss.values:
        return None, None
    (value,) = loss.values
    if isinstance(value, tuple):  # complex
        return None, None
    return (None, value) if isinstance(value, str) else (float(value), None)
