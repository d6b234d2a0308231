"""Observes PyTorch's functions for attention and routing until a stack is closed, also where a
module imported one by name.

If such a function raises, the traceback contains a frame of this file.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType, ModuleType
from typing import Any

import torch
import torch.jit._builtins
from torch.nn import functional

from gradscope.capture.hooks import replace
from gradscope.capture.shards import PLAIN

#: Gets the name of a function, its arguments and its result, after it returned.
Observe = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]

#: The place of each function, and its name in reports. ``functional.softmax`` calls the
#: method.
_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (functional, "scaled_dot_product_attention"),
    (torch, "softmax"),
    (torch.Tensor, "softmax"),
    (torch, "topk"),
    (torch.Tensor, "topk"),
    (torch, "argmax"),
    (torch.Tensor, "argmax"),
    (torch, "max"),
    (torch.Tensor, "max"),
)
#: The names found in each searched module, and the number of names it had.
_searched: dict[str, tuple[int, list[str]]] = {}
#: The modules in which names were found.
_holding: set[str] = set()
_counted = [0]  # modules there were when all were searched


def observe_functions(patches: ExitStack, observe: Observe) -> None:
    """Call ``observe`` after each of these functions, until ``patches`` is closed."""
    originals = [getattr(owner, name) for owner, name in _FUNCTIONS]
    aliases = list(_aliases({id(one) for one in originals}))
    functions = ExitStack()
    patches.callback(functions.close)
    places = [*_FUNCTIONS, *aliases]
    functions.callback(places.clear)
    own: dict[int, Callable[..., Any]] = {}
    for (owner, name), original in zip(_FUNCTIONS, originals, strict=True):
        replace(functions, owner, name, functools.partial(_Observed, name, observe, places))
        own[id(original)] = getattr(owner, name)
    for module, alias in aliases:  # the same wrapper, so that a second observer recognises it
        replace(functions, module, alias, lambda original: own[id(original)])
    # A script that the model compiles now: its compiler knows PyTorch's functions by identity.
    replace(functions, torch.jit._builtins, "_find_builtin", _found_by_original)
    imports = _Imports(functions.close)
    finders: list[Any] = sys.meta_path
    finders.insert(0, imports)

    def end() -> None:
        if imports in finders:
            finders.remove(imports)

    patches.callback(end)


class _Imports:
    """Ends the observation before an import of a module that keeps PyTorch's functions, such as the
    compiler with its tables."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self._end()


class _Observed:
    """A replacement for a function of PyTorch, equal to it.

    A ``__torch_function__`` compares functions with ``is``; so PyTorch's own functions are restored
    while one runs. Calls that a tensor class overrides are not observed.
    """

    def __init__(
        self,
        name: str,
        observe: Observe,
        places: Sequence[tuple[Any, str]],
        original: Callable[..., Any],
    ) -> None:
        functools.update_wrapper(self, original)
        self._name, self._observe, self._places = name, observe, places
        self._original = original  # observed too, if two models are
        self.function: Callable[..., Any] = getattr(original, "function", original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if torch.overrides.has_torch_function(given):
            with _absent(self._places):
                result = self.function(*args, **kwargs)
            if any(_overrides(type(one)) for one in given):
                return result
            # Only a mode called it, such as the one of ``torch.set_default_device``.
        else:
            result = self._original(*args, **kwargs)
        self._observe(self._name, args, kwargs, result)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return self.function == getattr(other, "function", other)

    def __hash__(self) -> int:
        return hash(self.function)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.function,)


def _overrides(kind: type) -> bool:
    """Return True if a class has its own ``__torch_function__``."""
    if kind in PLAIN:
        return False
    own = getattr(kind, "__torch_function__", None)
    return own is not None and own is not torch._C._disabled_torch_function_impl


@contextmanager
def _absent(places: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """Restore PyTorch's own functions inside the block."""
    present = ((owner, name, getattr(owner, name, None)) for owner, name in places)
    taken = [(*place, one) for *place, one in present if isinstance(one, _Observed)]
    for owner, name, found in taken:
        if owner is torch.Tensor:  # it inherits them
            delattr(owner, name)
        else:
            setattr(owner, name, found.function)
    try:
        yield
    finally:
        if places:  # otherwise the observation ended inside the call
            for owner, name, found in taken:
                setattr(owner, name, found)


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _found_by_original(find: Callable[..., Any]) -> Callable[..., Any]:
    def found(function: Any) -> Any:
        return find(function.function if isinstance(function, _Observed) else function)

    return found


def _modules() -> list[tuple[str, Any]]:
    """Return the modules to search: all if there are new ones, else those that hold a function."""
    every = sys.modules
    if len(_searched) and _counted[0] == len(every):
        return [(path, every[path]) for path in ("__main__", *_holding) if path in every]
    _counted[0] = len(every)
    return list(every.items())


def _aliases(originals: set[int]) -> Iterator[tuple[ModuleType, str]]:
    """Yield modules outside PyTorch that hold one of the functions, with the attribute.

    Each once, though the main module is ``__mp_main__`` too where multiprocessing is imported.
    """
    read = set()
    for path, module in _modules():
        if not isinstance(module, ModuleType) or path.partition(".")[0] in ("torch", "gradscope"):
            continue
        if id(module) in read:
            continue
        read.add(id(module))
        names = vars(module)
        count, found = _searched.get(path, (-1, []))
        if count != len(names) or path == "__main__":
            found = [one for one, value in list(names.items()) if id(value) in originals]
            _searched[path] = len(names), found
            if found:
                _holding.add(path)
            else:
                _holding.discard(path)
        for attribute in found:
            if id(names.get(attribute)) in originals:
                yield module, attribute
