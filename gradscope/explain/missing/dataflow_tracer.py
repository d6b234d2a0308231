"""Traces a second run: every operation, with the parameters upstream of its arguments and of its
result. A mode gets the operations as the user's code and ``torch.nn`` call them. The autograd graph
shows which gradient paths they kept, also for composite operations and for C++.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from gradscope.capture.measurements import version
from gradscope.explain.missing.observed_tensors import (
    Number,
    ObservedTensors,
    address_of,
    numbered,
    values_in,
    why_disabled,
)
from gradscope.explain.missing.values import Value
from gradscope.explain.shared.frames import CallSite, is_hidden, is_ours
from gradscope.explain.shared.operations import Operation, Trait, by_function, function_name
from gradscope.explain.shared.tracing_modes import (
    ModuleCalls,
    TracedCall,
    bare,
    memory_of,
    tensors_in,
)

_CACHED_BITS = 11  # of the ints that Python makes only once, with room for later versions


class Tracer:
    """Follows the data of some parameters; ``run`` handles each traced function.

    Args:
        model: names the modules.
        parameters: the parameters to follow; bit i of every mask is the i-th.
        last: the code of the function that starts the run: the frames around it are not the user's.
        numbers: True if floats that leave torch keep their origin. They are then of a subclass of
            ``float``, so this is only for runs of our own.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        last: CodeType,
        *,
        numbers: bool = True,
    ) -> None:
        self._numbers = numbers
        self.calls = ModuleCalls(model, last)
        self.observed = ObservedTensors(parameters, self.calls)
        self._flow = self.observed.flow
        # Gradients that were off before the run: no switch is observed.
        self._frozen = {id(p): CallSite() for p in parameters if not p.requires_grad}
        self._arrays: list[np.ndarray[Any, Any]] = []  # so that no address is given twice
        # Plain numbers that came out of tensors, by their ids: kept, so that none is given twice.
        self._plain: dict[int, tuple[float, int]] = {}
        self._disabled: str | None = None

    def run(self, call: TracedCall) -> Any:
        """Run the operation, then note its results."""
        name, args, kwargs = function_name(call.function), call.args, call.kwargs
        operation = by_function(name)
        if operation.has(Trait.ASKS, Trait.CARRIES_NOTHING):
            self._aside(name, args, kwargs)
            result = call.run()
            self.observed.clean(
                [t for t in tensors_in(result) if not any(t is given for given in args)]
            )
            return result
        inputs = values_in(_carrying(operation, args, kwargs))
        tensors = [bare(item) for item in inputs if isinstance(item, torch.Tensor)]
        parents = self._parents(operation, inputs, (*args, *kwargs.values()))
        versions = [version(tensor) for tensor in tensors]
        memories = {memory_of(tensor) for tensor in tensors}
        live = self._live(parents)
        result = call.run()
        written = [t for t, v in zip(tensors, versions, strict=True) if version(t) != v]
        if name == ".data" and getattr(call.function, "__name__", "") == "__set__":
            written = tensors[:1]
        outputs = {id(t): t for t in [*tensors_in(result), *written]}
        self.observed.renew(outputs.values(), memories)
        if not parents:
            self.observed.clean([t for t in outputs.values() if self.observed.latest(t) is None])
            return result
        guessed = all(self._flow.values[n].op == "" for n in parents)
        made = Value(tuple(parents), 0, name, self.calls.site(), guessed=guessed)
        for tensor in outputs.values():
            target = any(tensor is t for t in written)
            self._output(
                tensor,
                made,
                live,
                overwritten=target and operation.has(Trait.OVERWRITES),
                written=target,
            )
        if operation.has(Trait.LEAVES_TORCH):
            return self._escape(name, made, live, result)
        return result

    def _parents(self, operation: Operation, inputs: list[Any], args: tuple[Any, ...]) -> list[int]:
        found: dict[int, None] = {}
        for item in inputs:
            if isinstance(item, Number):
                found.update(dict.fromkeys(item.sources))
            elif (number := self.observed.value_of(item)) is not None:
                found[number] = None
        for item in args:
            if type(item) in (float, int) and id(item) in self._plain:
                found[self._plain[id(item)][1]] = None
        if operation.has(Trait.ENTERS_TORCH) and not found:
            address = address_of(args[0]) if args else None
            if address in self.observed.exported:
                return [self.observed.exported[address]]
            if self.observed.escaped_values is not None:
                return [self.observed.escaped_values]
        return sorted(found)

    def _live(self, parents: list[int]) -> int:
        live = 0
        for number in parents:
            live |= self._flow.values[number].live
        return live

    def _output(
        self,
        tensor: torch.Tensor,
        made: Value,
        live: int,
        *,
        overwritten: bool,
        written: bool,
    ) -> None:
        """Note one result, or one argument that was written to."""
        parents = made.parents
        if overwritten:
            old = self.observed.latest(tensor)
            parents = tuple(number for number in parents if number != old)
            if not parents:
                self.observed.clean([tensor])
                return
            live = self._live(list(parents))
        kept = self.observed.live(tensor)
        cause, reason = None, None
        if live & ~kept:
            cause, reason = self._cause(made.op, tensor.dtype, live & ~kept)
        if cause == "checkpoint":
            kept, cause = kept | live, None
        own = self.observed.own(tensor)
        value = Value(parents, kept, made.op, made.site, cause, reason, own, made.guessed)
        value.constant = not torch.is_grad_enabled() and made.site.module is None
        self.observed.note(tensor, value, written=written)

    def _cause(self, name: str, dtype: torch.dtype, lost: int) -> tuple[str, str | None]:
        """Return the cause and reason why a result has no gradient path to a parameter upstream."""
        first_pass = False
        if not torch.is_grad_enabled():
            cause, reason = why_disabled(sys._getframe(2), self.calls.last, self._disabled)
            if cause != "checkpoint":
                return cause, reason
            first_pass = True
        if by_function(name).has(Trait.DETACHES):
            return "detached", None
        for identity, site in self._frozen.items():
            if self.observed.bits.get(identity, 0) & lost:
                if site.file is None:
                    return "detached", "requires_grad is off"
                return "detached", f"requires_grad was off since {site.location}"
        if dtype.is_floating_point or dtype.is_complex:
            if first_pass:
                return "checkpoint", None
            return ("detached", None) if name.endswith("_") else ("non-differentiable", None)
        return "non-differentiable", None

    def _escape(self, name: str, made: Value, live: int, result: Any) -> Any:
        """Note that Python or NumPy now has the data; numbers are traced, and arrays by their
        address."""
        cause, reason = (None, None)
        if live:
            cause, reason = self._cause(name, torch.float32, live)
        number = self._flow.add(
            Value(made.parents, 0, name, made.site, cause, reason, guessed=made.guessed)
        )
        left = (
            (number,)
            if self.observed.escaped_values is None
            else (self.observed.escaped_values, number)
        )
        self.observed.escaped_values = self._flow.add(Value(left, 0, "", made.site))
        if isinstance(result, np.ndarray):
            address = address_of(result)
            if address is not None:
                self.observed.exported[address] = number
                self._arrays.append(result)
            return result
        if name == "__float__" or type(result) is int or not self._numbers:
            # Python wants a float itself here, and makes an int of anything like one: it is known
            # by its identity as long as it is handed on unchanged.
            if type(result) is int and result.bit_length() <= _CACHED_BITS:
                # Another one of that size may be the same object.
                number = self._flow.add(Value((number,), 0, name, made.site, guessed=True))
            self._plain[id(result)] = (result, number)
        if self._numbers and name in ("item", "tolist"):
            return numbered(result, frozenset((number,)))
        return result

    def _aside(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "__bool__":
            if _torch_asks():
                return
            if (number := self.observed.value_of(bare(args[0]))) is not None:
                self._flow.add(Value((number,), 0, name, self.calls.site()))
        elif name == "_set_grad_enabled":
            self._disabled = None
            if not args[0]:
                self._disabled = self.calls.site().location or ""
        elif (name == "requires_grad_" or (name == ".requires_grad" and len(args) > 1)) and id(
            args[0]
        ) in self.observed.bits:
            on = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
            if on is False:
                self._frozen[id(args[0])] = self.calls.site()
            elif on is True:
                self._frozen.pop(id(args[0]), None)


def _torch_asks() -> bool:
    """Return True if PyTorch's own check reads the value, as when a distribution validates its
    arguments: the user's code does not depend on it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and is_hidden(frame.f_code.co_filename)


def _carrying(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments whose data end up in the result."""
    if operation.has(Trait.FIRST_ONLY):
        return args[:1]
    return (args[1:] if operation.has(Trait.OTHERS_ONLY) else args, kwargs)
