"""Changes a built model: removes wrappers, replaces modules, freezes parameters, sets the dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.actions import Intervention, action
from gradscope.config.schema import InterventionConfig
from gradscope.errors import ConfigError, Where, did_you_mean, nowhere
from gradscope.patterns import Named, matching, without_wrappers, wraps
from gradscope.typeset.numbers import plural

#: Modules that only wrap the user's own, which is run and named without them. To add one, enter its
#: class, the attribute that has the module, and the notice.
_ALONE = "runs as its `module`, on this process's batch alone, and names are that module's"
#: Class → the attribute, and what is reported. By name: to import them all would take seconds.
_WRAPPERS = {
    "OptimizedModule": (
        "_orig_mod",
        "torch.compile: the model is inspected through its eager module, as it was written",
    ),
    "DataParallel": ("module", f"DataParallel: {_ALONE}"),
    "DistributedDataParallel": (
        "module",
        f"DistributedDataParallel: {_ALONE}; gradients are this process's own, before averaging",
    ),
}


def unwrapped(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return the module inside its wrappers, and a sentence for each wrapper."""
    messages: list[str] = []
    while (wrapper := _wrapper(model)) is not None:
        attribute, sentence = _WRAPPERS[wrapper]
        model = getattr(model, attribute)
        messages.append(sentence)
    return model, messages


def compiled_of(model: nn.Module) -> nn.Module | None:
    """Return the model as ``torch.compile`` returned it, if nothing else wraps it."""
    return model if _wrapper(model) == "OptimizedModule" else None


def _wrapper(model: nn.Module) -> str | None:
    """Return torch's wrapper class among the model's bases; None without one."""
    for kind in type(model).__mro__:
        if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
            return kind.__name__
    return None


def replace(
    model: nn.Module,
    replacements: Mapping[str, Any],
    instantiate: Callable[[Mapping[str, Any], str], Any],
    place: Where = nowhere,
) -> list[str]:
    """Replace named modules by new ones, on the old ones' device.

    Raises:
        ConfigError: no module has that name (the message suggests the closest), or the replacement
            is not a module.
    """
    notices = []
    for name, wanted in replacements.items():
        key = f"replace.{name}"
        modules = dict(model.named_modules(remove_duplicate=False))
        if name == "" or name not in modules:
            known = [n for n in modules if n]
            raise ConfigError(
                f"the model has no module `{name}` to replace",
                place=place(key, of_key=True),
                help=did_you_mean(name, known, count=3)
                or f"the names start with {', '.join(known[:6])}",
            )
        asked = {"_target_": wanted} if isinstance(wanted, str) else wanted
        if not isinstance(asked, Mapping):
            raise ConfigError(
                f"`{key}` is {asked!r}, not a module to put there",
                place=place(key),
                help="write a target; to take a module out: {_target_: torch.nn.Identity}",
            )
        old = modules[name]
        device = _device(old) or _device(model)
        with device or torch.device("cpu"):
            new = instantiate(asked, key)
        if not isinstance(new, nn.Module):
            raise ConfigError(
                f"`{key}` gives a {type(new).__name__}, not a torch.nn.Module", place=place(key)
            )
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, new.to(device) if device else new)
        others = [n for n, module in modules.items() if module is old and n != name]
        kept = f" (`{'`, `'.join(others)}` keeps the old one)" if others else ""
        notices.append(f"replace: {name} is now {type(new).__name__}{kept}")
    return notices


def _device(module: nn.Module) -> torch.device | None:
    held: Iterator[Tensor] = chain(module.parameters(), module.buffers())
    first = next(held, None)
    return None if first is None else first.device


def freeze(model: nn.Module, patterns: Sequence[str], place: Where = nowhere) -> list[str]:
    """Freeze the parameters that patterns match, by any name of a shared one.

    Raises:
        LayerError: a pattern matches no parameter.
    """
    if not patterns:
        return []
    chosen = parameters_matching(model, patterns, "freeze", place)
    for parameter in chosen:
        parameter.requires_grad = False
    every = list(model.parameters())
    values, total = (sum(p.numel() for p in several) for several in (chosen, every))
    return [
        f"freeze: {len(chosen)} of {len(every)} parameters frozen ({values:,} of {total:,} values)"
    ]


def put_in_eval_mode(
    model: nn.Module, patterns: Sequence[str], place: Where = nowhere
) -> list[str]:
    """Put the modules that patterns match into eval mode, without their submodules.

    Raises:
        LayerError: a pattern matches no module.
    """
    if not patterns:
        return []
    found = matching(patterns, module_names(model), key="eval_modules", place=place)
    names, count = {named.name for named in found}, 0
    for name, module in model.named_modules():
        if without_wrappers(name) in names and not wraps(module._modules):
            module.training, count = False, count + 1
    return [f"eval_modules: {plural(count, 'module')} in eval mode"]


def parameters_matching(
    model: nn.Module, patterns: Sequence[str], key: str, place: Where = nowhere
) -> list[nn.Parameter]:
    """Return the parameters that patterns match, each once, by any name of a shared one.

    ``key`` is the config key of the patterns, and ``place`` returns its place.

    Raises:
        LayerError: a pattern matches no parameter.
    """
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(without_wrappers(name))
    known = {p: Named(first, tuple(aliases)) for p, (first, *aliases) in names.items()}
    found = matching(patterns, known.values(), what="parameter", key=key, place=place)
    chosen = {named.name for named in found}
    return [parameter for parameter, named in known.items() if named.name in chosen]


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert floating parameters and buffers to one dtype; complex ones and integers stay."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point() and tensor.dtype != dtype:
                tensor.data = tensor.data.to(dtype)


def resolve(
    wanted: Sequence[InterventionConfig],
    model: nn.Module,
    tensor: Callable[[Any, str], Any],
    place: Where = nowhere,
) -> tuple[Intervention, ...]:
    """Return the interventions with the modules or parameters that their patterns select in
    ``model``.

    ``tensor`` converts a value that is not a number to a tensor; it also gets the value's key.

    Raises:
        LayerError: a pattern matches no module, or no parameter.
        ConfigError: a value is not a tensor.
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
    """Return the notice that interventions change the model's step."""
    if not found:
        return []
    done = ", ".join(dict.fromkeys(f"{one.do} at {one.at}" for one in found))
    return [f"interventions: {done}; all figures below are of the changed step"]


def module_names(model: nn.Module) -> list[Named]:
    """Return each module with its names and its classes."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not wraps(module._modules):
            names.setdefault(module, []).append(without_wrappers(name))
    return [Named(first, tuple(others), _classes(m)) for m, (first, *others) in names.items()]


def _parameters(model: nn.Module) -> list[Named]:
    """Return each parameter with its own names, the names of the modules that own it, and their
    classes."""
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
