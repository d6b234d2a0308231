"""Under which names the variables of a running script hold its modules and optimizers."""

from __future__ import annotations

import gc
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

#: Frames that are not the script's: the tracer's own and those of runpy, which starts it.
_NOT_ITS_OWN = (
    __file__,
    str(Path(__file__).with_name("tracer.py")),
    "<frozen runpy>",
    runpy.__file__,
)


def modules_alive(torch: Any) -> list[Any]:
    """The outermost modules of the process: those that no other module holds."""
    everything = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    inner = {id(child) for m in everything for child in m._modules.values()}
    return [m for m in everything if id(m) not in inner]


def scopes_of(frame: FrameType | None) -> Iterable[dict[str, Any]]:
    """The variables of the functions that are running, and those of their modules."""
    found: dict[int, dict[str, Any]] = {}
    while frame is not None:
        if frame.f_code.co_filename not in _NOT_ITS_OWN:
            found[id(frame)] = dict(frame.f_locals)
            found[id(frame.f_globals)] = dict(frame.f_globals)
        frame = frame.f_back
    return found.values()


def held_in(scope: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield the variables' values by name, and the contents of objects, lists and dicts in them."""
    for name, value in list(scope.items()):
        if name not in ("self", "args"):
            yield name, value
        if isinstance(value, list | tuple) and len(value) < 100:
            yield from ((f"{name}[{i}]", element) for i, element in enumerate(value))
        elif type(value) is dict and len(value) < 100:
            yield from ((f"{name}[{key!r}]", element) for key, element in list(value.items()))
        try:  # without what its own class does when it is asked
            attributes = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            continue
        for attribute, held in list(attributes.items()):
            yield attribute, held
            yield f"{name}.{attribute}", held
            if isinstance(held, list) and len(held) < 100:
                yield from ((f"{name}.{attribute}[{i}]", e) for i, e in enumerate(held))


def variables(torch: Any, frame: FrameType | None) -> list[tuple[str, Any]]:
    """Outermost modules and the names under which variables hold them; their classes' names too."""
    outermost = {id(m): m for m in modules_alive(torch)}
    for m in list(outermost.values()):  # a wrapper goes by the name of what it wraps
        inner = m._modules.get("_orig_mod", m._modules.get("module"))
        if inner is not None:
            outermost[id(inner)] = inner
    found = {(type(m).__name__, id(m)): m for m in outermost.values()}
    for scope in [vars(sys.modules["__main__"]), *scopes_of(frame)]:
        for name, value in held_in(scope):
            if id(value) in outermost:
                found[name, id(value)] = value
    return [(name, module) for (name, _), module in found.items()]
