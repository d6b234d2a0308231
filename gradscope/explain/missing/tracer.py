"""The second run: every operation seen, with what it took from which parameters and what it kept.

A mode sees the operations as the user's code and ``torch.nn`` call them; the autograd graph says
which gradient paths they kept, also where an operation is many in one or written in C++.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gradscope.explain.missing.disabled_gradients import why_disabled
from gradscope.explain.missing.observed_tensors import Known
from gradscope.explain.missing.values import Value
from gradscope.explain.shared.frames import shown
from gradscope.explain.shared.module_calls import Executing
from gradscope.explain.shared.operations import (
    DETACHING,
    ENTRIES,
    ESCAPES,
    OVERWRITING,
    Number,
    carrying,
    leaves,
    moves_data,
    operation,
)
from gradscope.explain.shared.places import Place
from gradscope.explain.shared.tensors import (
    address_of,
    bare,
    memory_of,
    numbered,
    tensors_in,
    version_of,
)

_CACHED_BITS = 11  # of the ints that Python makes only once, with room for later versions


class Tracer(TorchFunctionMode):
    """Follows what is computed from some parameters while it is active.

    Args:
        model: names the modules.
        parameters: the parameters that are followed; bit i of every mask is the i-th.
        last: the code of the function that starts the run: the frames around it are not the user's.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], last: CodeType
    ) -> None:
        super().__init__()
        self.executing = Executing(model, last)
        self.known = Known(parameters, self.executing)
        self._flow = self.known.flow
        # What was off before the run: nothing is seen to switch it.
        self._frozen = {id(p): Place() for p in parameters if not p.requires_grad}
        self._arrays: list[np.ndarray[Any, Any]] = []  # so that no address is given twice
        # Plain numbers that came out of tensors, by their ids: kept, so that none is given twice.
        self._plain: dict[int, tuple[float, int]] = {}
        self._disabled: str | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, then note what it did."""
        kwargs = kwargs or {}
        name = operation(func)
        if not moves_data(name):
            self._aside(name, args, kwargs)
            result = func(*args, **kwargs)
            self.known.clean(
                [t for t in tensors_in(result) if not any(t is given for given in args)]
            )
            return result
        inputs = list(leaves(carrying(name, args, kwargs)))
        tensors = [bare(item) for item in inputs if isinstance(item, torch.Tensor)]
        parents = self._parents(name, inputs, (*args, *kwargs.values()))
        versions = [version_of(tensor) for tensor in tensors]
        memories = {memory_of(tensor) for tensor in tensors}
        live = self._live(parents)
        result = func(*args, **kwargs)
        written = [t for t, v in zip(tensors, versions, strict=True) if version_of(t) != v]
        if name == ".data" and getattr(func, "__name__", "") == "__set__":
            written = tensors[:1]
        outputs = {id(t): t for t in [*tensors_in(result), *written]}
        self.known.renew(outputs.values(), memories)
        if not parents:
            self.known.clean([t for t in outputs.values() if self.known.latest(t) is None])
            return result
        guessed = all(self._flow.values[n].op == "" for n in parents)
        made = Value(tuple(parents), 0, name, self.executing.place(), guessed=guessed)
        for tensor in outputs.values():
            target = any(tensor is t for t in written)
            self._output(
                tensor,
                made,
                live,
                overwritten=target and name in OVERWRITING,
                written=target,
                dtype=tensor.dtype,
            )
        if name in ESCAPES:
            return self._escape(name, made, live, result)
        return result

    def _parents(self, name: str, inputs: list[Any], args: tuple[Any, ...]) -> list[int]:
        found: dict[int, None] = {}
        for item in inputs:
            if isinstance(item, Number):
                found.update(dict.fromkeys(item.sources))
            elif (number := self.known.value_of(item)) is not None:
                found[number] = None
        for item in args:
            if type(item) in (float, int) and id(item) in self._plain:
                found[self._plain[id(item)][1]] = None
        if name in ENTRIES and not found:
            address = address_of(args[0]) if args else None
            if address in self.known.exported:
                return [self.known.exported[address]]
            if self.known.world is not None:
                return [self.known.world]
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
        dtype: torch.dtype,
    ) -> None:
        """Note one result, or one argument that was written to."""
        parents = made.parents
        if overwritten:
            old = self.known.latest(tensor)
            parents = tuple(number for number in parents if number != old)
            if not parents:
                self.known.clean([tensor])
                return
            live = self._live(list(parents))
        kept = self.known.live(tensor)
        cause, reason = None, None
        if live & ~kept:
            cause, reason = self._cause(made.op, dtype, live & ~kept)
        if cause == "checkpoint":
            kept, cause = kept | live, None
        own = self.known.own(tensor)
        value = Value(parents, kept, made.op, made.place, cause, reason, own, made.guessed)
        self.known.note(tensor, value, written=written)

    def _cause(self, name: str, dtype: torch.dtype, lost: int) -> tuple[str, str | None]:
        """Why a result has no gradient path to a parameter that an argument leads to."""
        first_pass = False
        if not torch.is_grad_enabled():
            cause, reason = why_disabled(sys._getframe(2), self.executing.last, self._disabled)
            if cause != "checkpoint":
                return cause, reason
            first_pass = True
        if name in DETACHING:
            return "detached", None
        for identity, place in self._frozen.items():
            if self.known.bits.get(identity, 0) & lost:
                if place.file is None:
                    return "detached", "requires_grad is off"
                return "detached", f"requires_grad was off since {shown(place.file)}:{place.line}"
        if dtype.is_floating_point or dtype.is_complex:
            if first_pass:
                return "checkpoint", None
            return ("detached", None) if name.endswith("_") else ("non-differentiable", None)
        return "non-differentiable", None

    def _escape(self, name: str, made: Value, live: int, result: Any) -> Any:
        """Python or NumPy now has the data: numbers are traced, and arrays by their address."""
        cause, reason = (None, None)
        if live:
            cause, reason = self._cause(name, torch.float32, live)
        number = self._flow.add(
            Value(made.parents, 0, name, made.place, cause, reason, guessed=made.guessed)
        )
        left = (number,) if self.known.world is None else (self.known.world, number)
        self.known.world = self._flow.add(Value(left, 0, "", made.place))
        if isinstance(result, np.ndarray):
            address = address_of(result)
            if address is not None:
                self.known.exported[address] = number
                self._arrays.append(result)
            return result
        if name == "__float__" or type(result) is int:
            # Python wants a float itself here, and makes an int of anything like one: it is told
            # by its identity as long as it is handed on unchanged.
            if type(result) is int and result.bit_length() <= _CACHED_BITS:
                # Another one of that size may be the same object.
                number = self._flow.add(Value((number,), 0, name, made.place, guessed=True))
            self._plain[id(result)] = (result, number)
        return numbered(result, frozenset((number,))) if name in ("item", "tolist") else result

    def _aside(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "__bool__":
            if (number := self.known.value_of(bare(args[0]))) is not None:
                self._flow.add(Value((number,), 0, name, self.executing.place()))
        elif name == "_set_grad_enabled":
            self._disabled = None
            if not args[0]:
                at = self.executing.place()
                self._disabled = f"{shown(at.file)}:{at.line}" if at.file else ""
        elif (name == "requires_grad_" or (name == ".requires_grad" and len(args) > 1)) and id(
            args[0]
        ) in self.known.bits:
            on = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
            if on is False:
                self._frozen[id(args[0])] = self.executing.place()
            elif on is True:
                self._frozen.pop(id(args[0]), None)
