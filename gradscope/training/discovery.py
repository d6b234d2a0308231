"""Finds the models that a script trains, their optimizers, and their names in the script.

A model is an outermost module, which no other live module contains. The search goes over all live
objects when an optimizer is made: after its model exists, and before its first step.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import (
    CodeType,
    FrameType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.loading.surgery import unwrapped

#: Frames around the script's own: their variables are not the script's.
_LIBRARIES = ("torch", "gradscope", "runpy")
#: How a class gives the attributes of its objects, unless it has a method of its own for it.
_ATTRIBUTES = (GetSetDescriptorType, MemberDescriptorType)
#: Usual name of a method's object.
_NO_NAMES = ("self", "cls")
#: The depth of a search through objects, and the number of values that it reads, at most.
_LEVELS, _VALUES = 3, 4096


def outermost_modules(known: Iterable[nn.Module] = ()) -> list[nn.Module]:
    """Return the live modules that no other contains, and that have a parameter that requires a
    gradient.

    Args:
        known: modules that are found also after ``gc.freeze``, which hides all that exist.
    """
    return [module for module in _unheld_modules(known) if _trains(module)]


def frozen_modules() -> list[nn.Module]:
    """Return top-level modules with parameters that are all frozen."""
    return [
        module
        for module in _unheld_modules()
        if not _trains(module) and any(True for _ in module.parameters())
    ]


def _unheld_modules(known: Iterable[nn.Module] = ()) -> list[nn.Module]:
    """Return the live modules that no other holds, if ``Module.__init__`` has run for them."""
    # Not `isinstance`: a lazy proxy would load its object.
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    seen = {id(one) for one in modules}
    modules += [one for one in known if id(one) not in seen]
    held = {
        id(child)
        for module in modules
        for child in (module.__dict__.get("_modules") or {}).values()
    }
    return [one for one in modules if id(one) not in held and "_parameters" in one.__dict__]


def optimizers_of(models: Sequence[nn.Module]) -> list[Optimizer]:
    """Return the live optimizers that hold a parameter of these modules."""
    mine = {id(parameter) for model in models for parameter in model.parameters()}
    return [
        one
        for one in live_optimizers()
        if any(id(p) in mine for group in one.param_groups for p in group["params"])
    ]


def live_optimizers() -> list[Optimizer]:
    """Return the optimizers whose constructor has returned."""
    found = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]
    return [one for one in found if "param_groups" in one.__dict__ and "state" in one.__dict__]


def steps_made(optimizer: Optimizer) -> int | None:
    """Return the optimizer's number of steps from its state; None if there is none."""
    counts = [one["step"] for one in optimizer.state.values() if "step" in one]
    return int(max(counts)) if counts else None


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def variable_name(found: object) -> str | None:
    """Return the script's name for an object: a variable of the main module or of a running
    function, else an attribute of an object in such a variable.
    """
    same = _same(found)
    scopes = [dict(vars(sys.modules["__main__"])), *_scopes()]
    for scope in scopes:
        for name, value in scope.items():
            if id(value) in same and not name.startswith("_") and name not in _NO_NAMES:
                return name
    for scope in scopes:
        for owner in list(scope.values()):
            attributes = _plain_attributes(owner)
            for name, value in attributes.items():
                if id(value) in same:
                    return str(name)
    return None


def variable_value(name: str) -> object:
    """Return the value of the script's variable of this name, the innermost; None without one."""
    for scope in reversed([dict(vars(sys.modules["__main__"])), *_scopes()]):
        if name in scope:
            return scope[name]
    return None


def holder_of(found: object) -> tuple[str, str] | None:
    """Return the script's variable whose object has this as an attribute, and that object's
    class."""
    same = _same(found)
    for scope in (dict(vars(sys.modules["__main__"])), *_scopes()):
        for name, owner in list(scope.items()):
            if name.startswith("_") or isinstance(owner, dict):
                continue
            if any(id(value) in same for value in _plain_attributes(owner).values()):
                return name, type(owner).__name__
    return None


def script_lists() -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the lists and deques in the script's variables and in attributes of their objects, each
    with its name. Classes of the script are left out: their methods are its own."""
    for scope in (dict(vars(sys.modules["__main__"])), *_scopes()):
        for name, value in list(scope.items()):
            if name.startswith("__"):
                continue
            of_value = [(f"{name}.{attribute}", one) for attribute, one in _inside(value)]
            for path, one in [(name, value), *of_value]:
                if type(one) in (list, deque):
                    yield path, one


def names_of(found: object) -> set[tuple[str, type | None]]:
    """Return the names of all variables of the script, and of all attributes of their objects, that
    hold an object, each with the class of the object that has the attribute."""
    return {
        held
        for scope in (dict(vars(sys.modules["__main__"])), *_scopes())
        for name, value in list(scope.items())
        for held, one in [
            ((name, None), value),
            *(((attribute, type(value)), of) for attribute, of in _inside(value)),
        ]
        if one is found
    }


def _inside(owner: object) -> list[tuple[str, Any]]:
    """Return an object's attributes, not the entries of a mapping."""
    return [] if issubclass(type(owner), dict) else list(_plain_attributes(owner).items())


def _same(found: object) -> set[int]:
    """Return the ids that a variable may hold for an object: its own id, and the id of a wrapped
    module."""
    if not isinstance(found, nn.Module):
        return {id(found)}
    return {id(found), id(unwrapped(found)[0])}


@dataclass(frozen=True, slots=True)
class ScriptValue:
    """A value that the script holds.

    Attributes:
        path: a variable, or an attribute of the object in one: ``trainer.meter.sum``.
        value: the value.
        owner: the class of the object that has the attribute; "" for a variable.
        code: the function whose variable the path begins with; None for one of the main module.
    """

    path: str
    value: Any
    owner: str
    code: CodeType | None


def script_values() -> Iterator[ScriptValue]:
    """Yield the values of the script's variables, of the attributes of their objects, and of these
    objects' own attributes, as many as a search may read."""
    main = vars(sys.modules["__main__"])
    scopes: list[tuple[dict[str, Any], CodeType | None]] = [(dict(main), None)]
    for frame in _frames():
        if frame.f_globals is not main or frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            scopes.append((_variables(frame), frame.f_code))
    count, seen = 0, set[int]()
    for scope, code in scopes:
        level = [
            ScriptValue(name, value, "", code)
            for name, value in scope.items()
            if not name.startswith("__")
        ]
        for _ in range(_LEVELS):
            yield from level
            count += len(level)
            owners = [one for one in level if id(one.value) not in seen]
            seen.update(id(one.value) for one in owners)
            level = []
            for one in owners:
                inside = _plain_attributes(one.value)
                if not inside or count + len(level) + len(inside) > _VALUES:
                    continue
                form = "{}[{!r}]" if issubclass(type(one.value), dict) else "{}.{}"
                kind = type(one.value).__name__
                for name, value in inside.items():
                    level.append(ScriptValue(form.format(one.path, name), value, kind, code))


def _scopes() -> Iterator[dict[str, Any]]:
    """Yield the local variables of the script's running functions, outermost first."""
    for frame in _frames():
        yield _variables(frame)


def _frames() -> list[FrameType]:
    """Return the frames of the script's running functions, outermost first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return [
        one
        for one in reversed(frames)
        if str(one.f_globals.get("__name__", "")).partition(".")[0] not in _LIBRARIES
    ]


def _variables(frame: FrameType) -> dict[str, Any]:
    """Return the local variables of a frame at this moment.

    Before Python 3.13, the first request makes a dict that stays on the frame, and keeps alive what
    the script deletes later. So this function empties the dict again, except if the script holds it
    (``locals()``) or a debugger writes it back into the variables.
    """
    asked = frame.f_locals
    found = dict(asked)
    made_anew = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    # Who has it: the frame, this function, and the call that counts.
    if made_anew and sys.getrefcount(asked) <= 3 and sys.gettrace() is None:
        asked.clear()
    return found


def _plain_attributes(owner: object) -> dict[str, Any]:
    """Return the attributes of the script's own objects, and the entries of a mapping by name,
    without a call of their methods."""
    kind: type = type(owner)  # not `isinstance`: a lazy proxy would load its object
    found: Any = owner
    if issubclass(kind, type | nn.Module | torch.Tensor):
        return {}
    if not issubclass(kind, dict):
        of: Any = next(
            (vars(one)["__dict__"] for one in kind.__mro__ if "__dict__" in vars(one)), None
        )
        if kind.__module__ == "builtins" or type(of) not in _ATTRIBUTES:
            return {}
        found = of.__get__(owner)
    return {name: value for name, value in list(dict.items(found)) if type(name) is str}


#: The method of a module that ``module.compile()`` compiles.
IN_PLACE = "_call_impl"


def compiled_method(what: object) -> str | None:
    """Return the name of the method, if ``torch.compile`` is called on one of a module."""
    if isinstance(what, MethodType) and isinstance(what.__self__, nn.Module):
        return what.__name__
    return None


def compiled_forward(what: object) -> nn.Module | None:
    """Return the module whose ``forward`` alone is compiled, if ``torch.compile`` is called on one.

    That includes a compiled module that is compiled again: the result is a function.
    """
    if isinstance(what, nn.Module) and type(what).__name__ == "OptimizedModule":
        return unwrapped(what)[0]
    if compiled_method(what) == "forward":
        return what.__self__  # type: ignore[attr-defined, no-any-return]
    return None


def compiled_inside(
    outer: nn.Module, model: nn.Module, forwards: Container[nn.Module]
) -> str | None:
    """Return the compiled part: the "model", "parts" of it, or None. A hook there would be traced.

    Args:
        outer: the model with its wrappers.
        model: the script's own.
        forwards: the modules whose ``forward`` alone is compiled.
    """
    compiled = [
        m
        for m in outer.modules()
        if type(m).__name__ == "OptimizedModule"
        or m._compiled_call_impl is not None
        or m in forwards
    ]
    if not compiled:
        return None
    return "model" if any(unwrapped(m)[0] is model for m in compiled) else "parts"


def stages_imported() -> ModuleType | None:
    """Return PyTorch's module that runs stages; None if the script has not imported it."""
    return sys.modules.get("torch.distributed.pipelining.stage")


def stage_of(outer: nn.Module) -> int | None:
    """Return the number of a model's stage, counted from 0 over all processes."""
    imported = stages_imported()
    if imported is None:
        return None
    kind = imported._PipelineStageBase
    # Not `isinstance`: a lazy proxy would load its object.
    stages: list[Any] = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    return next((one.stage_index for one in stages if one.submod is outer), None)
