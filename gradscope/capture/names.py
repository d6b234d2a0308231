"""Names of a model's modules and tensors, without wrappers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gradscope.patterns import Named, without_wrappers, wraps

#: Methods that a class may override: their results then depend on more than a module's
#: dictionaries.
_WALKS = ("named_modules", "named_parameters", "_named_members", "modules", "parameters")
_Ref = weakref.ref[nn.Module]
#: The place of a parameter: a module that has it, and the name there.
_Place = tuple[_Ref, str]


class _Tree:
    """The modules and parameters below one module, with their names.

    A walk by ``named_modules`` takes ten times as long as the check that nothing has changed. There
    are weak references to modules only: ``torch.utils.swap_tensors`` refuses tensors with one.

    Attributes:
        parts: each module, its class, and its own children and parameters, wrappers included.
        places: the first place of each parameter, by its id.
        module_names, parameter_names: each with its name, once they are needed.
        below: each module with the parameters in it and below it, once they are needed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parts = [
            (weakref.ref(one), type(one), _held(one._modules), _held(one._parameters))
            for one in model.modules()
        ]
        self.places: dict[int, _Place] = {}
        for module, _, _, (names, ids) in self.parts:
            for name, key in zip(names, ids, strict=True):
                if key != id(None):
                    self.places.setdefault(key, (module, name))
        self.module_names: list[tuple[_Ref, Named]] | None = None
        self.parameter_names: list[tuple[_Place, Named]] | None = None
        self.below: list[tuple[_Ref, list[_Place]]] | None = None

    def is_of(self, model: nn.Module) -> bool:
        """Return True if the model and all its modules have the same children and parameters."""
        if self.parts[0][0]() is not model:  # another one that its class calls equal
            return False
        for reference, kind, children, parameters in self.parts:
            module = reference()
            if (
                type(module) is not kind
                or _held(module._modules) != children
                or _held(module._parameters) != parameters
            ):
                return False
        return True


_trees: weakref.WeakKeyDictionary[nn.Module, _Tree] = weakref.WeakKeyDictionary()


def _tree(model: nn.Module) -> _Tree | None:
    """Return the tree below a module, built again if it has changed; None if a class overrides the
    walk."""
    found = _trees.get(model)
    if found is None or not found.is_of(model):
        _trees.pop(model, None)
        if any(map(_walks_itself, set(map(type, model.modules())))):
            return None
        found = _trees[model] = _Tree(model)
    return found


def _walks_itself(kind: type[nn.Module]) -> bool:
    return issubclass(kind, torch.jit.ScriptModule) or any(
        getattr(kind, name) is not getattr(nn.Module, name) for name in _WALKS
    )


def _held(things: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and the ids of a module's own children and parameters.

    A new child may have the id of a freed one; the dead weak reference of the old child shows that.
    A new parameter with the id of a freed one is found at the same place.
    """
    return tuple(things), tuple(map(id, things.values()))


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return every module once, wrappers included, like ``model.modules()``."""
    tree = _tree(model)
    return list(model.modules()) if tree is None else _alive(ref for ref, *_ in tree.parts)


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """Return every parameter once, like ``model.parameters()``."""
    tree = _tree(model)
    return list(model.parameters()) if tree is None else _at(tree.places.values())


def parameters_below(model: nn.Module) -> dict[nn.Module, list[nn.Parameter]]:
    """Return ``parameters_of`` each module."""
    tree = _tree(model)
    if tree is not None and tree.below is not None:
        return {one: _at(places) for ref, places in tree.below if (one := ref()) is not None}
    found = {one: list(one.parameters()) for one in modules_of(model)}
    if tree is not None:
        places = tree.places
        tree.below = [
            (weakref.ref(one), [places[id(p)] for p in own]) for one, own in found.items()
        ]
    return found


def _alive(references: Iterable[_Ref]) -> list[nn.Module]:
    return [one for reference in references if (one := reference()) is not None]


def _at(places: Iterable[_Place]) -> list[nn.Parameter]:
    """Return the parameters at places of a tree that has not changed."""
    found = ((reference(), name) for reference, name in places)
    return [module._parameters[name] for module, name in found if module is not None]  # type: ignore[misc]


def named_modules(model: nn.Module) -> dict[nn.Module, Named]:
    """Return every module once, with its first name and its other names.

    Pure wrappers are left out; the module inside has the wrapper's name.
    """
    tree = _tree(model)
    if tree is not None and tree.module_names is not None:
        return {one: named for ref, named in tree.module_names if (one := ref()) is not None}
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not wraps(module._modules):
            names.setdefault(module, []).append(without_wrappers(name))
    found = {
        module: Named(
            first, tuple(others), tuple(c.__name__ for c in written_class(module).__mro__)
        )
        for module, (first, *others) in names.items()
    }
    if tree is not None:
        tree.module_names = [(weakref.ref(one), named) for one, named in found.items()]
    return found


def named_parameters(model: nn.Module) -> dict[nn.Parameter, Named]:
    """Return every parameter once, with its first name and its other names."""
    tree = _tree(model)
    if tree is not None and tree.parameter_names is not None:
        places = (place for place, _ in tree.parameter_names)
        return dict(zip(_at(places), (named for _, named in tree.parameter_names), strict=True))
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(without_wrappers(name))
    found = {p: Named(first, tuple(others)) for p, (first, *others) in names.items()}
    if tree is not None:
        tree.parameter_names = [(tree.places[id(p)], named) for p, named in found.items()]
    return found


def module_names(model: nn.Module) -> dict[nn.Module, str]:
    """Return the first name of every module."""
    return {module: named.name for module, named in named_modules(model).items()}


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module under each of its names; wrappers are left out."""
    return {
        name: module
        for module, named in named_modules(model).items()
        for name in (named.name, *named.aliases)
    }


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return every parameter under each of its names."""
    return {
        name: p
        for p, named in named_parameters(model).items()
        for name in (named.name, *named.aliases)
    }


def first_names(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return every parameter once, with its first name."""
    return ((named.name, p) for p, named in named_parameters(model).items())


def buffer_names(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Return every buffer once, with its first name."""
    return ((without_wrappers(name), b) for name, b in model.named_buffers())


def written_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module in the script; ``fully_shard`` and similar functions derive a
    new class from it."""
    kind = type(module)
    while kind.__module__.startswith("torch.distributed.") and len(kind.__bases__) == 2:
        written = kind.__bases__[1]
        if not issubclass(written, nn.Module):  # of a wrapper, which is no class of the script's
            break
        kind = written
    return kind
