"""Makes the record of a training loop so far, for the rules."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, SequentialSampler

from gradscope.capture.shards import is_spread
from gradscope.nesting import find
from gradscope.records.loop import LoopCause, LoopModel, LoopRecord
from gradscope.records.loop_figures import LoopFact
from gradscope.training.current_step import CurrentStep
from gradscope.training.discovery import variable_name
from gradscope.training.loop.backwards import KeptGraphs, Losses
from gradscope.training.loop.batches import Batches, BatchFacts, DataSets
from gradscope.training.loop.clipping import Clipping
from gradscope.training.loop.construction import Construction
from gradscope.training.loop.contrastive import Triplets
from gradscope.training.loop.copies import Copies
from gradscope.training.loop.custom_functions import CustomFunctions
from gradscope.training.loop.draws import Draws, Seeds
from gradscope.training.loop.eval_parts import EvalParts
from gradscope.training.loop.evaluation import EvaluationInputs, Modes
from gradscope.training.loop.flat_activations import FlatActivations
from gradscope.training.loop.initial_weights import Adapters, EqualWeights, SmallStarts
from gradscope.training.loop.loads import Checkpoints, Loads
from gradscope.training.loop.loss_graph import LossGraphs
from gradscope.training.loop.model_uses import ModelUses
from gradscope.training.loop.old_graphs import CarriedGraphs, GrowingSums
from gradscope.training.loop.optimizer_uses import OptimizerUses
from gradscope.training.loop.parameter_records import ParameterRecords
from gradscope.training.loop.q_targets import index_targets, inverted_ends, unmasked_targets
from gradscope.training.loop.redrawn_weights import RedrawnWeights
from gradscope.training.loop.rounds import Rounds, Schedulers
from gradscope.training.loop.script_lines import (
    ScriptLine,
    freezing_line,
    script_line,
    script_place,
    written_assignment,
)
from gradscope.training.loop.script_text import (
    inverted_ratios,
    last_losses,
    overfitted_batches,
    rebound_parameters,
    refitted_transforms,
    reset_returns,
    reversed_returns,
    seeded_draws,
    shuffled_alone,
    shuffled_apart,
    thawing_conditions,
    truncated_masks,
    written_dropout,
    written_views,
)
from gradscope.training.loop.shared_arrays import SharedArrays
from gradscope.training.loop.token_targets import TokenTargets
from gradscope.training.models import Model, Models
from gradscope.training.optimizers import ObservedOptimizer, Optimizers

_NOTHING: frozenset[str] = frozenset()
#: Facts of a backward that adds the same gradients again.
_AGAIN = frozenset({"repeated", "part"})


class Loop:
    """Receives the events of a loop, and makes its record.

    Attributes:
        changed: True if a module was set since the last search for models.
        copies: copies of models that no optimizer holds.
        tokens: the relation of targets to tokens.
        functions: the script's own autograd functions.
        optimizer_uses: facts on the optimizers.
        model_uses: facts on the models.

    Args:
        models: the trained models.
        optimizers: all optimizers.
    """

    def __init__(self, models: Models, optimizers: Optimizers) -> None:
        self._models, self._optimizers = models, optimizers
        self._rounds = Rounds()
        self._batches, self._losses, self._modes = Batches(), Losses(), Modes()
        self._graphs, self._schedulers = KeptGraphs(), Schedulers()
        self.tokens, self._clipping = TokenTargets(), Clipping()
        self._loss_graphs = LossGraphs(self.tokens)
        self._draws, self._data, self._seeds = Draws(), DataSets(), Seeds()
        self.functions, self.copies = CustomFunctions(), Copies(models)
        self._batch_facts, self._equal_weights = BatchFacts(), EqualWeights()
        self._small_starts = SmallStarts()
        self._inputs, self._adapters = EvaluationInputs(), Adapters()
        self._triplets, self._flat = Triplets(), FlatActivations()
        self._shared, self._eval_parts = SharedArrays(), EvalParts()
        self._sums, self._carried = GrowingSums(), CarriedGraphs()
        self._construction = construction = Construction()
        models.registered = construction.modules
        self.optimizer_uses = uses = OptimizerUses(models, optimizers)
        self.model_uses = model_uses = ModelUses(models, optimizers, construction)
        model_uses.entered = self._batches.entered
        self._loads = Loads(uses)
        self._checkpoints = Checkpoints(uses)
        self._parameters = ParameterRecords(models, uses, model_uses, construction)
        # Events that one part alone needs.
        self.scheduler_made, self.scored = self._schedulers.made, self._draws.scored
        self.batch_drawn, self.used_up = self._data.batch_drawn, self._data.used_up
        self.read = self._checkpoints.read
        self._redrawn = RedrawnWeights(uses)
        # By line: in how many steps parameters were made within a model's call, and the last.
        self._made_inside: dict[str, tuple[int, int]] = {}
        self._clips: dict[tuple[int, int], tuple[str, frozenset[str]]] = {}
        self._steps = self._loader = self._sample = 0
        #: How many have begun.
        self.backwards = 0
        self._last_backward: str | None = None
        self._loader_at: str | None = None
        # Iterations over loaders and their batches, and how many of both came before a step.
        self._epochs, self._at_step = 0, (0, 0)
        self._first_epoch: tuple[str | None, int | None] = (None, None)
        self._scaled = self.changed = False
        self._registrations = 0
        # Registrations when a line made an optimizer last; the lines whose optimizers hold
        # parameters that differ, though nothing was registered, as those of a deep copy.
        self._made_at: dict[ScriptLine | None, int] = {}
        self._made_for_others: set[ScriptLine | None] = set()

    # ---------------------------------------------------------------- moments

    def optimizer_made(self, optimizer: Optimizer) -> bool:
        """Note a new optimizer, which has no parameters yet; return True if its models may be new.

        They are not if the same line made one before and no module has changed since.
        """
        line = script_line()
        self.optimizer_uses.add(optimizer, line, self._construction.now())
        before = self._made_at.get(line)
        self._made_at[line] = self._registrations
        return before != self._registrations or line in self._made_for_others

    def module_set(self, owner: nn.Module, name: str, module: nn.Module) -> None:
        """Note a module that becomes the child of another.

        After an optimizer was made, the parent may be a new model.
        """
        self._registrations += 1
        self._construction.module_set(owner, module)
        if any(not use.parameters.steps for _, use in self.optimizer_uses):
            line = script_line()
            self.model_uses.module_set(owner, module, str(line))
            self.changed = True

    def parameter_set(self, owner: nn.Module, name: str, parameter: nn.Parameter) -> None:
        """Note a parameter that is set on a module."""
        self._registrations += 1
        self._construction.parameter_set(owner, name)
        if self._loss_graphs.inside and (line := script_line()) is not None:
            count, last = self._made_inside.get(str(line), (0, -1))
            if last != self._steps:
                self._made_inside[str(line)] = count + 1, self._steps

    def made_at(self, model: int, name: str) -> str | None:
        """Return the line of the script that made a module or a parameter, by the model's
        number."""
        for one in self._models:
            if one.id == model:
                made = self._construction.places(one.module)(name)
                return None if made is None else made.line
        return None

    def steps_ended(self) -> int:
        """Return the number of steps that have ended, of all optimizers."""
        return self._steps

    @property
    def wants_models(self) -> bool:
        """True if models must be searched again: a module was set, or the first backward begins and
        no known model has run.
        """
        return self.changed or not (self.backwards or self.model_uses.called)

    def epoch_begins(self, loader: DataLoader[Any]) -> None:
        """Note a new iteration over a data loader."""
        with contextlib.suppress(TypeError):  # a stream has no length
            self._loader = max(self._loader, len(loader))
        if self._loader_at is None:
            in_order = isinstance(getattr(loader, "sampler", None), SequentialSampler)
            name = variable_name(loader) if in_order else None
            self._loader_at = (name and written_assignment(name)) or ""
        location = self._rounds.add("epoch").location
        if not self._epochs:
            self._first_epoch = location, loader.batch_size
        self._epochs += 1

    def clearing(self) -> None:
        """Note the start of ``zero_grad``, perhaps on other parameters."""
        self.optimizer_uses.count_unused(self._last_backward)
        for _, known in self.optimizer_uses:
            known.fresh = False
            known.use.clearing()

    def cleared(self, owner: Optimizer | nn.Module) -> None:
        """Note the end of ``zero_grad``."""
        for _, known in self.optimizer_uses:
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
        sampled: bool,
    ) -> None:
        """Note a call of a trained model, perhaps in a sampled step."""
        module = model.module_ref()
        if module is None:
            return
        known = self.model_uses.use(model, module)
        self.model_uses.called.add(model.id)
        self._data.called()
        if gradients:
            self._eval_parts.called(module)
            self.model_uses.called_with_gradients(model, known, (args, kwargs))
            self._batches.called(model.id, args, kwargs)
            if sampled:
                self._batch_facts.called(model.id, args, kwargs)
                self._inputs.called(model.id, args, kwargs)
                self.tokens.called(model.id, args, kwargs)
            self._loss_graphs.called(model.id, (args, kwargs), sampled=sampled)
            if self._draws.waits:
                self._draws.given(tensor for _, tensor in find((args, kwargs), torch.Tensor))
            for use in self.optimizer_uses.others():
                use.use.called()
            event = self._rounds.add("call", self._models.name(model), self._modes.call(module))
            known.called_at = known.called_at or event.location
        else:
            known.evaluated(module)
            self._inputs.evaluated(model.id, args, kwargs)
            self._batches.evaluated_on(model.id, args, kwargs)
            facts = self._modes.evaluation(module, args, kwargs)
            event = self._rounds.add("evaluation", self._models.name(model), facts)
            if "train" in facts:
                known.evaluated_at = known.evaluated_at or event.location

    def returned(self, model: Model, output: object) -> None:
        """Note the return of a model that was called with gradients."""
        self._loss_graphs.returned(model.id, output)
        self._batch_facts.returned(model.id, output)
        self.tokens.returned(model.id, output)
        module = model.module_ref()
        if module is not None and not module.training:
            self._graphs.evaluated(output, self._steps)

    def seeded(self, seed: object) -> None:
        """Note a call of ``torch.manual_seed``."""
        self._seeds.seeded(seed, self._steps)

    def loaded(self, module: nn.Module, result: object) -> None:
        """Note the keys that did not match in a module's ``load_state_dict``."""
        self._loads.matched(module, result)
        self._loss_graphs.heads.loaded(module)
        self._checkpoints.loaded(module)
        for model in self._models:
            if module is model.module_ref() or module is model.outer():
                others = [one.module for one in self._models if one is not model]
                self._loads.loaded(model.id, model.module, others)

    def drew(self, distribution: object, drawn: object) -> None:
        """Note a sample of a distribution."""
        self._draws.drew(distribution, drawn, self._steps, inside=self._loss_graphs.inside)

    def filled(self, tensor: torch.Tensor) -> None:
        """Note a tensor that ``torch.nn.init`` filled with one number."""
        self._equal_weights.filled(tensor, script_place())

    def drawn(self, tensor: torch.Tensor, normal: bool) -> None:
        """Note a tensor that ``torch.nn.init`` set to random numbers, of a given deviation if they
        are ``normal``."""
        if torch._C._are_functorch_transforms_active():
            return  # one tensor stands for many
        self._redrawn.drawn(tensor)
        self._small_starts.drawn(tensor, normal=normal)

    def asked_without_graph(self) -> None:
        """Note a ``torch.autograd.grad`` without ``create_graph`` for a tensor that is not a
        parameter."""
        self._loss_graphs.asked = script_line()

    def diverged(self, given: object, target: object, log_target: object) -> None:
        """Note the arguments of ``kl_div``."""
        if not isinstance(given, torch.Tensor) or not isinstance(target, torch.Tensor):
            return
        if self._loss_graphs.sampled and given.requires_grad and torch.is_grad_enabled():
            self._loss_graphs.divergence(given, target, log_target=bool(log_target))

    def tripled(self) -> None:
        """Note a call of a triplet loss that is about to run."""
        if torch.is_grad_enabled():
            self._triplets.compared(script_line())

    def restoring(self, optimizer: Optimizer) -> None:
        """Note that a state is about to be loaded into an optimizer."""
        self.optimizer_uses.restoring(optimizer)

    def restored(self, optimizer: Optimizer) -> None:
        """Note that the optimizer's state was loaded."""
        self._checkpoints.optimizer_loaded()
        self.optimizer_uses.restored(optimizer)

    @property
    def wants_stacks(self) -> bool:
        """True if the lines of operations in a model are needed at the next step."""
        return self._loss_graphs.wants_stacks

    def backward_begins(
        self,
        roots: Sequence[Any],
        loss: float | None,
        *,
        scale: float | None,
        sample: int,
        given: bool = False,
    ) -> None:
        """Note a backward; its graph is complete.

        Args:
            loss: the loss's value; None if it is not a single number.
            scale: a gradient scaler's factor in it; None without one.
            sample: the number of the current sample; 0 without one.
            given: True if the script gave it a gradient.
        """
        self.backwards += 1
        self._scaled = self._scaled or scale is not None
        if loss is not None and scale:
            loss = loss / scale
        facts = self._losses.backward_begins(roots, loss)
        if facts & _AGAIN and not self._has_gradients():
            facts -= _AGAIN  # the script cleared them itself
        line = self._rounds.add("backward", "", facts).location
        self.optimizer_uses.count_unused(self._last_backward)
        for _, known in self.optimizer_uses:
            known.fresh = True
            known.use.backward_begins(line)
        self._last_backward = line
        self._carried.backward_begins(roots, line, self._steps if self.optimizer_uses else None)
        self._graphs.backward_begins(roots, self._steps + 1, self.backwards, sample)
        self._loss_graphs.backward_begins(roots, sampled=sample > 0, given=given)
        if sample:
            self.model_uses.sampled(roots)
            if not any(True for _ in self._models):
                self._flat.backward_begins(roots)
        if sample and sample != self._sample:
            self._sample = sample
            self._equal_weights.read(self._models)
            self._shared.read(sample)
            self._sums.read(sample, self._steps)
            if sample > 1:
                self._adapters.read(self._models)

    def clipped(self, parameters: Sequence[torch.Tensor], norm: object, bound: object) -> None:
        """Note the clipping of these parameters' gradients; ``norm`` is their norm before."""
        if isinstance(bound, int | float) and math.isinf(bound):
            return  # it only measures the norm
        key = (id(parameters[0]), len(parameters)) if parameters else (0, 0)
        found = self._clips.get(key)
        if found is None:
            found = self._clips[key] = self._clipped(parameters)
        of, facts = found
        for optimizer, known in self.optimizer_uses:
            if self._name(optimizer) == of:
                if known.parameters.steps and not known.use.backwards:
                    facts = facts | {"cleared" if known.use.is_cleared else "used"}
                if self._scaled and not known.unscaled:
                    facts = facts | {"scaled"}
        location = self._rounds.add("clip", of, facts).location
        if of and isinstance(bound, int | float) and not facts & {"used", "cleared"}:
            self._clipping.clipped(of, norm, float(bound), location)

    def unscaled(self, optimizer: Optimizer) -> None:
        """Note that a gradient scaler divided an optimizer's gradients."""
        known = self.optimizer_uses.get(optimizer)
        if known is not None:
            known.unscaled = True
        self._rounds.add("unscale", self._name(optimizer))

    def scale_updated(self) -> None:
        """Note that a gradient scaler updated its scale."""
        for _, known in self.optimizer_uses:
            known.unscaled = False
        self._rounds.add("scaler-update")

    def step_begins(
        self, optimizer: Optimizer, known: ObservedOptimizer, *, closure: bool = False
    ) -> None:
        """Note the start of a step: gradients are final, unless a closure computes them."""
        uses = self.optimizer_uses
        mine = uses.get(optimizer) or uses.add(optimizer, None, self._construction.now())
        if not mine.parameters.steps:
            mine.name = known.name
            if uses.begins(mine, known):
                self._made_for_others.add(mine.made)
                self.changed = True
        mine.facts = mine.use.step_begins(closure=closure)
        mine.parameters.step_begins(
            known.held, optimizer.param_groups, cleared="cleared" in mine.facts
        )

    def gradients_read(
        self, optimizer: Optimizer, known: ObservedOptimizer, step: CurrentStep
    ) -> None:
        """Note that all gradients of the current step were read."""
        mine = self.optimizer_uses[optimizer].parameters
        mine.read(step.gradients.norms, known.held, self._steps + 1)
        for _, other in self.optimizer_uses:
            other.parameters.backward_gave(step.gradients.norms)
        before, after, scale = step.gradient_norm, step.clipped_norm, step.scale
        if getattr(optimizer, "grad_scale", None) is not None:
            return  # it divides by the scale within its step
        if not mine.are_scaled(before, after, scale):
            self._clipping.measured(known.name, before, after)

    def step_ended(self, optimizer: Optimizer, known: ObservedOptimizer) -> None:
        """Note the end of a step."""
        self._steps += 1
        self._sums.step_ended()
        mine = self.optimizer_uses[optimizer]
        mine.parameters.step_ended()
        self.model_uses.step_ended()
        if mine.parameters.steps == 1 and self.optimizer_uses.begins_phase(mine):
            self._parameters.phase_begins()
        mine.use.step_ended()
        self._batches.step_ended()
        self._at_step = self._epochs, self._data.drawn
        for other in self.optimizer_uses.others(optimizer):
            other.use.other_stepped(self._last_backward)
        for name in self._schedulers.stepped():
            self._rounds.add("schedule", name)
        self._rounds.end(self._steps, known.name, mine.facts)
        self._loss_graphs.step_ended(known.name)
        self._draws.others.step_ended()
        self._scaled = False

    def close(self) -> None:
        """Remove all hooks."""
        self.model_uses.close()
        self.copies.close()
        self._sums.close()

    # ---------------------------------------------------------------- record

    def record(
        self,
        *,
        ended: bool,
        cut: bool = False,
        causes: Iterable[LoopCause] = (),
        untraced: str = "",
    ) -> LoopRecord:
        """Return the record of the loop so far; the arguments are fields of the record."""
        kept = self._graphs.alive()
        evaluations = self._graphs.alive_evaluations(self._steps)
        self._schedulers.stepped()
        return LoopRecord(
            steps=self._steps,
            backwards=self.backwards,
            rounds=self._rounds.all(),
            rest=self._rounds.rest,
            optimizers=tuple(self.optimizer_uses.records()),
            models=self._models_with_loads(),
            schedulers=self._schedulers.records(self._name),
            parameters=tuple(self._parameters.records()),
            same_batch=self._same_batch(),
            same_tensor=self._batches.same_tensor,
            loader=self._loader,
            loader_at=self._loader_at or None,
            same_loss=self._losses.same,
            first_loss=self._losses.first,
            kept_graphs=len(kept),
            kept_since=kept[0][0] if kept else 0,
            kept_of=self.backwards - kept[0][1] + 1 if kept else 0,
            kept_by=self._graphs.keeper() if max(len(kept), len(evaluations)) > 4 else None,
            kept_evaluations=len(evaluations),
            evaluation_rounds=len(set(evaluations)),
            evaluations_since=evaluations[0] if evaluations else 0,
            causes=tuple(causes),
            untraced=untraced,
            batches_differ=self._batches.differ,
            graphs=self._loss_graphs.read,
            operations=self._loss_graphs.operations(),
            targets=self._loss_graphs.targets(),
            reaches=self._loss_graphs.reaches(),
            clippings=tuple(self._clipping.records()),
            draws=self._draws.records(),
            batches=tuple(self._batch_facts.records()),
            tokens=tuple(self.tokens.records()),
            made_in_forward=tuple((line, one[0]) for line, one in self._made_inside.items()),
            inputs=tuple(self._inputs.records()),
            adapters=tuple(self._adapters.records(self._models, self.made_at)),
            functions=self.functions.records(),
            empty_loads=tuple(self._loads.empty),
            left_states=tuple(self._checkpoints.left()),
            copies=tuple(self.copies.records(self._steps, compare=ended)),
            equal_units=tuple(self._equal_weights.records(self._models)),
            facts=tuple(self._facts(ended=ended)),
            course=self._losses.course,
            frozen_at=freezing_line() if ended else None,
            ended=ended,
            cut=cut,
        )

    def _facts(self, *, ended: bool) -> Iterator[LoopFact]:
        yield from self.model_uses.facts()
        yield from self._data.facts()
        yield from self._seeds.facts()
        yield from self._schedulers.facts()
        yield from self._triplets.facts()
        yield from self._flat.facts()
        yield from self._shared.facts()
        yield from self._redrawn.facts()
        yield from self._loss_graphs.critics.facts()
        yield from self._eval_parts.facts(self._models, self.optimizer_uses.graded())
        yield from self._sums.facts()
        yield from self._carried.facts()
        yield from self._small_starts.facts(self._models)
        yield from self._draws.others.facts()
        other = ("evaluated",) if self._batches.evaluated or self._batches.differ else ()
        yield from self._one_batch(other)
        yield from self._loss_graphs.heads.facts(self._models, self._optimizers.alive())
        yield from seeded_draws() if self._batches.same else ()
        for one in overfitted_batches() if self._batches.same else ():
            yield replace(one, words=(*one.words, *other))
        if ended:
            yield from shuffled_alone()
            yield from shuffled_apart()
            yield from written_views()
            yield from last_losses()
            yield from rebound_parameters()
            yield from index_targets()
            yield from unmasked_targets()
            yield from inverted_ends()
            yield from inverted_ratios()
            yield from reversed_returns()
            yield from reset_returns()
            if not any(use.parameters.thawed for _, use in self.optimizer_uses.every):
                yield from thawing_conditions()
            yield from truncated_masks()
            yield from refitted_transforms()
        for model in self._models if ended else ():
            for one in written_dropout(model.module.modules()):
                yield replace(one, model=self._models.name(model))

    def _has_gradients(self) -> bool:
        """Return True if a parameter of an optimizer has a gradient other than zero, or there is no
        optimizer."""
        held = self._optimizers.held()
        given = [p.grad for p in held if p.grad is not None]
        return not held or any(is_spread(one) or bool(one.detach().any()) for one in given)

    def _same_batch(self) -> int:
        """Return the number of calls with equal inputs; of layers, if the loader's draws agree."""
        mine, repeats = self._batches, self._data.repeats
        return min(mine.same, repeats) if mine.layers else mine.same

    def _one_batch(self, other: tuple[str, ...]) -> Iterator[LoopFact]:
        """Yield a fact if every step trains on the one batch that a loader gave before it."""
        mine, (location, size) = self._batches, self._first_epoch
        differ = mine.differ and not mine.trains
        if differ or self._at_step != (1, 1) or self._loader < 2 or size != mine.rows:
            return
        yield LoopFact(
            "one-batch", count=mine.same, words=other, figures=(float(self._loader),),
            location=location,
        )  # fmt: skip

    def _models_with_loads(self) -> tuple[LoopModel, ...]:
        found = []
        for one in self.model_uses.records():
            undone, where = self._loads.undone(one.id)
            found.append(replace(one, undone=undone, undone_at=where))
        return tuple(found)

    def _clipped(self, parameters: Sequence[torch.Tensor]) -> tuple[str, frozenset[str]]:
        """Return the optimizer whose gradients are clipped, with facts on the call."""
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
        """Return the script's variable name for a model or an optimizer."""
        if isinstance(owner, Optimizer):
            return self._optimizers.known(owner).name
        for model in self._models:
            if owner is model.module_ref() or owner is model.outer():
                return self._models.name(model)
        return type(owner).__name__
