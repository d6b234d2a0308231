"""Hooks that change tensors in a step, with their values before and after. They are set before all
other hooks of gradscope, so every record contains the changes. An action is a file of ``actions/``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gradscope.actions import Intervention
from gradscope.capture.calls import call_tensors, in_backward
from gradscope.capture.gradients import GradientCache, GradientSlot
from gradscope.capture.hooks import Handle, hook_tensor, hooked
from gradscope.capture.measurements import is_floating, version
from gradscope.capture.names import first_names, module_names
from gradscope.capture.stats import resolve
from gradscope.errors import ConfigError
from gradscope.nesting import find, replaced
from gradscope.records.full_samples import Change
from gradscope.records.tensors import TensorStats

_NO_CALL = "the layer did not run"
_NO_TENSOR = "it returned no floating tensor"
_NO_GRADIENT = "no gradient arrived"
_HIDDEN = "no gradient arrived, or a write in place through this view hid it"
_FROZEN = "needs no gradient"
_SCRIPTED = "a scripted module cannot have hooks"

# : Key of a changed tensor: the intervention's number, the module's or parameter's name, the call,
# the path.
_Key = tuple[int, str, int | None, str]
#: Our copies that a call got as arguments, each with its version.
_Copies = list[tuple[torch.Tensor, int]]


@dataclass(slots=True)
class _Place:
    """One changed tensor: its values before and after."""

    before: GradientSlot
    after: GradientSlot
    note: str | None = None


@dataclass
class Interventions:
    """The interventions of a run, set as hooks while ``installed``.

    Attributes:
        model: the model with their modules and parameters.
        wanted: the interventions, in the order in which they apply.
        accumulate: add up the gradients of several backwards.
    """

    model: nn.Module
    wanted: Sequence[Intervention]
    accumulate: bool = False
    _places: dict[_Key, _Place] = field(default_factory=dict)
    _calls: Counter[tuple[int, nn.Module]] = field(default_factory=Counter)
    _cache: GradientCache = field(default_factory=GradientCache)
    _handles: list[Handle] = field(default_factory=list)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Apply the interventions until the block ends."""
        with ExitStack() as hooks:
            for number, one in enumerate(self.wanted):
                for name, target in self._targets(one).items():
                    if isinstance(target, nn.Parameter):
                        self._at_parameter(number, name, target, hooks)
                    elif not isinstance(target, torch.jit.ScriptModule):
                        self._at_module(number, name, target, hooks)
            hooks.callback(self.begin)
            yield

    def begin(self) -> None:
        """Forget the results of an earlier step, and remove its hooks from tensors that still
        exist."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._places.clear()
        self._calls.clear()

    def changes(self) -> tuple[Change, ...]:
        """Return the changes since ``begin``, also those that did not happen, in the interventions'
        order."""
        order = {
            (number, name): place
            for number, one in enumerate(self.wanted)
            for place, name in enumerate(self._targets(one))
        }
        for number, name in order.keys() - {key[:2] for key in self._places}:
            self._place((number, name, None, "")).note = self._absence(number, name)
        found = sorted(self._places.items(), key=lambda item: _rank(item[0], order))
        slots = [slot for _, place in found for slot in (place.before, place.after)]
        done = resolve(slot.measured for slot in slots if slot.measured is not None)
        return tuple(self._change(key, place, done) for key, place in found)

    # ---------------------------------------------------------------- the hooks

    def _at_parameter(
        self, number: int, name: str, parameter: nn.Parameter, hooks: ExitStack
    ) -> None:
        def change(gradient: torch.Tensor) -> torch.Tensor:
            return self._apply((number, name, None, ""), gradient)

        if parameter.requires_grad:
            hooks.callback(hook_tensor(parameter, change).remove)

    def _at_module(self, number: int, name: str, module: nn.Module, hooks: ExitStack) -> None:
        at = self.wanted[number].at
        open_calls: list[tuple[int | None, _Copies]] = []

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = self._begin_call(number, module)
            copies: _Copies = []
            if at == "grad_input":
                args, kwargs = self._inputs((number, name, call), args, kwargs, copies)
            open_calls.append((call, copies))
            return (args, kwargs) if copies else None

        def after(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            call, copies = open_calls.pop()
            if at == "grad_input":
                _refuse_writes(name, copies)
                return None
            return self._outputs((number, name, call), output)

        hooks.enter_context(hooked([module], before, after))

    def _begin_call(self, number: int, module: nn.Module) -> int | None:
        """Return the call's number; None for a recomputation by a checkpoint that may belong to
        several calls."""
        if in_backward():
            return 0 if self._calls[number, module] == 1 else None
        self._calls[number, module] += 1
        return self._calls[number, module] - 1

    def _inputs(
        self,
        call: tuple[int, str, int | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        copies: _Copies,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with copies of those that need a gradient. A copy gets only the
        gradient through this call."""
        paths = {id(t): path for path, t in call_tensors(args, kwargs) if is_floating(t)}

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in paths or not tensor.requires_grad:
                return tensor
            own = tensor.clone()
            if self._on_gradient((*call, paths[id(tensor)]), own):
                copies.append((own, version(own)))
            return own

        def changed(argument: Any) -> Any:
            needs = any(t.requires_grad for _, t in find(argument, torch.Tensor))
            return replaced(argument, torch.Tensor, copy) if needs else argument

        for path, tensor in call_tensors(args, kwargs):
            if id(tensor) in paths and not tensor.requires_grad:
                self._place((*call, path)).note = _FROZEN
        return tuple(map(changed, args)), {name: changed(one) for name, one in kwargs.items()}

    def _outputs(self, call: tuple[int, str, int | None], output: Any) -> Any:
        paths = {id(t): path for path, t in find(output, torch.Tensor) if is_floating(t)}
        if not paths:
            self._place((*call, "")).note = _NO_TENSOR
        if self.wanted[call[0]].at == "activation":

            def change(tensor: torch.Tensor) -> torch.Tensor:
                if id(tensor) not in paths:
                    return tensor
                return self._apply((*call, paths[id(tensor)]), tensor)

            return replaced(output, torch.Tensor, change) if paths else None
        for path, tensor in find(output, torch.Tensor):
            if id(tensor) in paths:
                self._on_gradient((*call, path), tensor)
        return None

    def _on_gradient(self, key: _Key, tensor: torch.Tensor) -> bool:
        """Change the gradient of a tensor as it is now; False if it needs none."""
        place = self._place(key)
        if not tensor.requires_grad:
            place.note = _FROZEN
            return False

        def change(gradient: torch.Tensor) -> torch.Tensor | None:
            return None if gradient is None else self._apply(key, gradient)

        place.note = _HIDDEN if tensor._is_view() else None
        self._handles.append(hook_tensor(tensor, change))
        return True

    def _apply(self, key: _Key, tensor: torch.Tensor) -> torch.Tensor:
        place, one = self._place(key), self.wanted[key[0]]
        # An action also applies to the zeros that a sparse tensor does not store.
        sparse = tensor.layout != torch.strided
        dense = tensor.to_dense() if sparse else tensor
        value = one.value
        if isinstance(value, torch.Tensor) and not _fits(value, dense):
            raise ConfigError(
                f"`{one.do}` has a value of shape {list(value.shape)}, and the {one.at} of "
                f"`{key[1]}` has {list(dense.shape)}",
                help="give a tensor of that shape, or one that broadcasts to it",
            )
        new = one.change(dense)
        if one.at != "activation" or not in_backward():
            place.before.add(dense)
            place.after.add(new)
        return new.to_sparse(layout=tensor.layout) if sparse else new

    # ---------------------------------------------------------------- the result

    def _targets(self, one: Intervention) -> dict[str, nn.Module | nn.Parameter]:
        """Return the targets of an intervention, by first names."""
        known: dict[str, Any] = dict(first_names(self.model))
        if one.at != "parameter_grad":
            known = {name: m for m, name in module_names(self.model).items()}
        return {name: known[name] for name in one.names if name in known}

    def _place(self, key: _Key) -> _Place:
        found = self._places.get(key)
        if found is None:
            add = self.accumulate and self.wanted[key[0]].at != "activation"
            before, after = (GradientSlot(1, self._cache, accumulate=add) for _ in range(2))
            found = self._places[key] = _Place(before, after)
        return found

    def _absence(self, number: int, name: str) -> str:
        one = self.wanted[number]
        target = self._targets(one)[name]
        if isinstance(target, nn.Parameter):
            return _NO_GRADIENT if target.requires_grad else _FROZEN
        return _SCRIPTED if isinstance(target, torch.jit.ScriptModule) else _NO_CALL

    def _change(self, key: _Key, place: _Place, done: dict[int, TensorStats]) -> Change:
        number, name, call, path = key
        one = self.wanted[number]
        before, after = (
            None if slot.measured is None else done[id(slot.measured)]
            for slot in (place.before, place.after)
        )
        unmeasured = place.before.note or place.after.note
        note = unmeasured or (None if before else place.note or _NO_GRADIENT)
        return Change(
            name=name,
            at=one.at,
            do=one.do,
            value=one.value if isinstance(one.value, int | float) else None,
            call=call,
            path=path,
            before=before,
            after=after,
            factor=_factor(before, after),
            note=note,
        )


def _rank(key: _Key, order: dict[tuple[int, str], int]) -> tuple[int, int, int]:
    number, name, call, _ = key
    return number, order[number, name], -1 if call is None else call


def _factor(before: TensorStats | None, after: TensorStats | None) -> float | None:
    if before is None or after is None or not before.norm or after.norm is None:
        return None
    return after.norm / before.norm


def _fits(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return True if a value broadcasts to a tensor's shape."""
    sizes = zip(reversed(value.shape), reversed(tensor.shape), strict=False)
    return value.dim() <= tensor.dim() and all(given in (1, size) for given, size in sizes)


def _refuse_writes(name: str, copies: _Copies) -> None:
    """Refuse a module that writes into its input: it would write into the copy, where no other
    reader sees it."""
    if any(version(own) != before for own, before in copies):
        raise ConfigError(
            f"`{name}` writes into its input in place: its grad_input cannot be changed",
            help=f"exclude it with `!{name}`, or change the grad_output of the module before it",
        )
