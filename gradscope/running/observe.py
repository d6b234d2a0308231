"""Runs steps under a recorder: activations and gradients of every call, and of the parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gradscope.capture.facts import Buffers, module_facts
from gradscope.capture.hooks import select_layers
from gradscope.capture.names import first_names
from gradscope.capture.optimizer_steps import hidden_moments
from gradscope.capture.parameters import any_nonfinite, parameter_stats, statistics, total_norm
from gradscope.capture.recorder import Recorder
from gradscope.capture.saved_memory import keeps_scores
from gradscope.capture.shards import is_spread, local, placements
from gradscope.capture.transformer.parts import TransformerCalls
from gradscope.capture.updates import Update, updates
from gradscope.loading.workload import Workload
from gradscope.patterns import Named
from gradscope.records.full_samples import Change
from gradscope.records.modules import ModuleCall, ModuleFacts, ParameterStats
from gradscope.records.run import (
    DeviceMesh,
    LossPart,
    ParameterPlacement,
    Seconds,
    StepParameter,
    StepRecord,
    Verification,
)
from gradscope.records.tensors import TensorRecord
from gradscope.records.transformer import PROBES
from gradscope.running.costs import Stopwatch
from gradscope.running.gradients import Losses, measured_loss, read_losses
from gradscope.running.rerun import Verifier, count_saved, gradients, plain_gradients
from gradscope.running.step import GraphRoot, Observer, Step, run

_SCORES = (
    "saved bytes: `meta` has no fused attention, so attention scores are counted; a CPU or GPU "
    "with fused attention saves less"
)


@dataclass(kw_only=True)
class Observation(Observer):
    """Record of a run's steps, complete or not.

    Attributes:
        verify: True to prove that observing is harmless.
        selected: the modules whose calls are recorded; ``chained`` are those with autograd chains.
        all_parameters: the parameters of the full model; ``parameters`` has those of the selected
            modules.
        placed: the placement of parameters on several processes.
        first_nonfinite: the number of the first of several steps whose loss or gradients were NaN
            or Inf.
    """

    verify: bool
    selected: dict[nn.Module, Named] = field(repr=False)
    chained: dict[nn.Module, Named] = field(repr=False)
    forward: Stopwatch
    backward: Stopwatch
    calls: tuple[ModuleCall, ...] = ()
    transformer: TransformerCalls = field(default_factory=TransformerCalls)
    parameters: tuple[ParameterStats, ...] = ()
    all_parameters: tuple[ParameterStats, ...] = ()
    modules: tuple[ModuleFacts, ...] = ()
    interventions: tuple[Change, ...] = ()
    history: list[StepRecord] = field(default_factory=list)
    loss: float | None = None
    loss_nonfinite: str | None = None
    losses: tuple[LossPart, ...] = ()
    first_nonfinite: int | None = None
    gradient_norm: float | None = None
    seconds: Seconds = field(default_factory=Seconds)
    verified: Verification | None = None
    optimizer: str | None = None
    notices: list[str] = field(default_factory=list)
    placed: list[DeviceMesh | ParameterPlacement] = field(default_factory=list)
    _buffers: Buffers | None = None
    _losses: list[Losses] = field(default_factory=list)
    _verifier: Verifier | None = None
    _inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    _activations: dict[str, Any] = field(default_factory=dict)

    def before_step(self, step: Step) -> None:
        if step.optimizer is not None:
            self.optimizer = type(step.optimizer).__name__
        if self.verify and step.number == 0:
            self._verifier = _verifier(step)
        self._inputs = {name: t for name, t in step.inputs.items() if t.requires_grad}
        self._losses = []
        self.recorder = Recorder(
            step.workload.model,
            self.selected,
            accumulate=step.workload.repeats > 1,
            chained=self.chained,
            # With FSDP, saved tensors are not counted: it gathers and frees them itself.
            saved=not any(map(is_spread, step.workload.model.parameters())),
            probes=PROBES,
        )

    @contextmanager
    def around_forward(self, step: Step) -> Iterator[None]:
        assert self.recorder is not None
        self._buffers = Buffers(step.workload.model)
        try:
            with self.forward:
                yield
        finally:
            self._buffers.compare()
            self.modules = module_facts(step.workload.model, self.recorder.counts)

    def leaves(self, step: Step, root: GraphRoot) -> Sequence[torch.Tensor]:
        assert self.recorder is not None
        assert isinstance(root, torch.Tensor)
        parts = {name: measured_loss(part) for name, part in step.losses.items()}
        self._losses.append({"": measured_loss(root), **parts})
        self.recorder.connect([root], {id(t): name for name, t in step.named_inputs})
        if step.workload.device.type == "meta" and keeps_scores(root):
            self.notices.append(_SCORES)
        self._activations = statistics(self._inputs)
        return self.recorder.leaves

    @contextmanager
    def around_backward(self, step: Step, repeat: int) -> Iterator[None]:
        with self.backward:
            yield
        workload = step.workload
        if workload.parallel is not None:
            workload.parallel.take_sums()
        if workload.steps * workload.repeats * workload.accumulate > 1:
            self._enter_history(step)

    def after_backward(self, step: Step) -> None:
        assert self.recorder is not None
        if self._verifier is not None:
            self.verified = self._verifier.compare(gradients(step))
            self._verifier = None
        self._inputs = {}
        self.recorder.free_nodes()
        model, held = step.workload.model, _held(step)
        if step.workload.parallel is not None:
            self.placed = placements(model)
        self.parameters = parameter_stats(model, shown=self.selected, held=held)
        self.interventions = step.interventions.changes()
        self._read()
        # With several processes, no process may run a step alone.
        last = step.number + 1 == step.workload.steps and step.workload.parallel is None
        # Micro-batches are not counted again: the largest decides, and each was counted.
        if last and self.recorder.needs_counting_run and step.workload.accumulate == 1:
            saved = count_saved(step, self.notices)
            if saved is not None:
                self.recorder.set_saved(saved)

    @contextmanager
    def around_update(self, step: Step) -> Iterator[None]:
        before = {p: local(p).detach().clone() for p in _held(step) or ()}
        yield
        found = updates(step.workload.model, before, step.optimizer)
        self.notices += [n for n in hidden_moments(step.optimizer) if n not in self.notices]
        nothing, spread = Update(), step.workload.parallel is not None
        self.parameters = tuple(
            replace(update.on(p), update_norm=update.norm if spread else None)
            for p in self.parameters
            for update in [found.get(p.name, nothing)]
        )
        if self.history:
            last = self.history[-1]
            ratios = tuple(
                replace(
                    p,
                    update_ratio=update.ratio,
                    value_norm=update.weight if spread else None,
                    update_norm=update.norm if spread else None,
                )
                for p in last.parameters
                for update in [found.get(p.name, nothing)]
            )
            self.history[-1] = replace(last, parameters=ratios)

    def after_run(self, workload: Workload) -> None:
        try:
            self._complete(workload)
        except RuntimeError as failure:
            if workload.device.type == "cpu":
                raise
            # An error of a device appears when it is read, and the device may then not answer.
            self.failure = self.failure or failure
        self.gradient_norm = total_norm([p.gradient.norm for p in self.parameters if p.gradient])
        self.all_parameters = self.parameters
        owned = {
            f"{named.name}.{name}".lstrip(".")
            for module, named in self.selected.items()
            for name, _ in module.named_parameters(recurse=False)
        }
        self.parameters = tuple(p for p in self.parameters if {p.name, *p.aliases} & owned)

    def _complete(self, workload: Workload) -> None:
        if self.failure:
            self._read()
        if self.recorder:
            self.calls = self.recorder.calls()
            self.transformer = self.recorder.take_parts()
        if not self.parameters:
            self.parameters = parameter_stats(workload.model, shown=self.selected)

    def _read(self) -> None:
        """Read all results but gradients from the device, in one transfer."""
        if self._losses:
            (self.loss, self.loss_nonfinite), self.losses = read_losses(self._losses)
        if self._buffers is not None:
            self.modules = self._buffers.entered(self.modules)
        self.seconds = Seconds(self.forward.seconds, self.backward.seconds)

    def _enter_history(self, step: Step) -> None:
        named = list(first_names(step.workload.model))
        measured = statistics({name: p.grad for name, p in named})
        arrived = statistics({name: t.grad for name, t in self._inputs.items()})
        self._read()
        bad = self.loss_nonfinite is not None or any_nonfinite(measured.values())
        if bad and self.first_nonfinite is None:
            self.first_nonfinite = step.number
        norms = {name: None if stats is None else stats.norm for name, stats in measured.items()}
        self.history.append(
            StepRecord(
                step=step.number,
                backward=sum(record.step == step.number for record in self.history),
                loss=self.loss,
                loss_nonfinite=self.loss_nonfinite,
                gradient_norm=total_norm(list(norms.values())),
                inputs=tuple(
                    TensorRecord(name, self._activations[name], arrived[name], None, True)
                    for name in self._inputs
                ),
                parameters=tuple(StepParameter(name, norm) for name, norm in norms.items()),
            )
        )


def observe(
    workload: Workload,
    *,
    layers: Sequence[str] = ("**",),
    chain: Sequence[str] = (),
    verify: bool = False,
) -> Observation:
    """Run the steps and record the last one that began.

    An exception, of the user's code or Ctrl-C, ends the run and is found in ``failure``: the
    records up to then are there all the same.

    Args:
        workload: the workload.
        layers: patterns of the modules to record.
        chain: patterns of the modules whose outputs' autograd chains are kept.
        verify: also run two plain steps, and compare their gradients with the recorded one's.

    Raises:
        LayerError: a layer pattern matches nothing.
    """
    model = workload.model
    selected = select_layers(model, layers)
    chained = select_layers(model, chain) if chain else {}
    forward, backward = Stopwatch(workload.device), Stopwatch(workload.device)
    observation = Observation(
        verify=verify, selected=selected, chained=chained, forward=forward, backward=backward
    )
    run(workload, observation)
    return observation


def _verifier(step: Step) -> Verifier | None:
    try:
        return Verifier(lambda: plain_gradients(step))
    except Exception:
        # The observed step that follows raises the same, and names the layer.
        return None


def _held(step: Step) -> set[nn.Parameter] | None:
    """Return the optimizer's parameters; None without one."""
    if step.optimizer is None:
        return None
    return {p for group in step.optimizer.param_groups for p in group["params"]}
