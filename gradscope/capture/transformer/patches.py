"""PyTorch's functions that attend and route, observed while a stack is open.

Modules that imported one by its name are included. An error of such a function has this frame in
its traceback.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType, ModuleType
from typing import Any

import torch
import torch.jit._builtins
from torch.nn import functional

from gradscope.capture.replaced import replace

#: Gets the name of a function, its arguments and its result, after it returned.
Observe = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]

#: Place of each function, and its name in reports. ``functional.softmax`` calls the method.
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
#: The names in each module that was searched, by how many names it had.
_searched: dict[str, tuple[int, list[tuple[str, str]]]] = {}


def observe_functions(patches: ExitStack, observe: Observe) -> None:
    """Call ``observe`` after each of these functions, until ``patches`` is closed."""
    originals = {id(getattr(owner, name)): name for owner, name in _FUNCTIONS}
    aliases = list(_aliases(originals))
    places = [*_FUNCTIONS, *((module, alias) for module, alias, _ in aliases)]
    for owner, name in places:
        reported = originals[id(getattr(owner, name))]
        replace(patches, owner, name, functools.partial(_Observed, reported, observe, places))
    # Of scripts, which the model may compile now: it knows PyTorch's functions by identity.
    replace(patches, torch.jit._builtins, "_find_builtin", _found_by_original)


class _Observed:
    """A function in the place of one of PyTorch's, and equal to it.

    A ``__torch_function__`` compares functions with ``is``: while one runs, PyTorch's own are in
    their places, and nothing is observed.
    """

    def __init__(
        self,
        name: str,
        observe: Observe,
        places: list[tuple[Any, str]],
        original: Callable[..., Any],
    ) -> None:
        functools.update_wrapper(self, original)
        self._name, self._observe, self._places = name, observe, places
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.overrides.has_torch_function((*args, *kwargs.values())):
            with _absent(self._places):
                return self.original(*args, **kwargs)
        result = self.original(*args, **kwargs)
        self._observe(self._name, args, kwargs, result)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return self.original == getattr(other, "original", other)

    def __hash__(self) -> int:
        return hash(self.original)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.original,)


@contextmanager
def _absent(places: list[tuple[Any, str]]) -> Iterator[None]:
    """Restore PyTorch's own functions in the block."""
    taken = [(owner, name, getattr(owner, name)) for owner, name in places]
    taken = [one for one in taken if isinstance(one[-1], _Observed)]
    for owner, name, function in taken:
        setattr(owner, name, function.original)
    try:
        yield
    finally:
        for owner, name, function in taken:
            setattr(owner, name, function)


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _found_by_original(find: Callable[..., Any]) -> Callable[..., Any]:
    def found(function: Any) -> Any:
        return find(function.original if isinstance(function, _Observed) else function)

    return found


def _aliases(originals: dict[int, str]) -> Iterator[tuple[ModuleType, str, str]]:
    """Modules outside PyTorch that hold one of the functions: module, attribute, function."""
    for path, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or path.partition(".")[0] in ("torch", "gradscope"):
            continue
        names = vars(module)
        count, found = _searched.get(path, (-1, []))
        if count != len(names) or path == "__main__":
            found = [
                (attribute, originals[id(value)])
                for attribute, value in list(names.items())
                if id(value) in originals
            ]
            _searched[path] = len(names), found
        for attribute, name in found:
            if id(names.get(attribute)) in originals:
                yield module, attribute, name
