"""Compares the backward of the script's own ``torch.autograd.Function``s with finite differences.

In a sampled step it keeps the arguments of each function's first call, if they are small. After the
step, it calls the function again on them, in float64, a few times. It skips functions whose code
writes to anything outside, and functions with arguments other than tensors and numbers.
"""

from __future__ import annotations

import ast
import dis
import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from gradscope.explain.shared.frames import classes_of_script, in_library, is_hidden, shown
from gradscope.records.loop_figures import LoopFunction

_Function: Any = torch.autograd.Function
_PLAIN = (type(None), bool, int, float, str)
#: Elements of all arguments together, above which nothing is kept; and classes that are checked.
_LARGEST, _MOST = 1 << 16, 8
#: How far inputs are moved, relative to their size; random directions; and a relative error that
#: no rounding makes.
_STEP, _DIRECTIONS, _WRONG = 1e-6, 4, 0.1
_METHODS = ("forward", "backward")
#: Values of global variables that no line can write to.
_FIXED = (*_PLAIN, tuple, type, FunctionType, BuiltinFunctionType, torch.dtype)
#: Operations and calls that write to outer state, by name.
_WRITES = frozenset({"STORE_GLOBAL", "STORE_DEREF", "DELETE_GLOBAL"})
_CALLS = frozenset({"append", "extend", "insert", "pop", "update", "write", "open", "setattr"})


class CustomFunctions:
    """Keeps arguments in sampled steps, and checks each function once."""

    def __init__(self) -> None:
        self._known: set[type] = set()
        self._wrapped: list[tuple[Any, Any, Any]] = []
        self._kept: dict[type, tuple[Any, ...]] = {}
        self._found: list[LoopFunction] = []

    def sample_begins(self, keep: Callable[[type, Sequence[Any]], None]) -> None:
        """Call ``keep`` with the arguments of each function's forward from now on.

        If a function raises in a sampled step, its traceback contains a frame of this file.
        """
        self.sample_ended()
        for kind in _own_functions(_Function):
            if kind not in self._known and len(self._known) < _MOST and _is_pure(kind):
                self._wrap(kind, keep)

    def keep(self, kind: type, args: Sequence[Any]) -> None:
        """Keep the arguments of a function's first call in the step."""
        if kind in self._kept or kind in self._known:
            return
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        small = sum(one.numel() for one in tensors) <= _LARGEST
        plain = all(type(one) in (torch.Tensor, torch.nn.Parameter, *_PLAIN) for one in args)
        there = all(one.layout == torch.strided and not one.is_meta for one in tensors)
        self._known.add(kind)
        if small and plain and there:
            self._kept[kind] = tuple(
                one.detach().clone().requires_grad_(one.requires_grad)
                if isinstance(one, torch.Tensor)
                else one
                for one in args
            )

    def sample_ended(self) -> None:
        """Restore the script's own functions."""
        for kind, own, wrapped in self._wrapped:
            if vars(kind).get("forward") is wrapped:
                kind.forward = own
        self._wrapped.clear()

    def check(self, step: int) -> None:
        """Check those that were called in this step."""
        kept, self._kept = self._kept, {}
        for kind, args in kept.items():
            gpus = {t.device.index for t in args if isinstance(t, torch.Tensor) and t.is_cuda}
            quiet = io.StringIO()
            with torch.random.fork_rng(gpus), redirect_stdout(quiet), redirect_stderr(quiet):
                found = _checked(kind, args)
                number = None if found is not None else _stopped(kind, args)
            if number is not None:
                self._found.append(
                    LoopFunction(
                        name=kind.__qualname__, input=number, step=step, backward=0.0,
                        differences=0.0, zeros=True, ignores=False, flat=True,
                        location=_zeroing_line(kind) or _line(kind),
                    )
                )  # fmt: skip
            if found is not None:
                number, backward, differences, zeros = found
                self._found.append(
                    LoopFunction(
                        name=kind.__qualname__, input=number, step=step, backward=backward,
                        differences=differences, zeros=zeros,
                        ignores=not zeros and _ignores(kind, args, number), location=_line(kind),
                    )
                )  # fmt: skip

    def records(self) -> tuple[LoopFunction, ...]:
        """Return the functions with a wrong backward, and those that pass no gradient."""
        return tuple(self._found)

    def _wrap(self, kind: Any, keep: Callable[[type, Sequence[Any]], None]) -> None:
        own = vars(kind)["forward"]
        forward: Callable[..., Any] = kind.forward
        has_context = kind.setup_context is _Function.setup_context

        def observed(*args: Any, **kwargs: Any) -> Any:
            if not kwargs:
                keep(kind, args[1:] if has_context else args)
            return forward(*args, **kwargs)

        wrapped = staticmethod(observed)
        kind.forward = wrapped
        self._wrapped.append((kind, own, wrapped))


def _own_functions(of: Any) -> Iterator[type]:
    """Yield the script's classes that define both forward and backward."""
    for kind in of.__subclasses__():
        yield from _own_functions(kind)
        if kind.__module__.startswith("torch."):  # about 200 of them, in every sampled step
            continue
        methods = (_method(kind, name) for name in _METHODS)
        if all(one is not None and _is_own(one) for one in methods):
            yield kind


def _method(kind: type, name: str) -> FunctionType | None:
    found = vars(kind).get(name)
    found = found.__func__ if isinstance(found, staticmethod) else found
    return found if isinstance(found, FunctionType) else None


def _is_own(method: FunctionType) -> bool:
    file = method.__code__.co_filename
    return not is_hidden(file) and not in_library(file)


def _is_pure(kind: type) -> bool:
    """Return True if neither the methods nor the script's functions that they call write to state
    that outlives the call, or read a variable of the script that may change.
    """
    found = [m for name in (*_METHODS, "setup_context") if (m := _method(kind, name)) is not None]
    for method in found:  # grows on the way
        codes = [method.__code__]
        for code in codes:  # so does this
            codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
            if _CALLS & {*code.co_names} or _writes(code):
                return False
            used = [method.__globals__[one] for one in code.co_names if one in method.__globals__]
            used += _bound(method)
            if not all(map(_is_fixed, used)):
                return False
            own = (one for one in used if isinstance(one, FunctionType) and _is_own(one))
            found += [one for one in own if one not in found]
    return True


def _bound(method: FunctionType) -> Iterator[object]:
    """Yield the defaults of a method, and the outer variables that it reads."""
    yield from method.__defaults__ or ()
    for cell in method.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield None


def _is_fixed(found: object) -> bool:
    """Return True for a value that no line writes to: a class must have no list, dict or tensor."""
    if isinstance(found, type) and any(
        isinstance(value, list | dict | set | torch.Tensor)
        for name, value in vars(found).items()
        if not name.startswith("__")
    ):
        return False
    return isinstance(found, _FIXED) or _is_plain_module(found)


def _is_plain_module(found: object) -> bool:
    """Return True if a module has no state that must be restored, as NumPy's random module has."""
    return isinstance(found, ModuleType) and found.__name__.partition(".")[0] in ("torch", "math")


def _writes(code: CodeType) -> bool:
    """Return True if the code sets a global, an outer variable, or an attribute of anything but
    ``ctx``.
    """
    loaded = None
    for step in dis.get_instructions(code):
        if step.opname in _WRITES or (step.opname == "STORE_ATTR" and loaded != "ctx"):
            return True
        loaded = step.argval if step.opname.startswith("LOAD_FAST") else None
    return False


def _zeroing_line(kind: type) -> str | None:
    """Return the only line of backward that sets a part of a tensor to zero, as
    ``grad[x.abs() > 1] = 0``; None without one."""
    lines = {
        f"{shown(file)}:{node.lineno}"
        for file, owner in classes_of_script(kind)
        for method in owner.body
        if isinstance(method, ast.FunctionDef) and method.name == "backward"
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
        if ast.unparse(node.value) in ("0", "0.0")
    }
    return lines.pop() if len(lines) == 1 else None


def _line(kind: type) -> str | None:
    """Return the place of the ``return`` in backward; None if unknown."""
    method = _method(kind, "backward")
    if method is None:
        return None
    line = method.__code__.co_firstlineno
    for step in dis.get_instructions(method):
        line = step.starts_line or line if isinstance(step.starts_line, int) else line
        if step.opname == "RETURN_VALUE":
            return f"{shown(method.__code__.co_filename)}:{line}"
    return None


# ------------------------------------------------------------------------- the check


def _checked(kind: Any, args: Sequence[Any]) -> tuple[int, float, float, bool] | None:
    """Return the argument with a wrong gradient, and both derivatives; None if there is none.

    Functions without a derivative, or with another backward on purpose, are not judged: step
    functions such as `sign` and `round`, identities (gradient reversal, clipping), random
    functions.
    """
    try:
        return _compared(kind, [_doubled(one) for one in args])
    except Exception:  # it cannot be called in float64, as it asserts
        return None


def _stopped(kind: Any, args: Sequence[Any]) -> int | None:
    """Return the first argument with a gradient, if backward returns zeros for all of them; None
    otherwise."""
    try:
        inputs = [n for n, one in enumerate(args) if getattr(one, "requires_grad", False)]
        with torch.no_grad():
            result = kind.apply(*[_copy(one) for one in args])
        if not inputs or not isinstance(result, torch.Tensor):
            return None
        # Not ones: the backward of a softmax or a difference from the mean makes zeros of them.
        weights = torch.randn_like(result)
        passed = any(_gradient(kind, args, n, weights).any() for n in inputs)
    except Exception:  # it needs something else of the script
        return None
    return None if passed else inputs[0]


def _doubled(one: Any) -> Any:
    if not isinstance(one, torch.Tensor) or not one.is_floating_point():
        return one
    return one.detach().double().requires_grad_(one.requires_grad)


def _compared(kind: Any, args: list[Any]) -> tuple[int, float, float, bool] | None:
    inputs = [n for n, one in enumerate(args) if getattr(one, "requires_grad", False)]
    first, again = _values(kind, args), _values(kind, args)
    if not inputs or first is None or again is None or not torch.equal(first, again):
        return None
    if any(args[n].shape == first.shape and torch.equal(args[n], first) for n in inputs):
        return None
    wrong: tuple[int, float, float, bool] | None = None
    for number in inputs:
        found = [_slopes(kind, args, number, seed) for seed in range(_DIRECTIONS)]
        pairs = [one for one in found if one is not None]
        if len(pairs) < len(found):
            return None
        error = math.hypot(*(a - b for a, b, _ in pairs))
        if wrong is None and error > _WRONG * math.hypot(
            *(max(abs(a), abs(b)) for a, b, _ in pairs)
        ):
            wrong = number, *max(pairs, key=lambda one: abs(one[0] - one[1]))
    return wrong


def _values(kind: Any, args: Sequence[Any]) -> torch.Tensor | None:
    with torch.no_grad():
        result = kind.apply(*[_copy(one) for one in args])
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return None
    return result if result.dtype == torch.float64 and bool(result.isfinite().all()) else None


def _copy(one: Any) -> Any:
    return one.detach().clone() if isinstance(one, torch.Tensor) else one


def _slopes(
    kind: Any, args: Sequence[Any], number: int, seed: int
) -> tuple[float, float, bool] | None:
    """Return the derivative in one direction, by backward and by finite differences; None without
    one."""
    generator = torch.Generator().manual_seed(seed)
    leaf = args[number].detach()
    direction = torch.randn(leaf.shape, generator=generator, dtype=torch.float64, device="cpu").to(
        leaf
    )
    step = _STEP * max(1.0, float(leaf.square().mean().sqrt()))
    change = _change(kind, args, number, step * direction)
    if change is None or not bool(change.any()):
        return None  # flat: a step, whose backward is another on purpose
    if change.shape == leaf.shape:  # where it is flat, backward may be meant to be another
        direction = direction * (change != 0)
    weights = torch.randn(change.shape, generator=generator, dtype=torch.float64, device="cpu").to(
        change
    )
    slopes = []
    for size in (step, step / 8):
        moved = _change(kind, args, number, size * direction)
        if moved is None:
            return None
        slopes.append(float((moved * weights).sum()) / (2 * size))
    if abs(slopes[0] - slopes[1]) > 1e-2 * max(map(abs, slopes)):
        return None  # a jump or a kink lies between
    gradient = _gradient(kind, args, number, weights)
    return float((gradient * direction).sum()), slopes[0], not bool(gradient.any())


def _ignores(kind: Any, args: Sequence[Any], number: int) -> bool:
    """Return True if backward returns the same for two different output gradients."""
    given = [_doubled(one) for one in args]
    first = _values(kind, given)
    if first is None:
        return False
    one, other = (_gradient(kind, given, number, x * torch.ones_like(first)) for x in (1.0, -2.0))
    return torch.equal(one, other)


def _change(
    kind: Any, args: Sequence[Any], number: int, distance: torch.Tensor
) -> torch.Tensor | None:
    """Return the change of the result when one argument moves to both sides."""
    sides = []
    for sign in (1, -1):
        moved = list(args)
        moved[number] = args[number].detach() + sign * distance
        sides.append(_values(kind, moved))
    first, second = sides
    return None if first is None or second is None else first - second


def _gradient(kind: Any, args: Sequence[Any], number: int, weights: torch.Tensor) -> torch.Tensor:
    leaves = [
        one.detach().clone().requires_grad_(one.requires_grad)
        if isinstance(one, torch.Tensor) and one.is_floating_point()
        else _copy(one)
        for one in args
    ]
    with torch.enable_grad():
        result = kind.apply(*leaves)
    (found,) = torch.autograd.grad(result, leaves[number], weights, allow_unused=True)
    return torch.zeros_like(leaves[number]) if found is None else found
