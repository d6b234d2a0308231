"""Traces a second run: tests for each ATen operation in forward, backward and the optimizer's step
whether it made a NaN or Inf from better inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

from gradscope.capture.stats import Measured, measure
from gradscope.explain.non_finite.arithmetic import fails_on_finite, reason_of
from gradscope.explain.non_finite.context import (
    CurrentFunction,
    ExternalTensors,
    NodeSites,
    RunContext,
)
from gradscope.explain.non_finite.origins import BecameNaN, ObservedOrigin, ObservedOrigins
from gradscope.explain.non_finite.reasons import (
    FINITE,
    INF,
    NAN,
    NonFiniteResult,
    Reason,
    level,
    level_of_number,
)
from gradscope.explain.shared.operations import Trait, by_operator, node_name
from gradscope.explain.shared.tracing_modes import (
    FunctionTracer,
    ModuleCalls,
    OperatorTracer,
    TracedCall,
    tensors_in,
)

#: Hands a number to Python.
LEAVES_TORCH = "local_scalar_dense"
_RUNNING = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """One overload of one operation.

    Attributes:
        name: without underscores: ``softmax``, ``div`` for ``div_``.
        arguments: their names.
        written: the arguments that it writes to, and ``updated`` those that it reads before.
        idle: True if it makes no new values: a view, a query, uninitialised memory.
        pointwise: True if elementwise.
        many: True if it works on lists of tensors, one entry at a time.
        decides: True if it returns indices found by comparison: a NaN then changes the result.
    """

    name: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    updated: tuple[str, ...]
    idle: bool
    pointwise: bool
    many: bool
    decides: bool

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by their names."""
        return dict(zip(self.arguments, args, strict=False)) | kwargs


@functools.cache
def schema_of(func: OpOverload) -> OperatorSchema:
    """Return the facts that an overload's schema states."""
    schema = func._schema
    plain = schema.name.split("::")[1]
    name = plain.strip("_").removeprefix("foreach_")
    written = tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
    operation = by_operator(name)
    written += _RUNNING if operation.has(Trait.RUNNING) else ()
    arguments = {a.name: a for a in schema.arguments}
    overwrites = operation.has(Trait.OVERWRITES, Trait.UNINITIALISED)
    updated = tuple(n for n in written if not arguments[n].kwarg_only and not overwrites)
    each = plain.startswith("_foreach_") and name != "norm"
    makes = any(r.alias_info is None for r in schema.returns)
    idle = operation.has(Trait.UNINITIALISED) or not (makes or written)
    return OperatorSchema(
        name,
        tuple(arguments),
        written,
        updated,
        idle,
        torch.Tag.pointwise in func.tags or name in ("to_copy", "copy") or each,
        plain.startswith("_foreach_") or any("Tensor[]" in str(arguments[n].type) for n in written),
        operation.has(Trait.COMPARES) or (name in ("max", "min") and "dim" in arguments),
    )


def entries(
    schema: OperatorSchema, arguments: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the arguments for each entry of an operation on lists; for another operation, all
    arguments once."""
    if not schema.many:
        yield 0, arguments
        return
    lists = [v for v in arguments.values() if isinstance(v, list | tuple) and v]
    for i in range(max(map(len, lists), default=0)):
        yield i, {n: _entry(v, i) for n, v in arguments.items()}


def _entry(value: Any, index: int) -> Any:
    if isinstance(value, list | tuple) and value:
        return value[min(index, len(value) - 1)]
    return value


_COPIED = 1 << 20  # largest number of elements that are copied before an operation overwrites them
_INPUTS = 4


class NonFiniteTracer:
    """Follows NaN and Inf while it is active.

    Args:
        model: names the modules.
        last: the code of the function that starts the run: the frames around it are not the
            user's.
        root: the module whose arguments come from outside; None: the model.
        calls: the module calls; None: those that ``enter`` and ``leave`` report.
    """

    def __init__(
        self,
        model: nn.Module,
        last: CodeType,
        root: nn.Module | None = None,
        calls: ModuleCalls | None = None,
    ) -> None:
        self.calls = calls or ModuleCalls(model, last)
        self.origins = ObservedOrigins()
        self.external = ExternalTensors(model, self.origins)
        self._function = CurrentFunction()
        self.context = RunContext(model, self.calls, self._function, NodeSites())
        self._root = model if root is None else root
        self._left = 0  # origins of the numbers that Python was given

    @contextmanager
    def active(self) -> Iterator[None]:
        """Trace the operations in the block."""
        with FunctionTracer(self._function.run), OperatorTracer(self._operator):
            yield

    @contextmanager
    def replaying(self, function: str | None) -> Iterator[None]:
        """Attribute the block's operations to a function that was called earlier."""
        with self._function.named(function), OperatorTracer(self._operator):
            yield

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Exclude the computations in the block: they are gradscope's own."""
        with self.ignoring(), torch.no_grad():
            yield

    @contextmanager
    def ignoring(self) -> Iterator[None]:
        """Ignore the block's operations, with gradients recorded as before."""
        before, self._function.asleep = self._function.asleep, True
        try:
            yield
        finally:
            self._function.asleep = before

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the start of a module's forward; the model's own arguments come from outside."""
        self.calls.enter(module, args, kwargs)
        if module is self._root:
            with self.quiet():
                self.external.called(args, kwargs)

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Note a NaN in a module's output, which counts as lasting, and leave the module's call."""
        call = self.calls.innermost(module)
        if self.context.stage == "forward" and call is not None:
            with self.quiet():
                self.external.returned(call.name, module is self._root, output)
        self.calls.leave(module, args, kwargs, output)

    def _operator(self, call: TracedCall) -> Any:
        """Run the operation, then check its results."""
        if self._function.asleep:
            return call.run()
        self.context.passing()
        schema = schema_of(call.function)
        if schema.idle and schema.name != LEAVES_TORCH:
            return call.run()
        arguments = schema.bind(call.args, call.kwargs)
        self._function.asleep = True  # without ``quiet``: here autograd is done already
        try:
            before = {id(t): level(t) for n in schema.updated for t in tensors_in(arguments[n])}
            kept = self._kept(schema, arguments)
            result = call.run()
            self._decided(schema, arguments)
            for index, one in entries(schema, arguments):
                for out, written in _outputs(schema, one, result, index):
                    self._look(schema, one, out, written, before, kept)
        finally:
            self._function.asleep = False
        return result

    def _kept(self, schema: OperatorSchema, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Copy the tensors that are about to be updated, for the message; none if they are large or
        many."""
        if schema.many or not schema.pointwise:
            return {}
        tensors = {
            n: arguments[n] for n in schema.updated if isinstance(arguments[n], torch.Tensor)
        }
        small = {n: t for n, t in tensors.items() if t.numel() <= _COPIED}
        return {n: t.detach().clone() for n, t in small.items() if t.is_floating_point()}

    def _look(
        self,
        schema: OperatorSchema,
        arguments: dict[str, Any],
        out: torch.Tensor,
        written: bool,
        before: dict[int, int],
        kept: dict[str, torch.Tensor],
    ) -> None:
        """Decide if a NaN or Inf result has its origin in this operation or in its inputs."""
        worst = level(out)
        if worst == FINITE:
            return
        arguments_level, mask = self._arguments_level(schema, arguments, before)
        gone = [n for n in schema.written if n not in kept and "running" not in n]
        known = {n: v for n, v in arguments.items() if n not in gone} | kept
        result = NonFiniteResult(schema.name, known, out, worst, schema.pointwise)
        made = all(not origin.deliberate for origin in self.origins.members(mask))
        if arguments_level == FINITE:
            mask = self._new_origin(result)
        elif worst > arguments_level and not (mask and made):
            mask = self._new_origin(result, arguments_level)
        elif worst > arguments_level:
            self._becomes_nan(result, mask)
        elif schema.pointwise and not gone and fails_on_finite(result):
            mask |= self._new_origin(result)
        self.origins.put(out, mask, overwritten=not (written and schema.updated))

    def _arguments_level(
        self, schema: OperatorSchema, arguments: dict[str, Any], before: dict[int, int]
    ) -> tuple[int, int]:
        """Return the worst level of the arguments, and their origins."""
        worst, mask = FINITE, 0
        for name, value in arguments.items():
            if name in schema.written and name not in schema.updated:
                continue
            for tensor in tensors_in(value):
                found = before[id(tensor)] if name in schema.updated else level(tensor)
                if found:
                    worst = max(worst, found)
                    mask |= self.origins.of(tensor) or self._outside(tensor, found)
            found = level_of_number(value)
            if found:
                worst = max(worst, found)
                mask |= self._left or self._in_source(value, found)
        return worst, mask

    def _outside(self, tensor: torch.Tensor, found: int) -> int:
        mask = self.external.outside(tensor, found, self.context.site())
        self.origins.put(tensor, mask, overwritten=True)
        return mask

    def _in_source(self, value: float, found: int) -> int:
        """Return the origin of a NaN or Inf that is written in the source, such as the -inf of a
        mask."""
        context = self.context.now()
        reason = Reason(f"{value} in the source", "use a large finite number instead")
        return self.origins.add(
            ObservedOrigin(
                found,
                context.phase,
                context.op,
                context.site,
                reason,
                deliberate=True,
                name=context.name,
            )
        )

    def _new_origin(self, result: NonFiniteResult, arguments_level: int = FINITE) -> int:
        """Add a new origin: this operation."""
        context = self.context.now(result.name, result.out)
        if context.node is not None:
            function = node_name(context.node).lower()
            if same := self.origins.made_in(context.made_by, function, context.site):
                return same  # the slope of what was NaN or Inf in forward is NaN or Inf either
        reason = reason_of(result)
        forward: tuple[torch.Tensor, ...] = ()
        if context.node is not None:
            reason, forward = self.context.slope(context.node, reason)
        shown_first = [*forward, *result.tensors()][:_INPUTS]
        measured: list[Measured] = [measure(t) for t in shown_first]
        return self.origins.add(
            ObservedOrigin(
                result.kind,
                context.phase,
                context.op,
                context.site,
                reason,
                group=context.group,
                name=context.name,
                inputs=tuple(measured),
                of_infinities=arguments_level == INF,
                function=context.function,
            )
        )

    def _becomes_nan(self, result: NonFiniteResult, mask: int) -> None:
        """Note an operation that made NaN of infinities that existed before."""
        context = self.context.now(result.name, result.out)
        reason = reason_of(result)
        for origin in self.origins.members(mask):
            if origin.kind == NAN:
                continue
            if origin.group is not None and origin.group == context.group:
                origin.kind = NAN  # of the same function: that is what it gives
                origin.and_then = reason.text
            elif origin.became_nan is None:
                origin.became_nan = BecameNaN(context.op, context.site, reason.text)

    def _decided(self, schema: OperatorSchema, arguments: dict[str, Any]) -> None:
        """Note a NaN that Python reads, or that decides a choice."""
        if schema.name == LEAVES_TORCH:
            for tensor in tensors_in(arguments["self"]):
                if level(tensor):
                    self._left |= self.origins.of(tensor)
        elif schema.decides and self.context.stage == "forward":
            compared = arguments.get("self")
            if isinstance(compared, torch.Tensor) and level(compared) == NAN:
                mask = self.origins.of(compared)
                self.origins.spread(mask, f"{schema.name}{self.context.site().at}")
                self.origins.mark_reached(mask)


def _outputs(
    schema: OperatorSchema, arguments: dict[str, Any], result: Any, index: int
) -> Iterator[tuple[torch.Tensor, bool]]:
    """Yield the results of an operation, or of one entry of it, with True for a result that is an
    argument."""
    written = [t for n in schema.written for t in tensors_in(arguments.get(n))]
    yield from ((tensor, True) for tensor in written)
    if schema.many and isinstance(result, list | tuple):
        result = result[index] if index < len(result) else None
    for tensor in tensors_in(result):
        if not any(tensor is argument for argument in written):
            yield tensor, False
