"""Builds models by spec: one file per library, named as the spec's first word.

Each has ``build(request) -> Built``. To add a library, add its file here and its word to the
forms in config/targets.py."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.config.targets import parse_target
from gradscope.errors import ConfigError, GradscopeError, ModelError, Place, message_of
from gradscope.loading.kinds import Built, ModelKind, Request
from gradscope.loading.policy import is_module, torchvision_name
from gradscope.loading.targets import Argument, Targets
from gradscope.loading.targets import arguments as arguments_of
from gradscope.machine import machine_memory
from gradscope.typeset.numbers import size


def check_fits(model: nn.Module, name: str, place: Place | None) -> None:
    """Refuse a model whose parameters and buffers exceed this machine's memory.

    Args:
        model: the model on the meta device.
        name: its name as the user wrote it.
        place: its place in the config.

    Raises:
        ConfigError: with the needed and the available memory.
    """
    there_is = machine_memory()
    tensors = dict.fromkeys(t for t in chain(model.parameters(), model.buffers()) if not is_lazy(t))
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if there_is is None or needed <= there_is:
        return
    count = sum(tensor.numel() for tensor in tensors if tensor.requires_grad)
    raise ConfigError(
        f"`{name}` does not fit into this machine's memory: its {count:,} parameters take "
        f"{size(needed)}, and there are {size(there_is)}",
        place=place,
        help="`--device meta` shows shapes, grad_fn and memory without building it; else ask for a "
        "smaller one",
    )


__all__ = ["Built", "ModelKind", "Request", "arguments", "build", "check_memory", "faults"]

LIBRARIES = ("torchvision", "timm", "hf", "demo")


def build(
    model: str | Mapping[str, Any],
    targets: Targets,
    *,
    weights: str | None = None,
    random: bool = False,
    device: torch.device | None = None,
) -> Built:
    """Build the model of a spec or a ``_target_`` mapping, on the CPU (or on meta).

    Args:
        random: the config has ``weights: null`` explicitly.

    Raises:
        ConfigError: weights or arguments do not exist, or a file cannot be loaded.
        TargetError: a name is refused or does not exist.
        ModelError: the builder raised.
    """
    device = device if device is not None and device.type == "meta" else torch.device("cpu")
    request, library = _request(model, targets, weights, random, device)
    builder: Callable[[Request], Built] = importlib.import_module(f"{__name__}.{library}").build
    if not request.meta:
        return builder(request)
    # It imports the library: under a device, torch 2.8 fails to import what torchvision needs.
    _check(request, library)
    try:
        with device:
            built = builder(request)
    except Exception as error:
        if "meta" not in message_of(error).lower():
            raise
        # Some constructors compute with values: such a model is built first and emptied then.
        built = builder(request)
    built.model.to(device)
    return built


def check_memory(model: str | Mapping[str, Any], targets: Targets) -> None:
    """Refuse a library's model that does not fit into memory, by building it on meta first.

    The user's own classes are not measured: their constructors run only once, and some need values.

    Raises:
        GradscopeError: it does not fit, or as ``build``.
    """
    request, library = _request(model, targets, None, False, torch.device("meta"))
    if library == "demo" or (library == "python" and _is_users(request)):
        return
    _check(request, library)
    builder = importlib.import_module(f"{__name__}.{library}").build
    try:
        with request.device, warnings.catch_warnings(action="ignore"):  # they come when it is built
            built: Built = builder(request)
    except Exception as error:
        if isinstance(error, GradscopeError) and not isinstance(error, ModelError):
            raise
        return  # whatever it is comes again when it is built
    check_fits(built.model, request.spec, request.place())


def _is_users(request: Request) -> bool:
    """Return True if the user's own code builds the model."""
    found = request.targets.names.locate(request.name, "model")
    return is_module(found) or request.targets.wall(found, request.name) is None


def faults(model: str | Mapping[str, Any], targets: Targets) -> None:
    """Raise the errors of a model's name, without building it."""
    request, library = _request(model, targets, None, False, torch.device("cpu"))
    _check(request, library)


def arguments(model: str, targets: Targets) -> tuple[Argument, ...]:
    """Return the arguments of the class or function that a spec of the user's code names.

    Raises:
        TargetError: a name that is refused or does not exist.
        ModelError: the user's file raised.
    """
    found = targets.names.locate(model, "model")
    return () if is_module(found) else arguments_of(found)


def _check(request: Request, library: str) -> None:
    """Raise if the library refuses the name."""
    check = getattr(importlib.import_module(f"{__name__}.{library}"), "check", None)
    if check is not None:
        check(request)


def _request(
    model: str | Mapping[str, Any],
    targets: Targets,
    weights: str | None,
    random: bool,
    device: torch.device,
) -> tuple[Request, str]:
    """Return the request, and its library."""
    asked = {"_target_": model} if isinstance(model, str) else model
    target = parse_target(asked, "model")
    library, _, name = target.name.partition(":")
    kwargs, args = dict(target.kwargs), target.args
    if target.partial:
        raise ConfigError("the model cannot be `_partial_`", place=targets.place("model"))
    if library not in LIBRARIES:
        library, name, args = _recognise(
            target.name,
            "model" if isinstance(model, str) else "model._target_",
            args,
            kwargs,
            targets,
        )
    request = Request(target.name, name, targets, args, kwargs, weights, random, device)
    return request, library


def _recognise(
    name: str, key: str, args: tuple[Any, ...], kwargs: dict[str, Any], targets: Targets
) -> tuple[str, str, tuple[Any, ...]]:
    """Return library, name and arguments, as a spec gives them, for a builder with a dotted
    name."""
    found = targets.names.locate(name, key)
    registered = torchvision_name(found)
    if registered:
        return "torchvision", registered, args
    generic = {"torchvision.models._api.get_model": "name"}
    generic["timm.models._factory.create_model"] = "model_name"
    resolved = f"{found.__module__}.{getattr(found, '__qualname__', '')}"  # an object has none
    if resolved in generic and isinstance(kwargs.get(generic[resolved]), str):
        return resolved.partition(".")[0], kwargs.pop(generic[resolved]), args
    if resolved in generic and args and isinstance(args[0], str):
        return resolved.partition(".")[0], args[0], args[1:]
    return "python", name, args
