"""``./net.py:Net``, ``pkg.mod:Net`` and dotted names: the user's own models."""

from __future__ import annotations

import inspect

from torch import nn

from gradscope.errors import ConfigError, TargetError
from gradscope.loading.specs import Built, ModelKind, Request, require_module
from gradscope.loading.targets import is_transformers_config


def check(request: Request) -> None:
    """Refuse a class that cannot be a model before it is built.

    Raises:
        TargetError: the name is refused or unknown, or the class is not a torch.nn.Module.
    """
    found = request.targets.names.locate(request.name, "model")
    if inspect.isclass(found) and not issubclass(found, nn.Module):
        raise TargetError(
            f"`{request.spec}` is a class, but no subclass of torch.nn.Module",
            place=request.place(),
            help="name a subclass of torch.nn.Module, or a function that returns one's instance",
        )


def build(request: Request) -> Built:
    """Call the class or function; it must return a module."""
    check(request)
    if request.weights is not None:
        raise ConfigError(
            f"`weights: {request.weights}` means nothing to `{request.spec}`: "
            "only torchvision, timm and hf models have named weights",
            place=request.place("weights"),
            help="name the file with your weights: `checkpoint: weights.safetensors`",
        )
    asked = {"_target_": request.name, "_args_": list(request.args), **request.kwargs}
    model = require_module(request.targets.instantiate(asked, "model"), request)
    config = getattr(model, "config", None)
    if is_transformers_config(config):
        where = getattr(config, "name_or_path", "") or None
        kind = ModelKind("hf", request.spec, hf_config=config, tokenizer=where)
    else:
        kind = ModelKind("python", request.spec)
    return Built(model, kind)
