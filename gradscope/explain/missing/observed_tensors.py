"""Finds the value of a tensor by its identity, its memory, or numbers read into Python, and the
statement that disabled gradients around a line.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import CheckpointFunction

from gradscope.capture.remembered import TensorValues, remembered
from gradscope.explain.missing.values import Flow, LiveMasks, Value
from gradscope.explain.shared.frames import (
    is_hidden,
    last_name,
    nearest,
    outwards,
    shown,
    source,
    tree_of,
)
from gradscope.explain.shared.operations import node_name
from gradscope.explain.shared.tracing_modes import ModuleCalls, bare, memory_of
from gradscope.nesting import find

#: Functions that disable gradients.
DISABLING = ("no_grad", "inference_mode", "set_grad_enabled")


def disabling(file: str, line: int) -> int | None:
    """Return the line of the innermost ``with no_grad()``, similar block or decorator around a
    line."""
    best = None
    for first, last, at in _disabled_spans(file):
        if first <= line <= last and (best is None or at > best):
            best = at
    return best


def called_at(file: str, line: int, name: str) -> int:
    """Return the line of the last call of ``name`` up to a line in the same function; the line
    itself without one."""
    tree = tree_of(file)
    within: ast.AST | None = None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            within = node  # walked from the outside in
    calls = (n for n in ast.walk(within or ast.Module([], [])) if isinstance(n, ast.Call))
    lines = [n.lineno for n in calls if last_name(n.func) == name and n.lineno <= line]
    return max(lines, default=line)


@functools.cache
def _disabled_spans(file: str) -> list[tuple[int, int, int]]:
    """Return the first and last line of each body without gradients, and the disabling line."""
    tree = tree_of(file)
    spans = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if _disables(item.context_expr):
                    spans.append(
                        (node.body[0].lineno, node.end_lineno or 0, item.context_expr.lineno)
                    )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if _disables(decorator):
                    spans.append((node.lineno, node.end_lineno or 0, decorator.lineno))
    return spans


def _disables(expression: ast.expr) -> bool:
    return (
        last_name(expression.func if isinstance(expression, ast.Call) else expression) in DISABLING
    )


def why_disabled(frame: FrameType, last: CodeType, seen: str | None) -> tuple[str, str | None]:
    """Return the cause if an operation ran without gradients, and the code that disabled them.

    Args:
        frame: the frame of the operation, or one inside it.
        last: the code of the function where the search of frames ends.
        seen: the place where gradients were disabled last; None if they are enabled.

    Returns:
        ``checkpoint`` for the first pass of a reentrant checkpoint that will be recomputed.
    """
    function, checkpointed = None, False
    for around in outwards(frame, last):
        code, file = around.f_code, around.f_code.co_filename
        if code is CheckpointFunction.forward.__code__:
            given = around.f_locals.get("args", ())
            if any(isinstance(a, torch.Tensor) and a.requires_grad for a in given):
                checkpointed = True  # unless gradients are off around the checkpoint too
                continue
            reason = "a reentrant checkpoint without an input that requires a gradient"
            called = nearest(around.f_back, last)
            if called is not None:
                reason += f", called at {shown(called.f_code.co_filename)}:{called.f_lineno}"
            return "no-grad", reason
        if _is_function(code):
            function = function or code.co_qualname.split(".")[-2]
        elif at := disabling(file, around.f_lineno):
            if is_hidden(file):
                return "no-grad", f"`{code.co_name}` of PyTorch, which runs without gradients"
            return "no-grad", f"`{source(file, at)}`, {shown(file)}:{at}"
    if checkpointed:
        return "checkpoint", None
    if function and seen is None:
        return "non-differentiable", f"the autograd function `{function}`"
    return "no-grad", f"switched off at {seen}" if seen else None


def _is_function(code: CodeType) -> bool:
    """Return True if the code is an autograd Function's forward: it runs without gradients."""
    if code.co_name != "forward" or code.co_varnames[:1] == ("self",):
        return False
    classes: list[type] = [torch.autograd.Function]
    for one in classes:  # grows on the way
        classes.extend(one.__subclasses__())
    return any(getattr(one.forward, "__code__", None) is code for one in classes)  # type: ignore[attr-defined]


class Number(float):
    """A float that was read or computed from a tensor, with the numbers of its values.

    It behaves as a float; functions of ``math`` return a plain one.
    """

    sources: frozenset[int]

    def __new__(cls, value: float, sources: frozenset[int]) -> Number:
        made = super().__new__(cls, value)
        made.sources = sources
        return made

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


def _traced(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: Number, *others: Any) -> Any:
        result = plain(self, *others)
        if type(result) is not float:
            return result
        sources = self.sources
        for other in others:
            if isinstance(other, Number):
                sources |= other.sources
        return Number(result, sources)

    method.__name__ = name
    return method


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "radd",
    "rsub",
    "rmul",
    "rtruediv",
    "rfloordiv",
    "rmod",
    "rpow",
    "neg",
    "pos",
    "abs",
]:
    setattr(Number, f"__{_name}__", _traced(f"__{_name}__"))


def values_in(tree: Any) -> list[torch.Tensor | Number]:
    """Yield tensors and traced numbers in nested arguments."""
    tensors = (tensor for _, tensor in find(tree, torch.Tensor))
    return [*tensors, *(number for _, number in find(tree, Number))]


def address_of(array: Any) -> int | None:
    """Return the address of a NumPy array's data; None for any other object."""
    if not isinstance(array, np.ndarray):
        return None
    return int(array.__array_interface__["data"][0])


def numbered(result: Any, sources: frozenset[int]) -> Any:
    """Return the floats of a result as traced numbers."""
    if type(result) is float:
        return Number(result, sources)
    if type(result) is list:
        return [numbered(item, sources) for item in result]
    return result


_BUILT_IN = ("CheckpointFunction",)  # give None back where they should
_CLEAN = -1  # a tensor seen to be made of nothing that is followed


class ObservedTensors:
    """The values of tensors, also of tensors without a traced operation.

    Args:
        parameters: the parameters to follow; bit i of every mask is the i-th.
        calls: the running module calls.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], calls: ModuleCalls) -> None:
        self.flow = Flow()
        self.source: dict[int, int] = {}  # a parameter's bit to its first value
        self.exported: dict[int, int] = {}  # address of a NumPy array to the value it shows
        self.escaped_values: int | None = None  # all that has left for Python
        self.bits = {id(p): 1 << i for i, p in enumerate(parameters)}
        self._masks = LiveMasks(self.bits)
        self._calls = calls
        self._memory: dict[int, int] = {}  # memory to the parameters in it
        for p in parameters:
            self._memory[memory_of(p)] = self._memory.get(memory_of(p), 0) | self.bits[id(p)]
        self._memory.pop(0, None)
        # The value last noted for a tensor, and the memory that the tensor had then.
        self._noted = TensorValues[tuple[int | None, int]]()
        self._holders: dict[int, int] = {}  # memory to the latest value in it
        self._writes: dict[int, int] = {}  # memory to the latest value written in place
        self._existing = {id(tensor): remembered(tensor) for tensor in live_objects(torch.Tensor)}

    def value_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor's present value; None if no followed data went into it."""
        tensor = bare(tensor)
        memory = memory_of(tensor)
        number, before = self._noted.get(tensor) or (None, memory)
        if before != memory and id(tensor) not in self.bits:
            # `set_` gives a tensor the memory of another, and no mode sees it.
            shared = self._holders.get(memory, self.source.get(self._memory.get(memory, 0)))
            number = number if shared is None else self._joined(tensor, (shared,), "set_")
        write = self._writes.get(memory, _CLEAN)
        if number is None:
            number = self._first(tensor, memory)
        if write > (_CLEAN if number is None else number):
            parents = (write,) if number in (None, _CLEAN) else (number, write)
            number = self._joined(tensor, parents)
        if number is None or number == _CLEAN:
            return None
        self._noted[tensor] = number, memory
        value = self.flow.values[number]
        # A custom Function's output gets its grad_fn only after the Function's forward.
        value.live |= self._masks.of(tensor, value.live)
        if value.live and isinstance(node := tensor.grad_fn, BackwardCFunction):
            name = type(node).__name__.removesuffix("Backward")
            value.function = None if name in _BUILT_IN else name
        return number

    def _first(self, tensor: torch.Tensor, memory: int) -> int | None:
        """Return the value of a tensor that no traced operation made."""
        bit = self.bits.get(id(tensor), 0)
        if bit:
            site = self._calls.site()
            self.source[bit] = self.flow.add(Value((), bit, "parameter", site, own=bit))
            return self.source[bit]
        live = self._masks.of(tensor, 0)
        if live and (node := tensor.grad_fn) is not None:
            return self.flow.add(Value((), live, node_name(node), self._calls.site()))
        existing = self._existing.get(id(tensor))
        if existing is not None and existing() is tensor:
            return None
        shared = self._holders.get(memory, self.source.get(self._memory.get(memory, 0)))
        if self.exported and shared is None and tensor.device.type == "cpu":
            shared = self.exported.get(tensor.data_ptr())
        if shared is not None:
            name = "nn.Parameter" if isinstance(tensor, nn.Parameter) else "from_numpy"
            return self._joined(tensor, (shared,), name)
        if self.escaped_values is not None:
            return self.flow.add(
                Value(
                    (self.escaped_values,),
                    0,
                    "torch.Tensor",
                    self._calls.site(),
                    "detached",
                    guessed=True,
                )
            )
        return None

    def _joined(self, tensor: torch.Tensor, parents: tuple[int, ...], name: str = "") -> int:
        latest = self.flow.values[parents[-1]]
        site = self._calls.site() if name else latest.site
        if name and site.file and site.line:
            # No operation is seen to make one, so this is where it is first used.
            called = name.removeprefix("nn.")
            site = replace(site, line=called_at(site.file, site.line, called))
        value = Value(
            parents,
            self._masks.of(tensor, 0),
            name or latest.op,
            site,
            latest.cause or "detached",
            latest.reason,
            self._memory.get(memory_of(tensor), 0),
        )
        return self.flow.add(value)

    def live(self, tensor: torch.Tensor) -> int:
        """Return the parameters in the tensor's graph."""
        return self._masks.of(tensor, 0)

    def own(self, tensor: torch.Tensor) -> int:
        """Return the parameters whose memory the tensor shares."""
        return self._memory.get(memory_of(tensor), 0)

    def latest(self, tensor: torch.Tensor) -> int | None:
        """Return the value that was noted last for this tensor object."""
        return (self._noted.get(tensor) or (None, 0))[0]

    def note(self, tensor: torch.Tensor, value: Value, *, written: bool) -> None:
        """Note that the tensor has this value now."""
        number = self.flow.add(value)
        memory = memory_of(tensor)
        self._noted[tensor] = number, memory
        if memory:
            self._holders[memory] = number
            if written:
                self._writes[memory] = number

    def renew(self, outputs: Iterable[torch.Tensor], memories: set[int]) -> None:
        """Forget earlier tensors at the memory of new outputs."""
        for tensor in outputs:
            memory = memory_of(tensor)
            if memory not in memories:
                self._holders.pop(memory, None)
                self._writes.pop(memory, None)

    def clean(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note tensors that depend on no followed value."""
        for tensor in tensors:
            if self._noted.get(tensor) is None and id(tensor) not in self.bits:
                self._noted[tensor] = _CLEAN, memory_of(tensor)


T = TypeVar("T")


def live_objects(kind: type[T]) -> list[T]:
    """Return every object of a class, or of a subclass, that the garbage collector knows.

    It does not use ``isinstance``, which reads ``__class__`` and may run code of the object.
    """
    kinds = _derived(kind)
    return [found for found in gc.get_objects() if type(found) in kinds]


def _derived(kind: type) -> set[type]:
    return {kind}.union(*map(_derived, type.__subclasses__(kind)))
