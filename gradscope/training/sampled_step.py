"""Samples a step of the script's training loop: records everything that ``inspect`` records."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node
from torch.optim import Optimizer

from gradscope.capture.differences import combined
from gradscope.capture.facts import Buffers, module_facts
from gradscope.capture.graph import edge_of, walk
from gradscope.capture.hooks import hookable_modules, select_layers
from gradscope.capture.names import named_modules, named_parameters, parameters_of
from gradscope.capture.nodes import located
from gradscope.capture.optimizer_steps import LastStep, hidden_moments
from gradscope.capture.parameters import parameter_stats, total_norm
from gradscope.capture.recorder import Recorder
from gradscope.capture.reductions import gradient_norms
from gradscope.capture.shards import version_of
from gradscope.capture.updates import Update, updates
from gradscope.errors import LayerError
from gradscope.explain.shared.frames import locate
from gradscope.patterns import Named
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Report
from gradscope.records.run import RunInfo, Totals
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.records.training import (
    Fingerprints,
    GradientParts,
    StepSample,
    TrainingRecord,
    TrainingStep,
)
from gradscope.training.current_step import CurrentStep
from gradscope.training.guard import Guard
from gradscope.training.memory import weight_copies
from gradscope.training.models import Model
from gradscope.training.nan_detector.recorded_calls import RecordedCall, calling_line
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.parameter_norms import LocalNorms, micro_batches
from gradscope.training.replicas import data_place, held_alike, input_digest, several_processes

if TYPE_CHECKING:
    from gradscope.training.compiled_calls import CompiledCalls


@dataclass(slots=True)
class _SampledModel:
    """One model while a sample is taken."""

    model: Model
    selected: dict[nn.Module, Named]
    recorder: Recorder
    buffers: Buffers
    arrived: tuple[ParameterStats, ...] = ()
    versions: dict[int, int] = field(default_factory=dict)
    clipped: dict[str, float | None] = field(default_factory=dict)
    before: dict[nn.Parameter, torch.Tensor] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)  # a fingerprint for each call, of many ranks
    alike: list[Fingerprints] = field(default_factory=list)


class SampledStep:
    """Samples all models for one step, or until every optimizer has made a step.

    Args:
        models: the models to sample.
        layers: patterns of the modules whose calls are recorded.
        probes: the parts of a transformer to record.
        guard: makes functions of the hooks that never raise.
        compiled: has the calls of compiled models; None: they are not recorded.
    """

    def __init__(
        self,
        models: Sequence[Model],
        layers: Sequence[str],
        probes: Collection[str],
        guard: Guard,
        compiled: CompiledCalls | None = None,
    ) -> None:
        self._entries = [_entry(model, layers, probes, guard) for model in models]
        self._stack = ExitStack()
        self._compiled = compiled
        self._lines: list[tuple[str, int] | None] = []
        self._local = LocalNorms(models, guard) if several_processes() else None
        if self._local is not None:
            self._stack.callback(self._local.remove)
        if compiled is not None:
            compiled.sample_begins()
            self._stack.callback(compiled.sample_ended)
        for entry in self._entries:
            self._stack.enter_context(entry.recorder.installed())

    def backward_begins(
        self, roots: Sequence[torch.Tensor | GradientEdge], *, lines: bool = False
    ) -> None:
        """Assign every gradient of the coming backward to its call.

        Args:
            lines: True if the nodes have the stacks that made them, and their lines are wanted.
        """
        for entry in self._entries:
            recorder = entry.recorder
            recorder.connect(roots, {})
            if lines and recorder.links:
                walked = walk([edge_of(root) for root in roots], set())
                recorder.links = located(recorder.links, walked, locate)

    def called(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the line of a call of an outermost model; and its inputs, to compare them across
        ranks.
        """
        self._lines.append(calling_line())
        if several_processes():
            digest = input_digest(args, kwargs)
            for entry in self._entries:
                if entry.model is model and digest is not None:
                    entry.inputs.append(digest)

    def backward_ended(self) -> None:
        """Read the gradients after backward, before the script clips them."""
        for entry in self._entries:
            entry.arrived = parameter_stats(entry.model.module, shown=entry.selected)
            entry.versions = _versions(entry.model.module)

    def gradients(self) -> dict[int, TensorStats]:
        """Return the statistics of the gradients that were read, by the ``id`` of each."""
        return {
            id(parameter.grad): stats.gradient
            for entry in self._entries
            for parameter, stats in zip(
                named_parameters(entry.model.module), entry.arrived, strict=True
            )
            if stats.gradient is not None
        }

    def parts(
        self, current: CurrentStep, calls: Sequence[RecordedCall], held: Collection[nn.Parameter]
    ) -> GradientParts | None:
        """Return the norms of the gradient of this step's micro-batches, or of this rank.

        Args:
            current: the step, after its last backward.
            calls: the calls of the models in this step.
            held: the parameters of the optimizer.
        """
        if self._local is not None:
            return self._local.parts(current, held)
        lines, self._lines = self._lines, []
        return micro_batches(current, calls, held) if len(set(lines)) == 1 else None

    def before_update(self, held: Collection[nn.Parameter], step: int) -> None:
        """Read the gradients that the optimizer gets in a step, and the weights that it will
        move.
        """
        for entry in self._of(held):
            if not entry.arrived:
                self.backward_ended()
            now = _versions(entry.model.module)
            named = named_parameters(entry.model.module)
            changed = {
                named[p].name: p.grad
                for p in named
                if p.grad is not None and now[id(p)] != entry.versions.get(id(p))
            }
            norms = gradient_norms(list(changed.values())) if changed else []
            entry.clipped = dict(zip(changed, norms, strict=True))
            if not entry.before:  # a closure runs several times, and the weights move between
                entry.before = weight_copies(
                    [p for p in named if p in held], _turn(entry.model, step)
                )
            if not entry.alike and several_processes():
                entry.alike = _alike(entry, held)

    def taken(
        self,
        step: TrainingStep,
        optimizer: ObservedOptimizer | None,
        last: LastStep | None,
        *,
        elsewhere: Collection[nn.Parameter],
    ) -> list[StepSample]:
        """Return the samples of a step that has ended.

        Args:
            step: its step metrics.
            optimizer: the optimizer that made the step; None without one.
            last: its step.
            elsewhere: the parameters that any optimizer holds.
        """
        samples = []
        held = None if optimizer is None else optimizer.held
        for entry in self._entries if held is None else self._of(held):
            report = _report(entry, optimizer, last, step, self._compiled)
            names = {named.name: p for p, named in named_parameters(entry.model.module).items()}
            unheld = [p.name for p in report.parameters if p.requires_grad]
            samples.append(
                StepSample(
                    step.step,
                    entry.model.id,
                    report,
                    entry.clipped,
                    optimizer=step.optimizer,
                    settings={} if optimizer is None else optimizer.settings,
                    unheld=()
                    if held is None
                    else tuple(n for n in unheld if names[n] not in elsewhere),
                )
            )
            # Gradients that have arrived stay for another optimizer's step after the same backward.
            entry.clipped, entry.before = {}, {}
        return samples

    def calls(self) -> list[ModuleCall]:
        """Return the calls recorded so far; with several models, prefixed with the model's name."""
        several = len(self._entries) > 1
        return [
            replace(call, name=".".join(filter(None, (entry.model.name, call.name))))
            if several
            else call
            for entry in self._entries
            for call in entry.recorder.calls()
        ]

    def fingerprints(self, step: int) -> list[Fingerprints]:
        """Return fingerprints of the state that other processes must share, from an ended step."""
        found = [replace(one, step=step) for entry in self._entries for one in entry.alike]
        for entry in self._entries:
            entry.alike, entry.inputs = [], []
        return found

    def let_go(self) -> None:
        """Release the graphs of the calls so far, which no later backward reaches."""
        for entry in self._entries:
            entry.recorder.let_go()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore calls in the block: they are not the script's."""
        for entry in self._entries:
            entry.recorder.paused = True
        try:
            yield
        finally:
            for entry in self._entries:
                entry.recorder.paused = False

    def remove(self) -> list[Node]:
        """Remove every hook. The recorded nodes must be freed when the graph is gone."""
        self._stack.close()
        return self.take_nodes()

    def take_nodes(self) -> list[Node]:
        """Return the nodes that were seen."""
        return [node for entry in self._entries for node in entry.recorder.take_nodes()]

    def _of(self, held: Collection[nn.Parameter]) -> list[_SampledModel]:
        return [w for w in self._entries if any(p in held for p in parameters_of(w.model.module))]


def _turn(model: Model, step: int) -> int:
    """Return the turn of the weights to copy; by the step if several processes must agree."""
    model.samples += 1
    return random.Random(step).getrandbits(32) if several_processes() else model.samples


def _alike(entry: _SampledModel, held: Collection[nn.Parameter]) -> list[Fingerprints]:
    """Return fingerprints of this process's state, and of the model's inputs."""
    model = entry.model
    outer = model.outer()
    if outer is None:
        return []
    found = held_alike(model.id, outer, model.module, held)
    place = data_place(outer)
    if place is not None and entry.inputs:
        calls = {str(number): text for number, text in enumerate(entry.inputs)}
        digest = combined(list(calls.values()))
        found.append(Fingerprints(0, model.id, "input", place, digest, calls))
    return found


def _entry(
    model: Model, layers: Sequence[str], probes: Collection[str], guard: Guard
) -> _SampledModel:
    module = model.module
    try:
        selected = select_layers(module, layers)
    except LayerError:  # a pattern that is meant for another of several models
        selected = {}
    hooks: list[nn.Module] = [] if model.compiled else hookable_modules(module)
    recorder = Recorder(
        *(module, selected),
        hooks=hooks,
        only_training=True,
        saved=False,
        probes=() if model.compiled else probes,  # what is patched would be compiled again
        guard=guard,
    )
    return _SampledModel(model, selected, recorder, Buffers(module))


def _versions(module: nn.Module) -> dict[int, int]:
    """Return a value for each parameter that changes with each write to its gradient."""
    return {id(p): hash(version_of(p.grad)) for p in parameters_of(module) if p.grad is not None}


def _report(
    entry: _SampledModel,
    optimizer: ObservedOptimizer | None,
    last: LastStep | None,
    step: TrainingStep,
    compiled: CompiledCalls | None,
) -> Report:
    module, model, scale = entry.model.module, entry.model, step.loss_scale or 1.0
    model.autocast = model.autocast or entry.recorder.autocast
    entry.buffers.compare()
    counts: Mapping[nn.Module, int] = dict(entry.recorder.counts)
    taken = entry.recorder.take_calls()
    if compiled is not None and model.compiled:
        taken, counts = compiled.take(module)
    calls = tuple(_unscaled_call(call, scale) for call in taken)
    parts = entry.recorder.take_parts()
    stepped = None if last is None else last.optimizer
    moved = updates(module, entry.before, stepped, last=last)
    names = {id(p): named.name for p, named in named_parameters(module).items()}
    own = None
    if optimizer is not None:
        own = {names[id(p)] for p in optimizer.held if id(p) in names}
    parameters = tuple(
        moved.get(p.name, Update()).on(
            p,
            gradient=None if p.gradient is None else unscaled(p.gradient, scale),
            in_optimizer=None if own is None else p.name in own,
        )
        for p in entry.arrived
    )
    facts = entry.buffers.entered(module_facts(module, counts))
    first = next(module.parameters(), None)
    model.count()
    return Report(
        status="ok",
        run=RunInfo(
            model=model.name,
            device=str(first.device) if first is not None else "cpu",
            dtype=str(first.dtype).removeprefix("torch.") if first is not None else "float32",
            mode="train" if module.training else "eval",
            seed=torch.initial_seed() % 2**63,
            steps=1,
            loss="the script's own",
            autocast=model.autocast,
            optimizer=None if optimizer is None else optimizer.kind,
            repeats=max(1, len(step.summed_losses)),
            notices=(*model.notices, *hidden_moments(stepped)),
        ),
        loss=step.loss,
        totals=Totals(
            parameters=model.parameters,
            trainable=model.trainable,
            gradient_norm=total_norm([p.gradient.norm for p in parameters if p.gradient]),
            modules=len(named_modules(module)),
            calls=len(calls),
        ),
        calls=calls,
        parameters=parameters,
        modules=facts,
        links=tuple(entry.recorder.links),
        attention=parts.attention,
        experts=parts.experts,
        residual=parts.residual,
    )


def update_rms(records: Sequence[TrainingRecord], optimizer: Optimizer) -> float | None:
    """Return the root mean square of Δw over all parameters of a step; None if one is unknown, or
    in no sample."""
    stepped = [
        p
        for sample in records
        if isinstance(sample, StepSample)
        for p in sample.report.parameters
        if p.in_optimizer and p.gradient is not None
    ]
    norms = [p.update_norm for p in stepped if p.update_norm is not None]
    own = sum(p.grad is not None for group in optimizer.param_groups for p in group["params"])
    if not norms or len(norms) < max(own, len(stepped)):
        return None
    return math.hypot(*norms) / math.sqrt(sum(p.value.numel for p in stepped))


def unscaled(stats: TensorStats, scale: float) -> TensorStats:
    """Return the statistics of a tensor divided by ``scale``; a scaler chooses powers of two."""
    if scale == 1.0:
        return stats
    changed: dict[str, Any] = {
        name: None if value is None else value / scale
        for name in ("norm", "mean", "std", "min", "max")
        for value in [getattr(stats, name)]
    }
    values = stats.values
    if values is not None:
        changed["values"] = tuple(v / scale if isinstance(v, int | float) else v for v in values)
    return replace(stats, **changed)


def _unscaled_call(call: ModuleCall, scale: float) -> ModuleCall:
    if scale == 1.0:
        return call

    def record(one: TensorRecord) -> TensorRecord:
        gradient = one.gradient
        return one if gradient is None else replace(one, gradient=unscaled(gradient, scale))

    return replace(
        call, inputs=tuple(map(record, call.inputs)), outputs=tuple(map(record, call.outputs))
    )
