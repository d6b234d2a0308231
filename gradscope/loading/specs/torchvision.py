"""``torchvision:resnet18``: every builder of torchvision's registries."""

from __future__ import annotations

import inspect
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

import torch

from gradscope.errors import ConfigError, TargetError, did_you_mean
from gradscope.loading.imports import require
from gradscope.loading.sources.tensor_files import read
from gradscope.loading.specs import Built, ModelKind, Request, require_module

_SECONDS = 30  # without an answer, before a download is given up


def check(request: Request) -> None:
    """Refuse an unknown name.

    Raises:
        TargetError: the message suggests the closest.
    """
    models = _models(request)
    if request.name.lower() not in models.list_models():
        raise TargetError(
            f"torchvision has no model `{request.name}`",
            place=request.place(),
            help=did_you_mean(request.name.lower(), models.list_models())
            or "list them: python -c 'import torchvision.models as m; print(m.list_models())'",
        )


def build(request: Request) -> Built:
    """Build a torchvision model. By default weights are random, and nothing is downloaded."""
    check(request)
    models = _models(request)
    builder = models.get_model_builder(request.name)
    kwargs = dict(request.kwargs)
    asked = kwargs.pop("weights", None) or request.weights
    weights = models.get_model_weights(builder)
    entry = _entry(weights, asked, request)
    kwargs |= _defaults(builder, kwargs, entry, models, request)
    loaded = None if request.meta else entry
    if loaded is not None:
        fetch(loaded, request)
    kwargs["weights"] = loaded
    model = request.targets.call(
        *(builder, request.spec, request.args, kwargs, "model"), downloads=loaded is not None
    )
    kind = ModelKind(
        "torchvision",
        request.name,
        weights=entry,
        default_weights=getattr(weights, "DEFAULT", None),
        category=_category(builder),
    )
    notices = (f"weights: {entry}",) if loaded is not None else ()
    if entry is not None and request.meta:
        notices = (f"weights: {entry} not loaded, the meta device has no values",)
    name = entry.name if entry is not None else None
    return Built(require_module(model, request), kind, name, notices)


def _models(request: Request) -> ModuleType:
    return require("torchvision.models", wanted_by=request.spec, place=request.place())


def _category(builder: Any) -> str:
    rest = builder.__module__.removeprefix("torchvision.models.")
    return str(rest.partition(".")[0]) if "." in rest else "classification"


def _entry(weights: Any, asked: Any, request: Request) -> Any:
    """Return the weights' enum entry of a name; ``ResNet50_Weights.X`` is ``X``."""
    if asked is None:
        return None
    name = str(asked).rpartition(".")[2]
    if name in weights.__members__:  # DEFAULT is an alias, and so a member
        return weights[name]
    names = list(weights.__members__)
    raise ConfigError(
        f"`{request.spec}` has no weights `{asked}`",
        place=request.place("weights"),
        help=did_you_mean(name, names)
        or (f"it has {', '.join(names)}" if names else "torchvision has none for it"),
    )


def _defaults(
    builder: Any, kwargs: dict[str, Any], entry: Any, models: ModuleType, request: Request
) -> dict[str, Any]:
    """Return arguments that replace torchvision's silent defaults, such as a download."""
    parameters = inspect.signature(builder).parameters
    chosen: dict[str, Any] = {}
    if "progress" in parameters and "progress" not in kwargs:
        chosen["progress"] = False
    if "weights_backbone" in parameters and entry is None:
        # The backbone's default is a download; random weights must be random in the backbone too.
        chosen["weights_backbone"] = _backbone(parameters, kwargs, models, request)
    returned = inspect.signature(builder).return_annotation
    if entry is None and isinstance(returned, type) and "init_weights" not in kwargs:
        own = inspect.signature(returned).parameters.get("init_weights")
        if own is not None and own.default is None:
            chosen["init_weights"] = True  # what None means too, with a warning
    return chosen


def _backbone(parameters: Any, kwargs: Any, models: ModuleType, request: Request) -> Any:
    asked = kwargs.get("weights_backbone")
    if asked is None:
        return None
    default = parameters["weights_backbone"].default
    text = str(asked) if "." in str(asked) else f"{type(default).__name__}.{asked}"
    try:
        entry = models.get_weight(text)
    except (ValueError, AttributeError, KeyError) as error:
        place = request.place("model.weights_backbone")
        raise ConfigError(f"there are no weights `{asked}`: {error}", place=place) from error
    if not request.meta:
        fetch(entry, request)
    return None if request.meta else entry


def fetch(entry: Any, request: Request) -> Path:
    """Return the file of a weights entry, downloaded if necessary, after a check that it holds only
    tensors. torchvision itself would read it with weights_only=False.

    Raises:
        ConfigError: it cannot be loaded; the message has the address, and the folder for the
            file.
    """
    path = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(entry.url).path).name
    if not path.exists():
        prefix = re.search(r"-([a-f0-9]*)\.", path.name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _patience(_SECONDS):
                torch.hub.download_url_to_file(
                    entry.url, str(path), prefix[1] if prefix else None, sys.stderr.isatty()
                )
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "reason", None) or error
            raise ConfigError(
                f"the weights {entry} cannot be fetched: {reason}",
                place=request.place("weights"),
                help=f"fetch {entry.url} and put it into {path.parent}",
            ) from error
    read(path, request.place("weights"))
    return path


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
