"""A step that is looked at: everything that ``inspect`` records, of a training that is not ours."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.capture.facts import Buffers, module_facts
from gradscope.capture.hooks import named_modules, named_parameters, select_layers, watchable
from gradscope.capture.norms import gradient_norms
from gradscope.capture.parameters import parameter_stats, total_norm, updates
from gradscope.capture.recorder import Recorder
from gradscope.errors import LayerError
from gradscope.patterns import Named
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Report
from gradscope.records.run import RunInfo, Totals
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.records.training import StepSample, TrainingStep
from gradscope.training.models import Model


@dataclass(slots=True)
class _Watched:
    """One model while a sample is taken."""

    model: Model
    selected: dict[nn.Module, Named]
    recorder: Recorder
    buffers: Buffers
    arrived: tuple[ParameterStats, ...] = ()
    versions: dict[int, int] = field(default_factory=dict)
    clipped: dict[str, float | None] = field(default_factory=dict)
    before: dict[nn.Parameter, torch.Tensor] = field(default_factory=dict)


#: What copies of weights may take: a share of the process's memory, or so many bytes.
_SHARE, _LEAST_ROOM = 0.02, 1 << 25
#: Copies of fewer bytes than these leave no gaps that matter.
_LARGE = 1 << 20


class Sampler:
    """Looks at all models for one step, or for as many as it takes all optimizers to make one.

    Args:
        models: those to look at.
        layers: patterns of the modules whose calls are recorded.
        guard: calls every hook, and deals with what it raises.
    """

    def __init__(
        self, models: Sequence[Model], layers: Sequence[str], guard: Callable[..., Any]
    ) -> None:
        self._watched = [_watch(model, layers, guard) for model in models]
        self._stack = ExitStack()
        for watched in self._watched:
            self._stack.enter_context(watched.recorder.installed())

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """Every gradient that this backward will bring is assigned to its call."""
        for watched in self._watched:
            watched.recorder.connect(roots, {})

    def backward_ended(self) -> None:
        """The gradients as backward left them, before anybody clips them."""
        for watched in self._watched:
            watched.arrived = parameter_stats(watched.model.module, shown=watched.selected)
            watched.versions = _versions(watched.model.module)

    def before_update(self, held: Collection[nn.Parameter]) -> None:
        """The gradients as the optimizer gets them, and the weights that it will move."""
        for watched in self._of(held):
            if not watched.arrived:
                self.backward_ended()
            now = _versions(watched.model.module)
            named = named_parameters(watched.model.module)
            changed = {
                named[p].name: p.grad
                for p in named
                if p.grad is not None and now[id(p)] != watched.versions.get(id(p))
            }
            norms = gradient_norms(list(changed.values())) if changed else []
            watched.clipped = dict(zip(changed, norms, strict=True))
            if not watched.before:  # a closure runs several times, and the weights move between
                watched.before = _copies([p for p in named if p in held], watched.model)

    def taken(
        self,
        step: TrainingStep,
        held: Collection[nn.Parameter] | None,
        *,
        elsewhere: Collection[nn.Parameter],
        settings: dict[str, float],
    ) -> list[StepSample]:
        """The samples of a step that has ended.

        Args:
            step: its vital signs.
            held: the parameters of the optimizer that made it; None without one.
            elsewhere: those that any optimizer has.
            settings: the numbers of the optimizer's first group.
        """
        samples = []
        for watched in self._watched if held is None else self._of(held):
            report = _report(watched, held, step.loss, step.loss_scale or 1.0)
            names = {named.name: p for p, named in named_parameters(watched.model.module).items()}
            unheld = [p.name for p in report.parameters if p.requires_grad]
            samples.append(
                StepSample(
                    step.step,
                    watched.model.id,
                    report,
                    watched.clipped,
                    optimizer=step.optimizer,
                    settings=settings,
                    unheld=()
                    if held is None
                    else tuple(n for n in unheld if names[n] not in elsewhere),
                )
            )
            # What has arrived stays for another optimizer's step after the same backward.
            watched.clipped, watched.before = {}, {}
        return samples

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls that are made in the block are not the script's."""
        for watched in self._watched:
            watched.recorder.paused = True
        try:
            yield
        finally:
            for watched in self._watched:
                watched.recorder.paused = False

    def remove(self) -> list[Node]:
        """Take every hook away. The nodes that were seen are to be freed when the graph is gone."""
        self._stack.close()
        return [node for watched in self._watched for node in watched.recorder.take_nodes()]

    def _of(self, held: Collection[nn.Parameter]) -> list[_Watched]:
        return [w for w in self._watched if any(p in held for p in w.model.module.parameters())]


def _copies(parameters: Sequence[nn.Parameter], model: Model) -> dict[nn.Parameter, torch.Tensor]:
    """Copies of the weights, of as many as memory allows: of the others at the next look."""
    if not parameters:
        return {}
    start = model.copied % len(parameters)
    left = _room()
    copies: dict[nn.Parameter, torch.Tensor] = {}
    for parameter in (*parameters[start:], *parameters[:start]):
        left -= parameter.numel() * parameter.element_size()
        if copies and left < 0:
            break
        copies[parameter] = _copy(parameter)
        model.copied += 1
    return copies


def _copy(parameter: nn.Parameter) -> torch.Tensor:
    """On the processor a large copy has memory of its own, which goes back to the system at once.

    From the heap it would come to lie between the script's gradients, and leave gaps there.
    """
    size = parameter.numel() * parameter.element_size()
    if type(parameter.data) is not torch.Tensor or not parameter.is_cpu or size < _LARGE:
        return parameter.detach().clone()
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = torch.frombuffer(mmap.mmap(-1, size, private), dtype=parameter.dtype)
    return memory.view(parameter.shape).copy_(parameter.detach())


def _room() -> int:
    """How many bytes a look may take of the processor's memory, beside what the process has."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        resident = pages * resource.getpagesize()
    except (OSError, ValueError, IndexError):  # elsewhere than on Linux
        resident = 0
    return max(_LEAST_ROOM, int(_SHARE * resident))


def _watch(model: Model, layers: Sequence[str], guard: Callable[..., Any]) -> _Watched:
    module = model.module
    try:
        selected = select_layers(module, layers)
    except LayerError:  # a pattern that is meant for another of several models
        selected = {}
    hooks: list[nn.Module] = [] if model.compiled else watchable(module)
    recorder = Recorder(module, selected, hooks=hooks, only_training=True, saved=False, guard=guard)
    return _Watched(model, selected, recorder, Buffers(module))


def _versions(module: nn.Module) -> dict[int, int]:
    """What changes with each write to a gradient, by parameter."""
    return {
        id(p): hash((id(p.grad), p.grad._version))
        for p in module.parameters()
        if p.grad is not None
    }


def _report(
    watched: _Watched,
    held: Collection[nn.Parameter] | None,
    loss: float | None,
    scale: float,
) -> Report:
    module, model = watched.model.module, watched.model
    watched.buffers.compare()
    counts = dict(watched.recorder.counts)
    calls = tuple(_unscaled_call(call, scale) for call in watched.recorder.take_calls())
    moved = updates(module, watched.before)
    names = {id(p): named.name for p, named in named_parameters(module).items()}
    own = None if held is None else {names[id(p)] for p in held if id(p) in names}
    parameters = tuple(
        replace(
            p,
            gradient=None if p.gradient is None else unscaled(p.gradient, scale),
            in_optimizer=None if own is None else p.name in own,
            update_ratio=moved.get(p.name, (None, None))[0],
            moved=moved.get(p.name, (None, None))[1],
        )
        for p in watched.arrived
    )
    facts = watched.buffers.entered(module_facts(module, counts))
    first = next(module.parameters(), None)
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
            notices=model.notices,
        ),
        loss=loss,
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
        links=tuple(watched.recorder.links),
    )


def unscaled(stats: TensorStats, scale: float) -> TensorStats:
    """Statistics of a tensor divided by ``scale``, a power of two where a scaler chose it."""
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
