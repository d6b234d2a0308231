"""Describes a built model: its library, its name, and its parts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradscope.errors import ModelError, Place, Problem, TargetError, message_of
from gradscope.loading.targets import Targets

#: Contents of each kind of model list, and their number that no model has.
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
        # A scripted module holds nothing of it, and is always complete.
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
    """Refuse a module that cannot be listed as PyTorch and everyone else lists it.

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
