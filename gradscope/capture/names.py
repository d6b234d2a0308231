"""Names of a model's modules and tensors, without wrappers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from gradscope.patterns import Named, without_wrappers, wraps


def named_modules(model: nn.Module) -> dict[nn.Module, Named]:
    """Yield every module once, with its first name and its other names.

    Pure wrappers are left out; the module inside has the wrapper's name.
    """
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not wraps(module._modules):
            names.setdefault(module, []).append(without_wrappers(name))
    return {
        module: Named(
            first, tuple(others), tuple(c.__name__ for c in written_class(module).__mro__)
        )
        for module, (first, *others) in names.items()
    }


def named_parameters(model: nn.Module) -> dict[nn.Parameter, Named]:
    """Yield every parameter once, with its first name and its other names."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(without_wrappers(name))
    return {p: Named(first, tuple(others)) for p, (first, *others) in names.items()}


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
    return ((without_wrappers(name), p) for name, p in model.named_parameters())


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
