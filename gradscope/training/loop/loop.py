"""The training loop as it goes: what was seen of it, as a record that rules read."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from gradscope.capture.facts import of_library
from gradscope.capture.hooks import OwnHook, hook_first_call, watchable
from gradscope.capture.names import named_parameters
from gradscope.records.loop import (
    LoopCause,
    LoopModel,
    LoopOptimizer,
    LoopParameter,
    LoopRecord,
)
from gradscope.training.current_step import CurrentStep
from gradscope.training.guard import Guard
from gradscope.training.loop.batches import Batches
from gradscope.training.loop.clipping import Clipping
from gradscope.training.loop.construction import Construction, Made
from gradscope.training.loop.draws import Draws
from gradscope.training.loop.gradient_use import GradientUse
from gradscope.training.loop.held_parameters import HeldParameters
from gradscope.training.loop.kept_graphs import KeptGraphs
from gradscope.training.loop.loss_graph import LossGraphs
from gradscope.training.loop.losses import Losses
from gradscope.training.loop.model_use import ModelUse, signature
from gradscope.training.loop.modes import Modes
from gradscope.training.loop.rounds import Rounds
from gradscope.training.loop.schedulers import Schedulers, inner
from gradscope.training.loop.script_lines import ScriptLine, call_of, script_line, written_call
from gradscope.training.models import Model, Models
from gradscope.training.optimizers import ObservedOptimizer, Optimizers

_NOTHING: frozenset[str] = frozenset()


class _Optimizer:
    """What is known of an optimizer beside its name."""

    def __init__(self, made: ScriptLine | None, number: int) -> None:
        self.made, self.number = made, number
        self.use, self.parameters = GradientUse(), HeldParameters()
        self.facts = _NOTHING
        self.backwards = 0  # after which its parameters had gradients, before its first step
        self.fresh = False  # the last backward is not among them yet
        self.reached: str | None = None  # where the first of these backwards is
        # What the last record said of it: at the end of a script it may be gone, as what a function
        # made is when the function has returned.
        self.record: LoopOptimizer | None = None
        self.held: dict[int, LoopParameter] = {}
        self.refs: tuple[weakref.ref[nn.Parameter], ...] = ()
        self.name = ""
        self.unscaled = False


class Loop:
    """Takes in the moments of a loop, and makes a record of it.

    Attributes:
        changed: whether a module was set since the models were looked for.

    Args:
        models: those of the training.
        optimizers: all that were made.
    """

    def __init__(self, models: Models, optimizers: Optimizers) -> None:
        self._models, self._optimizers = models, optimizers
        self._rounds = Rounds()
        self._batches, self._losses, self._modes = Batches(), Losses(), Modes()
        self._graphs, self._schedulers = KeptGraphs(), Schedulers()
        self._loss_graphs, self._clipping = LossGraphs(), Clipping()
        self._draws = Draws()
        self._of: weakref.WeakKeyDictionary[Optimizer, _Optimizer] = weakref.WeakKeyDictionary()
        self._every: list[tuple[weakref.ref[Optimizer], _Optimizer]] = []
        self._last_models: dict[int, LoopModel] = {}
        self._signatures: dict[int, object] = {}
        self._last_unheld: dict[int, LoopParameter] = {}
        self._use: dict[int, ModelUse] = {}
        self._called: set[int] = set()  # the numbers of the models that ran
        self._construction = Construction()
        self._set: list[tuple[weakref.ref[nn.Module], str, weakref.ref[nn.Module], str | None]] = []
        self._clips: dict[tuple[int, int], tuple[str, frozenset[str]]] = {}
        self._noticed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._uncalled: weakref.WeakKeyDictionary[nn.Module, OwnHook] = weakref.WeakKeyDictionary()
        self._steps = self._loader = 0
        #: How many have begun.
        self.backwards = 0
        self._last_backward: str | None = None
        self._scaled = self.changed = False

    def observe(self, models: Iterable[Model], guard: Guard) -> None:
        """Notice the first call of each module that owns parameters, with gradients or without."""
        for model in models:
            outer, module = model.outer(), model.module_ref()
            if module is not None:
                self._used(model, module)
            if outer is None or model.compiled:
                continue
            for module in watchable(outer):
                owns = any(one is not None for one in module._parameters.values())
                if owns and module not in self._noticed:
                    self._noticed.add(module)
                    ran = guard(partial(self._ran, weakref.ref(module)))
                    self._uncalled[module] = hook_first_call(module, ran)

    def _ran(self, module: weakref.ref[nn.Module]) -> None:
        found = module()
        if found is not None:
            self._uncalled.pop(found, None)

    def close(self) -> None:
        """Notice no more calls: from now on nobody knows which modules were never called."""
        for hook in list(self._uncalled.values()):
            hook.remove()
        self._uncalled.clear()

    # ---------------------------------------------------------------- moments

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """It has no parameters yet."""
        self._known(optimizer, script_line())

    def module_set(self, owner: nn.Module, name: str, module: nn.Module) -> None:
        """A module becomes the child of another: of interest where an optimizer was made before.

        What it is set in may train from now on, and be a model that was none.
        """
        self._construction.module_set(owner, module)
        if self._of and not self._steps:
            line = script_line()
            self._set.append((weakref.ref(owner), name, weakref.ref(module), str(line)))
            self.changed = True

    def parameter_set(self, owner: nn.Module, name: str, parameter: nn.Parameter) -> None:
        """A parameter becomes one of a module's own."""
        self._construction.parameter_set(owner, name)

    def made_at(self, model: int, name: str) -> str | None:
        """The line of the script that made a module or a parameter of a model, by its number."""
        for one in self._models:
            if one.id == model:
                made = self._construction.places(one.module)(name)
                return None if made is None else made.line
        return None

    def optimizer_at(self, name: str) -> str | None:
        """The line of the script that made an optimizer."""
        return next((str(m.made) for _, m in self._every if m.name == name and m.made), None)

    @property
    def wants_models(self) -> bool:
        """Whether models are to be looked for once more: a module was set, or the first backward
        begins and none of those that are known has run."""
        return self.changed or not (self.backwards or self._called)

    def scheduler_made(self, scheduler: LRScheduler) -> None:
        """A learning-rate scheduler was made."""
        self._schedulers.made(scheduler)

    def epoch_begins(self, loader: DataLoader[Any]) -> None:
        """A data loader is iterated over."""
        with contextlib.suppress(TypeError):  # a stream has no length
            self._loader = max(self._loader, len(loader))
        self._rounds.add("epoch")

    def clearing(self) -> None:
        """``zero_grad`` is about to be called, perhaps on other parameters."""
        for optimizer, known in self._of.items():
            self._count_unused(optimizer, known)
            known.fresh = False

    def cleared(self, owner: Optimizer | nn.Module) -> None:
        """``zero_grad`` was called on it."""
        for known in self._of.values():
            known.use.cleared()
        self._losses.cleared()
        self._rounds.add("zero", self._name(owner))

    def called(
        self,
        model: Model,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        gradients: bool,
    ) -> None:
        """A model of the training is called."""
        module = model.module_ref()
        if module is None:
            return
        known = self._used(model, module)
        self._called.add(model.id)
        if gradients:
            known.calls += 1
            self._batches.called(model.id, args, kwargs)
            self._loss_graphs.called()
            self._rounds.add("call", self._models.name(model), self._modes.call(module))
        else:
            known.evaluated(module)
            facts = self._modes.evaluation(module, args, kwargs)
            self._rounds.add("evaluation", self._models.name(model), facts)

    def returned(self, model: Model, output: object) -> None:
        """A model that was called with gradients has returned."""
        self._loss_graphs.returned()
        module = model.module_ref()
        if module is not None and not module.training:
            self._graphs.evaluated(output, self._steps)

    def drew(self, distribution: object, drawn: object) -> None:
        """``sample`` of a distribution has returned."""
        self._draws.drew(distribution, drawn, self._steps)

    def scored(self, distribution: object, value: object) -> None:
        """``log_prob`` of a distribution was called."""
        self._draws.scored(distribution, value)

    @property
    def wants_stacks(self) -> bool:
        """Whether the lines of operations in a model are wanted at the next step."""
        return self._loss_graphs.wants_stacks

    def backward_begins(
        self, roots: Sequence[Any], loss: float | None, *, scale: float | None, sample: int
    ) -> None:
        """A loss is there, with its graph.

        Args:
            loss: its value; None where it is not one number.
            scale: a gradient scaler's factor in it; None where it was not scaled.
            sample: the number of the sample that is being taken; 0 where none is.
        """
        self.backwards += 1
        self._scaled = self._scaled or scale is not None
        if loss is not None and scale:
            loss = loss / scale
        facts = self._losses.backward_begins(roots, loss)
        line = self._rounds.add("backward", "", facts).location
        for optimizer, known in self._of.items():
            self._count_unused(optimizer, known)
            known.fresh = True
            known.use.backward_begins(line)
        self._last_backward = line
        self._graphs.backward_begins(roots, self._steps + 1, self.backwards, sample)
        self._loss_graphs.backward_begins(roots, sampled=sample > 0)

    def clipped(self, parameters: Sequence[torch.Tensor], norm: object, bound: object) -> None:
        """The gradients of these were clipped; ``norm`` is what they had."""
        key = (id(parameters[0]), len(parameters)) if parameters else (0, 0)
        found = self._clips.get(key)
        if found is None:
            found = self._clips[key] = self._clipped(parameters)
        of, facts = found
        for optimizer, known in self._of.items():
            if self._name(optimizer) == of:
                if known.parameters.steps and not known.use.backwards:
                    facts = facts | {"cleared" if known.use.is_cleared else "used"}
                if self._scaled and not known.unscaled:
                    facts = facts | {"scaled"}
        location = self._rounds.add("clip", of, facts).location
        if of and isinstance(bound, int | float):
            self._clipping.clipped(of, norm, float(bound), location)

    def unscaled(self, optimizer: Optimizer) -> None:
        """A gradient scaler divided its gradients."""
        known = self._of.get(optimizer)
        if known is not None:
            known.unscaled = True
        self._rounds.add("unscale", self._name(optimizer))

    def scale_updated(self) -> None:
        """A gradient scaler chose the next scale."""
        for known in self._of.values():
            known.unscaled = False
        self._rounds.add("scaler-update")

    def _count_unused(self, optimizer: Optimizer, known: _Optimizer) -> None:
        """Count the last backward, if it gave gradients to an optimizer that has made no step."""
        if _unused(optimizer, known):
            known.backwards += 1
            known.reached = known.reached or self._last_backward

    def _known(self, optimizer: Optimizer, made: ScriptLine | None = None) -> _Optimizer:
        mine = self._of.get(optimizer)
        if mine is None:
            mine = self._of[optimizer] = _Optimizer(made, self._construction.now())
            self._every.append((weakref.ref(optimizer), mine))
        return mine

    def step_begins(self, optimizer: Optimizer, known: ObservedOptimizer) -> None:
        """Gradients are as the optimizer gets them."""
        mine = self._known(optimizer)
        if not mine.parameters.steps:
            mine.name, mine.refs = known.name, tuple(map(weakref.ref, known.held))
        mine.facts = mine.use.step_begins(known.held)
        mine.parameters.step_begins(
            known.held, optimizer.param_groups, cleared="cleared" in mine.facts
        )

    def gradients_read(
        self, optimizer: Optimizer, known: ObservedOptimizer, step: CurrentStep
    ) -> None:
        """All gradients of the step that is going on were read."""
        mine = self._of[optimizer].parameters
        mine.read(step.gradients.norms, known.held, self._steps + 1)
        before, after, scale = step.gradient_norm, step.clipped_norm, step.scale
        if getattr(optimizer, "grad_scale", None) is not None:
            return  # it divides by the scale within its step
        if not mine.are_scaled(before, after, scale):
            self._clipping.measured(known.name, before, after)

    def step_ended(self, optimizer: Optimizer, known: ObservedOptimizer) -> None:
        """The weights have moved."""
        self._steps += 1
        mine = self._of[optimizer]
        mine.parameters.step_ended()
        mine.use.step_ended()
        for other in self._of.values():
            if other is not mine:
                other.use.other_stepped(self._last_backward)
        for name in self._schedulers.stepped():
            self._rounds.add("schedule", name)
        self._rounds.end(self._steps, known.name, mine.facts)
        self._loss_graphs.step_ended()
        self._scaled = False

    # ---------------------------------------------------------------- record

    def record(
        self,
        *,
        ended: bool,
        cut: bool = False,
        causes: Iterable[LoopCause] = (),
        untraced: str = "",
    ) -> LoopRecord:
        """The loop as it went so far; the arguments are the record's."""
        kept = self._graphs.alive()
        evaluations = self._graphs.alive_evaluations(self._steps)
        self._schedulers.stepped()
        return LoopRecord(
            steps=self._steps,
            backwards=self.backwards,
            rounds=self._rounds.all(),
            rest=self._rounds.rest,
            optimizers=tuple(self._optimizer_records()),
            models=self._model_records(),
            schedulers=self._schedulers.records(self._name),
            parameters=tuple(self._parameter_records()),
            same_batch=self._batches.same,
            same_tensor=self._batches.same_tensor,
            loader=self._loader,
            same_loss=self._losses.same,
            first_loss=self._losses.first,
            kept_graphs=len(kept),
            kept_since=kept[0][0] if kept else 0,
            kept_of=self.backwards - kept[0][1] + 1 if kept else 0,
            kept_by=self._graphs.keeper() if max(len(kept), len(evaluations)) > 4 else None,
            kept_evaluations=len(evaluations),
            evaluations_since=evaluations[0] if evaluations else 0,
            causes=tuple(causes),
            untraced=untraced,
            batches_differ=self._batches.differ,
            graphs=self._loss_graphs.read,
            operations=self._loss_graphs.operations(),
            targets=self._loss_graphs.targets(),
            clippings=tuple(self._clipping.records()),
            draws=self._draws.records(),
            course=self._losses.course,
            ended=ended,
            cut=cut,
        )

    def _optimizer_records(self) -> Iterator[LoopOptimizer]:
        """Those that are alive, and those that were at the last record, in the order made."""
        alive = [one for one in self._optimizers.alive() if inner(one) is one]
        counts = Counter(id(p) for one in alive for p in self._optimizers.known(one).held)
        names = self._named_parameters()
        for reference, mine in self._every:
            optimizer, of = reference(), mine.parameters
            if optimizer is None:
                if mine.record is not None:
                    yield replace(
                        mine.record,
                        steps=mine.record.steps and of.steps,
                        backwards=max(mine.record.backwards, mine.backwards + mine.fresh),
                        zero_rates=tuple(of.zero_rates),
                        peak=of.peak,
                        rate=of.rate,
                        gone=of.gone,
                        readings=of.readings,
                        scaled=of.scaled,
                    )
                continue
            known = self._optimizers.known(optimizer)
            mine.record = LoopOptimizer(
                name=known.name,
                kind=type(optimizer).__name__,
                location=None if mine.made is None else str(mine.made),
                steps=known.steps,
                parameters=len(known.held),
                zero_rates=tuple(of.zero_rates),
                sizes=tuple(len(group["params"]) for group in optimizer.param_groups),
                backwards=mine.backwards + _unused(optimizer, mine),
                reached=mine.reached,
                stepping=None if of.steps else _written_step(known.name, mine.made),
                shared=sum(counts[id(parameter)] > 1 for parameter in known.held),
                mixed=mine.use.mixed,
                peak=of.peak,
                rate=of.rate,
                gone=of.gone,
                held=tuple(
                    tuple(names[id(p)] for p in group["params"] if id(p) in names)
                    for group in optimizer.param_groups
                ),
                readings=of.readings,
                scaled=of.scaled,
            )
            yield mine.record

    def _named_parameters(self) -> dict[int, tuple[int, str]]:
        """By identity, the parameters of all models: the model's number, and the name there."""
        return {
            id(parameter): (model.id, named.name)
            for model in self._models
            for parameter, named in named_parameters(model.module).items()
        }

    def _model_records(self) -> tuple[LoopModel, ...]:
        """Those that are alive, and those that were at the last record."""
        held = {id(parameter) for parameter in self._optimizers.held()}
        for model in self._models:
            module = model.module
            use = self._used(model, module)
            parameters = list(dict.fromkeys(module.parameters()))
            wanted = [p for p in parameters if p.requires_grad]
            module_is_held = not wanted or any(id(p) in held for p in wanted)
            self._last_models[model.id] = LoopModel(
                id=model.id,
                name=self._models.name(model),
                kind=type(module).__name__,
                calls=use.calls,
                evaluations=use.evaluations,
                trainable=len(wanted),
                held=sum(id(p) in held for p in wanted),
                parameters=len(parameters),
                replaced=tuple(self._replaced(module)),
                made=self._construction.line_of(module),
                kept_in=None if module_is_held else self._kept_in(module),
                eval_at=written_call(self._models.name(model), "eval"),
            )
            self._signatures[model.id] = signature(module)
        alike: dict[object, list[int]] = {}
        for number in sorted(self._last_models):
            alike.setdefault(self._signatures[number], []).append(number)
        return tuple(
            replace(
                one,
                calls=self._use[number].calls,
                evaluations=self._use[number].evaluations,
                unchanged=self._use[number].is_unchanged,
                twins=tuple(n for n in alike[self._signatures[number]] if n != number),
            )
            for number, one in sorted(self._last_models.items())
        )

    def _kept_in(self, module: nn.Module) -> str | None:
        """The plain container of another model's module that has this one."""
        for model in self._models:
            for name, owner in model.module.named_modules():
                for attribute, value in vars(owner).items():
                    if attribute.startswith("_") or not isinstance(value, list | tuple | dict):
                        continue
                    items = value.values() if isinstance(value, dict) else value
                    if any(one is module for one in items):
                        way = ".".join(filter(None, (self._models.name(model), name)))
                        return f"{way}.{attribute} ({type(value).__name__})"
        return None

    def _used(self, model: Model, module: nn.Module) -> ModelUse:
        known = self._use.get(model.id)
        if known is None:
            known = self._use[model.id] = ModelUse(module)
        return known

    def _replaced(self, root: nn.Module) -> Iterator[tuple[str, str | None]]:
        """The modules of a model that were set after an optimizer was made."""
        names = {id(module): name for name, module in root.named_modules()}
        for owner, _, module, line in self._set:
            found = module()
            if found is not None and owner() is not None and id(found) in names:
                yield names[id(found)], line

    def _parameter_records(self) -> Iterator[LoopParameter]:
        """Those of which a fact holds; of optimizers and models that are gone, as it was last."""
        found = dict(self._alive_parameters())
        for reference, mine in self._every:
            if reference() is not None:
                held = [id(parameter) for parameter in self._held_by(reference, mine)]
                mine.held = {number: found[number] for number in held if number in found}
                continue
            for number, one in mine.held.items():
                kept = _still(one, number, mine.parameters)
                if kept is not None:
                    found.setdefault(number, kept)
        models = {self._models.name(model) for model in self._models}
        for number, one in self._last_unheld.items():
            if one.model not in models:
                found.setdefault(number, one)
        self._last_unheld = {n: one for n, one in found.items() if not one.optimizers}
        yield from found.values()

    def _held_by(
        self, reference: weakref.ref[Optimizer], mine: _Optimizer
    ) -> Iterable[nn.Parameter]:
        """The parameters of an optimizer that are alive, though it may be gone."""
        optimizer = reference()
        if optimizer is not None:
            known = self._optimizers.known(optimizer)
            mine.name, mine.refs = known.name, tuple(map(weakref.ref, known.held))
            return known.held
        return [parameter for one in mine.refs if (parameter := one()) is not None]

    def _alive_parameters(self) -> Iterator[tuple[int, LoopParameter]]:
        names: dict[int, tuple[str, str]] = {}
        models: dict[int, nn.Module] = {}
        places: dict[int, Callable[[str], Made | None]] = {}
        alive: dict[int, nn.Parameter] = {}
        ran: set[int] = set()
        for model in self._models:
            for parameter, named in named_parameters(model.module).items():
                alive[id(parameter)] = parameter
                names[id(parameter)] = named.name, self._models.name(model)
                models[id(parameter)] = model.module
                if model.id in self._called or parameter.grad is not None:
                    ran.add(id(parameter))
        facts: dict[int, set[str]] = {}
        holders: dict[int, list[str]] = {}
        steps: dict[int, int] = {}
        since: dict[int, int] = {}
        for reference, mine in self._every:
            here = set()
            for parameter in self._held_by(reference, mine):
                number = id(parameter)
                here.add(number)
                alive[number] = parameter
                holders.setdefault(number, []).append(mine.name)
                if number not in ran and self._called:
                    facts.setdefault(number, set()).add("orphan")
            of = mine.parameters
            for number in here & (of.without or set()):
                facts.setdefault(number, set()).add("no-gradient")
                steps[number] = of.steps
            for number in here & of.zeros():
                facts.setdefault(number, set()).add("zero-gradient")
                steps[number] = of.readings_since(number)
                since[number] = of.zero[number][1]
            for number in here & of.moved.keys():
                facts.setdefault(number, set()).add("moved")
                steps[number] = of.moved[number]
        first = [mine.number for _, mine in self._every]
        for number, parameter in alive.items():
            found = facts.setdefault(number, set())
            if parameter.requires_grad and number not in holders and number in ran:
                found.add("unheld")
            if len(holders.get(number, ())) > 1:
                found.add("held-twice")
            if not parameter.requires_grad:
                found.add("untrained")
            if not found - {"untrained"}:
                continue
            if parameter.grad is not None:
                found.add("graded")
            if number in self._idle():
                found.add("idle")
            name, of_model = names.get(number, ("", ""))
            made = None
            if number in models:
                within = models[number]
                place = places.get(id(within))
                if place is None:
                    place = places[id(within)] = self._construction.places(within)
                made = place(name)
            if "no-gradient" in found and number in models and of_library(models[number], name):
                found.add("library")
            yield (
                number,
                LoopParameter(
                    name=name,
                    model=of_model,
                    shape=tuple(parameter.shape),
                    facts=frozenset(found),
                    optimizers=tuple(holders.get(number, ())),
                    steps=steps.get(number, 0),
                    since=since.get(number, 1),
                    made=None if made is None else made.line,
                    late=made is not None and any(n < made.number for n in first),
                ),
            )

    def _idle(self) -> set[int]:
        """The parameters whose module was never called."""
        return {
            id(parameter)
            for module in self._uncalled
            for parameter in module._parameters.values()
            if parameter is not None
        }

    def _clipped(self, parameters: Sequence[torch.Tensor]) -> tuple[str, frozenset[str]]:
        """Whose gradients are clipped."""
        given = {id(parameter) for parameter in parameters}
        if not given:
            return "", frozenset({"empty"})
        for optimizer in self._optimizers.alive():
            known = self._optimizers.known(optimizer)
            mine = {id(parameter) for parameter in known.held}
            if mine & given:
                return known.name, _NOTHING
        return "", frozenset({"foreign"})

    def _name(self, owner: Optimizer | nn.Module) -> str:
        """What the script calls it."""
        if isinstance(owner, Optimizer):
            return self._optimizers.known(owner).name
        for model in self._models:
            if owner is model.module_ref() or owner is model.outer():
                return self._models.name(model)
        return type(owner).__name__


def _written_step(name: str, made: ScriptLine | None) -> str | None:
    """The line that would have an optimizer make a step, in the file that made it."""
    return None if made is None else call_of(name, "step", made.file)


def _unused(optimizer: Optimizer, known: _Optimizer) -> bool:
    """Whether the last backward gave gradients to an optimizer that has made no step."""
    if known.parameters.steps or not known.fresh:
        return False
    return any(p.grad is not None for g in optimizer.param_groups for p in g["params"])


def _still(one: LoopParameter, number: int, of: HeldParameters) -> LoopParameter | None:
    """What still held of a parameter when its optimizer made its last step."""
    facts, steps = set(one.facts), one.steps
    if "no-gradient" in facts:
        steps = of.steps
        if number not in (of.without or ()):
            facts.discard("no-gradient")
    if "zero-gradient" in facts:
        if number in of.zeros():
            steps = of.readings_since(number)
        else:
            facts.discard("zero-gradient")
    if number in of.moved:
        facts.add("moved")
        steps = of.moved[number]
    return replace(one, facts=frozenset(facts), steps=steps) if facts - {"untrained"} else None
