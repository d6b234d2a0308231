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
_searched: dict[str, tuple[int, list[tuple[str, str]]]] = {}


def observe_functions(patches: ExitStack, observe: Observe) -> None:
    """Call ``observe`` after each of these functions, until ``patches`` is closed."""
    originals = {id(getattr(owner, name)): name for owner, name in _FUNCTIONS}
    aliases = list(_aliases(originals))
    for owner, name in _FUNCTIONS:
        replace(patches, owner, name, functools.partial(_observed, name, observe))
    for module, alias, name in aliases:
        replace(patches, module, alias, functools.partial(_observed, name, observe))


def _observed(name: str, observe: Observe, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        observe(name, args, kwargs, result)
        return result

    return function


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
