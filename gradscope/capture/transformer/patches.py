"""PyTorch's functions that attend and route, observed while a stack is open.

Modules that imported one by its name are included. An error of such a function has this frame in
its traceback.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

from gradscope.capture.replaced import replace

#: Gets the name of a function, its arguments and its result, after it returned.
Observe = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]

#: Where each function is, and the name that it is reported by. ``functional.softmax`` calls the
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
#: The names in each module that was searched, by how many names it had.
_searched: dict[str, tuple[int, list[str]]] = {}
_counted = [0]  # modules there were when all were searched


def observe_functions(patches: ExitStack, observe: Observe) -> None:
    """Call ``observe`` after each of these functions, until ``patches`` is closed."""
    originals = [getattr(owner, name) for owner, name in _FUNCTIONS]
    aliases = list(_aliases({id(one) for one in originals}))
    own: dict[int, Callable[..., Any]] = {}
    for (owner, name), original in zip(_FUNCTIONS, originals, strict=True):
        replace(patches, owner, name, functools.partial(_observed, name, observe))
        own[id(original)] = getattr(owner, name)
    for module, alias in aliases:  # the same function, or a second observer would not know it
        replace(patches, module, alias, lambda original: own[id(original)])


def _observed(name: str, observe: Observe, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        observe(name, args, kwargs, result)
        return result

    return function


def _modules() -> list[tuple[str, Any]]:
    """The modules to search: all where there are new ones, else those that hold a function."""
    every = sys.modules
    if len(_searched) and _counted[0] == len(every):
        found = [path for path, (_, names) in _searched.items() if names]
        return [(path, every[path]) for path in ("__main__", *found) if path in every]
    _counted[0] = len(every)
    return list(every.items())


def _aliases(originals: set[int]) -> Iterator[tuple[ModuleType, str]]:
    """Modules outside PyTorch that hold one of the functions, and the attribute."""
    for path, module in _modules():
        if not isinstance(module, ModuleType) or path.partition(".")[0] in ("torch", "gradscope"):
            continue
        names = vars(module)
        count, found = _searched.get(path, (-1, []))
        if count != len(names) or path == "__main__":
            found = [one for one, value in list(names.items()) if id(value) in originals]
            _searched[path] = len(names), found
        for attribute in found:
            if id(names.get(attribute)) in originals:
                yield module, attribute
