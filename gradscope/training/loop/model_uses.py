"""Records how a loop uses its models, alive or freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from gradscope.capture.differences import fingerprints
from gradscope.capture.hooks import OwnHook, hook_calls, hook_first_call, hookable_modules
from gradscope.capture.names import modules_by_name
from gradscope.capture.remembered import remembered
from gradscope.capture.shards import PLAIN
from gradscope.nesting import find
from gradscope.records.loop import LoopModel, PlainTensor
from gradscope.records.loop_figures import LoopFact
from gradscope.training.guard import Guard
from gradscope.training.loop.construction import Construction
from gradscope.training.loop.model_structure import (
    ACTIVATIONS,
    FirstInputs,
    attribute_line,
    layer_pairs,
    plain_tensors,
    repeated_at,
    repeated_modules,
    unused_activations,
)
from gradscope.training.loop.script_lines import (
    copying_line,
    mode_line,
    script_place,
    train_line,
    written_call,
)
from gradscope.training.models import Model, Models
from gradscope.training.optimizers import Optimizers


class ModelUse:
    """The use of one model.

    Attributes:
        calls: the number of calls with gradients enabled.
        evaluations: the number of calls without.
        steps: the number of steps, of any optimizer, with a call with gradients.
    """

    def __init__(self, module: nn.Module) -> None:
        self.calls = self.evaluations = self.steps = 0
        #: The line of the first call with gradients.
        self.called_at: str | None = None
        #: The line of the first call without gradients and in train mode.
        self.evaluated_at: str | None = None
        self._digest = digest(module)
        self._same = True
        self._plain: dict[tuple[str, str], tuple[Callable[[], torch.Tensor | None], int]] = {}

    def evaluated(self, module: nn.Module) -> None:
        """Note a call without gradients."""
        self.evaluations += 1
        if self.evaluations & (self.evaluations - 1) == 0:  # the 1st, 2nd, 4th …: it reads memory
            self.compare(module)

    def compare(self, module: nn.Module) -> None:
        """Compare the weights of a model that is only evaluated with its first ones."""
        if self.evaluations and not self.calls and self._same:
            self._same = self._digest == digest(module)

    def lasting(self, module: nn.Module, held: Collection[int]) -> Iterator[PlainTensor]:
        """Yield plain tensors that existed at the last record and were not written to since.

        This excludes stored inputs, which are new tensors each time, and tensors that the script
        itself updates.
        """
        before, self._plain = self._plain, {}
        for found, leaf in plain_tensors(module, held):
            path = found.module, found.attribute
            self._plain[path] = remembered(leaf), leaf._version
            known, version = before.get(path, (lambda: None, 0))
            if known() is leaf and version == leaf._version:
                yield found

    @property
    def is_unchanged(self) -> bool:
        """True if the model was only evaluated, with the weights that it had at first."""
        return bool(self.evaluations) and not self.calls and self._same


class ModelUses:
    """The uses of all models.

    Attributes:
        called: the numbers of the models that ran.
        entered: gets the arguments of a layer that the script calls itself, with a number for the
            layer, and True if gradients are enabled.

    Args:
        models: the trained models.
        optimizers: all optimizers.
        construction: the lines that made modules.
    """

    def __init__(self, models: Models, optimizers: Optimizers, construction: Construction) -> None:
        self.called: set[int] = set()
        self.entered: Callable[[int, Sequence[Any], Mapping[str, Any], bool], None] | None = None
        self._entries: weakref.WeakKeyDictionary[nn.Module, OwnHook] = weakref.WeakKeyDictionary()
        self._models, self._optimizers, self._construction = models, optimizers, construction
        self._use: dict[int, ModelUse] = {}
        self._last: dict[int, LoopModel] = {}
        self._signatures: dict[int, object] = {}
        self._running: set[int] = set()  # those called with gradients since the last step
        self._set: list[tuple[weakref.ref[nn.Module], weakref.ref[nn.Module], str | None]] = []
        self._noticed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._new: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # made after an optimizer
        self._first_inputs = FirstInputs()
        self._called_at: weakref.WeakKeyDictionary[nn.Module, str | None] = (
            weakref.WeakKeyDictionary()
        )
        self._pairs = set[tuple[int, int]]()
        self._uncalled: weakref.WeakKeyDictionary[nn.Module, OwnHook] = weakref.WeakKeyDictionary()

    def observe(self, models: Iterable[Model], guard: Guard) -> None:
        """Hook the first call of each activation, and of each module that owns parameters."""
        for model in models:
            outer, module = model.outer(), model.module_ref()
            if module is not None:
                self.use(model, module)
            if outer is None or model.compiled:
                continue
            for module in hookable_modules(outer):
                owns = any(one is not None for one in module._parameters.values())
                if (owns or isinstance(module, ACTIVATIONS)) and module not in self._noticed:
                    self._noticed.add(module)
                    enters = guard.in_training(partial(self._enters, model.id), trains=False)
                    ran = guard(partial(self._ran, weakref.ref(module), model.id, enters))
                    self._uncalled[module] = hook_first_call(module, ran)

    def _ran(
        self,
        module: weakref.ref[nn.Module],
        model: int,
        enters: Callable[..., None],
        args: Sequence[Any],
    ) -> None:
        found = module()
        if found is not None:
            self._uncalled.pop(found, None)
            self._called_at[found] = script_place()
            self._first_inputs.called(found, args)
            if model not in self.called:  # its own forward has never begun
                (self._entries[found],) = hook_calls(found, enters, None)
                self._enters(model, found, args, {})

    def _enters(
        self, model: int, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Note a call of a layer; of no more calls if its model or another layer calls it."""
        hook = self._entries.get(module)
        if hook is None:  # of a layer that shares the hooks of another, as after `vars(a).update`
            return
        gradients = torch.is_grad_enabled()
        given = [tensor for _, tensor in find((args, kwargs), torch.Tensor)]
        if model in self.called or any(one.grad_fn is not None for one in given):
            del self._entries[module]
            hook.remove()
        elif self.entered is not None:
            self.entered(id(module), args, kwargs, gradients)

    def close(self) -> None:
        """Remove the hooks: modules that were never called are unknown from now on."""
        for hook in (*self._uncalled.values(), *self._entries.values()):
            hook.remove()
        self._uncalled.clear()
        self._entries.clear()

    def module_set(self, owner: nn.Module, module: nn.Module, line: str | None) -> None:
        """Note a module that was set after an optimizer was made."""
        if not owner._modules:  # its first child: the owner is new too
            self._new.add(owner)
        self._set.append((weakref.ref(owner), weakref.ref(module), line))

    def sampled(self, roots: Sequence[object]) -> None:
        """Read a complete graph of a loss, in a sampled step."""
        if any(isinstance(module, ACTIVATIONS) for module in self._uncalled):
            self._pairs |= {(id(one.first), id(one.second)) for one in layer_pairs(roots)}

    def facts(self) -> Iterator[LoopFact]:
        """Exact facts on the models' modules."""
        for one in self._first_inputs.facts(self._models):
            yield replace(one, location=one.location or self._made(one.model, one.name))
        unused = [one for one in self._uncalled if isinstance(one, ACTIVATIONS)]
        for model in self._models:
            name, modules = self._models.name(model), modules_by_name(model.module)
            for one in unused_activations(model.module, self._pairs, unused):
                line = self._called_at.get(modules[one.name])
                yield replace(one, model=name, location=line)
            for one in repeated_modules(modules):
                line = repeated_at(self._construction.made(modules[one.name]))
                if line is not None:
                    yield replace(one, model=name, location=line)

    def called_at(self, model: int, name: str) -> str | None:
        """Return the line of a module's first call, by the model's number; "" is the model."""
        for one in self._models:
            if one.id == model:
                modules = modules_by_name(one.module)
                line = self._called_at.get(modules.get(name, one.module))
                inside = (m for path, m in modules.items() if name and path.startswith(f"{name}."))
                line = line or next(filter(None, map(self._called_at.get, inside)), None)
                known = self._use.get(model) if not name else None
                return line or (None if known is None else known.called_at)
        return None

    def _made(self, model: str, name: str) -> str | None:
        for one in self._models:
            if self._models.name(one) == model:
                return self._construction.line_of(modules_by_name(one.module)[name])
        return None

    def idle(self) -> set[int]:
        """Return the parameters whose module was never called."""
        return {
            id(parameter)
            for module in self._uncalled
            for parameter in module._parameters.values()
            if parameter is not None
        }

    def called_with_gradients(self, model: Model, use: ModelUse, given: object) -> None:
        """Note a call with gradients enabled, on these arguments."""
        if not use.calls:
            tensors = (one for _, one in find(given, torch.Tensor) if type(one) in PLAIN)
            self._first_inputs.entered(model.module, tensors)
        use.calls += 1
        self._running.add(model.id)

    def step_ended(self) -> None:
        """Note the end of a step of any optimizer."""
        for number in self._running:
            self._use[number].steps += 1
        self._running.clear()

    def use(self, model: Model, module: nn.Module) -> ModelUse:
        """Return the record of a model's use; creates it at first."""
        known = self._use.get(model.id)
        if known is None:
            known = self._use[model.id] = ModelUse(module)
        return known

    def records(self) -> tuple[LoopModel, ...]:
        """Return the records of live models, and of models that lived at the last record."""
        held = {id(parameter) for parameter in self._optimizers.held()}
        for model in self._models:
            module = model.module
            use = self.use(model, module)
            use.compare(module)
            parameters = list(dict.fromkeys(module.parameters()))
            wanted = [p for p in parameters if p.requires_grad]
            module_is_held = not wanted or any(id(p) in held for p in wanted)
            kept_in, kept_at = (None, None) if module_is_held else self._kept_in(module)
            slow = dict(_slow_norms(module)) if use.calls else {}
            self._last[model.id] = LoopModel(
                id=model.id,
                name=self._models.name(model),
                kind=type(module).__name__,
                calls=use.calls,
                evaluations=use.evaluations,
                trainable=len(wanted),
                held=sum(id(p) in held for p in wanted),
                parameters=len(parameters),
                replaced=tuple(self._replaced(module, held)),
                made=self._construction.line_of(module) or copying_line(self._models.name(model)),
                lost_at=copying_line(self._models.name(model), returned=False),
                kept_in=kept_in,
                kept_at=kept_at,
                plain_tensors=tuple(use.lasting(module, held)) if use.calls else (),
                eval_at=written_call(self._models.name(model), "eval")
                or mode_line(self._models.name(model)),
                train_at=_train_line(self._models.name(model), use),
                fixed_norms=tuple(_fixed_norms(module)) if use.calls else (),
                slow_norms=tuple(slow),
                slow_norm=next(iter(slow.values()), (0.0, 0)),
            )
            self._signatures[model.id] = signature(module)
        alike: dict[object, list[int]] = {}
        for number in sorted(self._last):
            alike.setdefault(self._signatures[number], []).append(number)
        return tuple(
            replace(
                one,
                calls=self._use[number].calls,
                evaluations=self._use[number].evaluations,
                steps=self._use[number].steps,
                unchanged=self._use[number].is_unchanged,
                twins=tuple(n for n in alike[self._signatures[number]] if n != number),
            )
            for number, one in sorted(self._last.items())
        )

    def _replaced(self, root: nn.Module, held: Collection[int]) -> Iterator[tuple[str, str | None]]:
        """Yield the modules of a model that were set after an optimizer was made; the model itself
        if it is new, with none of the optimizers' parameters.
        """
        if root in self._new and not any(id(one) in held for one in root.parameters()):
            yield "", self._construction.line_of(root)
            return
        names = {id(module): name for name, module in root.named_modules()}
        for owner, module, line in self._set:
            found = module()
            if found is not None and owner() is not None and id(found) in names:
                yield names[id(found)], line

    def _kept_in(self, module: nn.Module) -> tuple[str | None, str | None]:
        """Return the plain container, in another model's module, that holds this module, and the
        line that sets it."""
        for model in self._models:
            for name, owner in model.module.named_modules():
                for attribute, value in vars(owner).items():
                    if attribute.startswith("_") or not isinstance(value, list | tuple | dict):
                        continue
                    items = value.values() if isinstance(value, dict) else value
                    if any(one is module for one in items):
                        way = ".".join(filter(None, (self._models.name(model), name)))
                        kept = f"{way}.{attribute} ({type(value).__name__})"
                        return kept, attribute_line(owner, attribute)
        return None, None


def _train_line(name: str, use: ModelUse) -> str | None:
    """Return the line that puts a model into train mode before it is evaluated, if the call is that
    of the training."""
    same = use.evaluated_at is not None and use.evaluated_at == use.called_at
    return train_line(name, use.evaluated_at) if same else None


def signature(module: nn.Module) -> object:
    """Return a key that two models of one class and equal parameter shapes share."""
    return type(module), tuple(tuple(parameter.shape) for parameter in _parameters(module))


def digest(module: nn.Module) -> str:
    """Return a digest of the last trainable parameter, which any update of the model changes."""
    plain = plain_parameters(module)
    plain = [one for one in plain if one.requires_grad] or plain
    return fingerprints(plain[-1:])[0] if plain else ""


def plain_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters with readable numbers."""
    return [one for one in _parameters(module) if _is_plain(one)]


def _is_plain(parameter: nn.Parameter) -> bool:
    there = parameter.device.type != "meta" and parameter.layout == torch.strided
    return there and type(parameter.data) is torch.Tensor


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters with a known shape."""
    return [one for one in module.parameters() if not (is_lazy(one) or one.is_nested)]


def _fixed_norms(model: nn.Module) -> Iterator[str]:
    """Yield the batch norms whose running statistics still have their initial values."""
    for name, module in model.named_modules():
        if not isinstance(module, _NormBase) or module.momentum != 0:
            continue
        mean, variance = module.running_mean, module.running_var
        if mean is not None and variance is not None and not mean.any() and (variance == 1).all():
            yield name


#: A batch norm that has read fewer batches is not called slow.
_READ = 50


def _slow_norms(model: nn.Module) -> Iterator[tuple[str, tuple[float, int]]]:
    """Yield the batch norms whose running statistics are still for more than half the initial ones,
    with the momentum and the number of batches that they have read."""
    for name, module in model.named_modules():
        if not isinstance(module, _NormBase) or not module.momentum or module.running_mean is None:
            continue
        counted = module.num_batches_tracked
        # With the usual momentum the counter, which may be on a GPU, is not read.
        usual = (1 - module.momentum) ** _READ <= 0.5
        if usual or counted is None or counted.is_meta:
            continue
        batches = int(counted)
        if batches >= _READ and (1 - module.momentum) ** batches > 0.5:
            yield name, (float(module.momentum), batches)
