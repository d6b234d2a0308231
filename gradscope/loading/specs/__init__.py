"""Builds models by spec: one file per library, named as the spec's first word.

Each has ``build(request) -> Built``, with the model's library, name and parts. To add a library,
add its file here and its word to the forms in config/targets.py.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.config.targets import parse_target
from gradscope.errors import (
    ConfigError,
    GradscopeError,
    ModelError,
    Place,
    Problem,
    TargetError,
    message_of,
)
from gradscope.loading.policy import is_module, torchvision_name
from gradscope.loading.targets import Argument, Targets
from gradscope.loading.targets import arguments as arguments_of
from gradscope.machine import machine_memory
from gradscope.typeset.numbers import size

#: The class of the items that each method of a module lists; no model has more items than the
#: number below.
_LISTS: Mapping[str, type] = {
    "named_modules": nn.Module,
    "modules": nn.Module,
    "children": nn.Module,
    "named_parameters": torch.Tensor,
    "parameters": torch.Tensor,
    "named_buffers": torch.Tensor,
    "buffers": torch.Tensor,
}
_MOST = 1_000_000


@dataclass(frozen=True)
class ModelKind:
    """The library and name of a model, with the library's data about inputs and weights.

    ``library`` is ``torchvision``, ``timm``, ``hf``, ``demo`` or ``python``; ``name`` is the name
    within it (``resnet18``, ``lecture``, ``./net.py:Net``).
    """

    library: str
    name: str
    weights: Any | None = None  # torchvision: the entry that was loaded (.transforms(), .meta)
    default_weights: Any | None = None  # torchvision: the DEFAULT entry, with random weights too
    hf_config: Any | None = None  # the transformers config object of the model
    tokenizer: str | None = None  # what AutoTokenizer.from_pretrained takes: a folder or an id
    pretrained_cfg: dict[str, Any] | None = None  # timm: model.pretrained_cfg
    data_config: dict[str, Any] | None = None  # timm: timm.data.resolve_model_data_config(model)
    category: str = "classification"  # torchvision: classification, segmentation, detection, ...

    @property
    def of_the_hub(self) -> bool:
        """True if the config names the model by an id of the Hugging Face hub."""
        return self.library == "hf" and self.tokenizer == self.name and not Path(self.name).exists()


@dataclass(frozen=True)
class Request:
    """A model to build: the spec's name in its library, arguments, weights."""

    spec: str  # as the user wrote it, for messages
    name: str
    targets: Targets
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    random: bool = False  # `weights: null` was written, not left out
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def directory(self) -> Path:
        """The config's folder."""
        return self.targets.directory

    @property
    def meta(self) -> bool:
        """True on the meta device: the model has shapes only, and no values to load."""
        return self.device.type == "meta"

    def place(self, key: str = "model", *, of_key: bool = False) -> Place | None:
        """Return the place of a config key's value, or with ``of_key`` that of the key."""
        return self.targets.place(key, of_key=of_key)


@dataclass(frozen=True)
class Built:
    """A model from its library, with the name of its weights."""

    model: nn.Module
    kind: ModelKind
    weights: str | None = None
    notices: tuple[str, ...] = ()


def require_constructed(model: nn.Module, place: Place | None = None) -> None:
    """Refuse a model if the class of one of its modules never called torch's constructor.

    Raises:
        ModelError: the message names the class.
    """
    waiting = [("", model)]
    seen: set[int] = set()
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen or not isinstance(module, nn.Module):
            continue
        seen.add(id(module))
        # A scripted module has no such attribute, and is always complete.
        full = isinstance(module, torch.jit.ScriptModule) or "_modules" in vars(module)
        if not full:
            where = f" (it is `{name}` in `{type(model).__name__}`)" if name else ""
            raise ModelError(
                Problem(
                    f"`{type(module).__name__}.__init__` never calls `super().__init__()`, which "
                    f"a module needs to hold parameters{where}",
                    place,
                    "call `super().__init__()` as its first line",
                )
            )
        prefix = f"{name}." if name else ""
        scripted = isinstance(module, torch.jit.ScriptModule)
        inside = [] if scripted else dict(module._modules or {}).items()
        waiting += [(f"{prefix}{key}", child) for key, child in inside if child is not None]


def _check_lists(model: nn.Module, place: Place | None) -> None:
    """Refuse a module whose methods, such as ``named_modules``, do not list its parts.

    Raises:
        ModelError: names the method, or what a dictionary of the module holds.
    """
    kind = type(model).__name__
    try:
        hash(model)
    except TypeError as error:
        raise ModelError(Problem(f"`{kind}` has no hash: {error}", place)) from error
    for method, wanted in _LISTS.items():
        try:
            for count, item in enumerate(getattr(model, method)()):
                name, value = item if method.startswith("named_") else ("", item)
                if not isinstance(name, str) or not isinstance(value, wanted):
                    raise TypeError(f"a {type(name).__name__} and a {type(value).__name__} in it")
                if count >= _MOST:
                    raise TypeError(f"it does not end after {_MOST:,}")
        except (TypeError, AttributeError) as error:
            message = f"`{kind}.{method}()` does not list the model: {message_of(error)}"
            help = "leave the method, `_modules`, `_parameters` and `_buffers` to torch.nn.Module"
            raise ModelError(Problem(message, place, help)) from error


def require_module(model: Any, request: Request) -> nn.Module:
    """Return ``model`` if it is a module.

    Raises:
        TargetError: it is something else.
        ModelError: its class never called torch's constructor.
    """
    if isinstance(model, nn.Module):
        require_constructed(model, request.place())
        _check_lists(model, request.place())
        return model
    what = "a class" if inspect.isclass(model) else f"of type {type(model).__name__}"
    raise TargetError(
        f"`{request.spec}` returns {what}, not a torch.nn.Module",
        place=request.place(),
        help="name a subclass of torch.nn.Module, or a function that returns an instance of one",
    )


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
    # This imports the library before the device is set: with a device, torch 2.8 fails to import
    # modules that torchvision needs.
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
