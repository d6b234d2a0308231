"""``interventions``: patterns to the names of modules and parameters, values to tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from gradscope.actions import Intervention, action
from gradscope.config import InterventionConfig
from gradscope.errors import Where, nowhere
from gradscope.patterns import Named, matching, without_wrappers, wraps


def resolve(
    wanted: Sequence[InterventionConfig],
    model: nn.Module,
    tensor: Callable[[Any, str], Any],
    place: Where = nowhere,
) -> tuple[Intervention, ...]:
    """The interventions with what their patterns select in ``model``.

    ``tensor`` makes a tensor of a value that is no number, for the key that it is given.

    Raises:
        LayerError: a pattern that matches no module, or no parameter.
        ConfigError: a value that is no tensor.
    """
    found = []
    for number, one in enumerate(wanted):
        at = one.at or action(one.do).places[0]
        key = f"interventions.{number}"
        names = _parameters(model) if at == "parameter_grad" else module_names(model)
        chosen = matching(one.layers, names, key=f"{key}.layers", place=place)
        value = one.value
        if isinstance(value, list | dict):
            value = tensor(value, f"{key}.value")
        found.append(Intervention(tuple(named.name for named in chosen), at, one.do, value))
    return tuple(found)


def notices(found: Sequence[Intervention]) -> list[str]:
    """That the step is not the model's own any more."""
    if not found:
        return []
    done = ", ".join(dict.fromkeys(f"{one.do} at {one.at}" for one in found))
    return [f"interventions: {done}; everything below is of the step that they change"]


def module_names(model: nn.Module) -> list[Named]:
    """Each module by its names and its classes."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not wraps(module._modules):
            names.setdefault(module, []).append(without_wrappers(name))
    return [Named(first, tuple(others), _classes(m)) for m, (first, *others) in names.items()]


def _parameters(model: nn.Module) -> list[Named]:
    """Each by its own names, by the names of the modules that own it, and by their classes."""
    names: dict[nn.Parameter, list[str]] = {}
    types: dict[nn.Parameter, tuple[str, ...]] = {}
    owners = dict(model.named_modules(remove_duplicate=False))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = name.rpartition(".")[0]
        plain = (without_wrappers(name), without_wrappers(owner))
        names.setdefault(parameter, []).extend(plain)
        types[parameter] = (*types.get(parameter, ()), *_classes(owners[owner]))
    return [Named(first, tuple(others), types[p]) for p, (first, *others) in names.items()]


def _classes(module: nn.Module) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in type(module).__mro__)
