"""A model for pictures that somebody names: its own transform, and its classes' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradscope import images
from gradscope.config import LoadedConfig
from gradscope.errors import ConfigError, Place
from gradscope.loading.kinds import ModelKind
from gradscope.loading.sources.context import Context
from gradscope.loading.sources.pictures import choose_transform
from gradscope.loading.workload import build_model

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Viewer:
    """A model and what it makes of a picture: ``transform`` gives [C, H, W] as the model takes it.

    ``classes`` are names by class id, where the weights come with them or the config has them, and
    then ``named`` is where; ``random`` says that the weights were drawn, not learnt.
    """

    model: nn.Module
    name: str
    transform: Callable[[Image], Tensor]
    device: torch.device
    dtype: torch.dtype
    classes: tuple[str, ...] | None = None
    named: Place | None = None
    random: bool = False
    notices: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)


def load_viewer(loaded: LoadedConfig, allow: Sequence[str] = ()) -> Viewer:
    """The model that a config names, in the config's mode, and its way of seeing pictures.

    Raises:
        GradscopeError: as ``load``; the config's own input is not made.
    """
    built = build_model(loaded, allow)
    context = Context(
        built.model,
        built.kind,
        loaded.directory,
        loaded.place,
        built.device,
        built.dtype,
        built.targets.instantiate,
    )
    given = loaded.config.input
    wanted = given.get("transform") if isinstance(given, Mapping) else None
    transform, label = choose_transform(wanted, context, "input")
    messages = [f"transform: {label}"] if label else []
    learnt = built.weights is not None or loaded.config.checkpoint is not None
    return Viewer(
        model=built.model,
        name=loaded.name,
        transform=transform,
        device=built.device,
        dtype=built.dtype,
        classes=_given(loaded) or _classes(built.kind),
        named=None if loaded.config.classes is None else loaded.place("classes"),
        random=not learnt and built.kind.library != "demo",
        notices=[*built.notices, *built.targets.notices, *context.notices, *messages],
        config=loaded.config.model_dump(mode="json") | {"weights": built.weights},
    )


def _given(loaded: LoadedConfig) -> tuple[str, ...] | None:
    """The names that the config gives, itself or in a file."""
    given = loaded.config.classes
    if not isinstance(given, str):
        return None if given is None else tuple(given)
    place = loaded.place("classes")
    path = loaded.directory / Path(given).expanduser()
    images.existing_file(path, suffixes=(".txt",), place=place, what="list of classes")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        help = "a name on each line, in UTF-8"
        raise ConfigError(f"`{given}` cannot be read: {reason}", place=place, help=help) from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _classes(kind: ModelKind) -> tuple[str, ...] | None:
    """The names of a library's own classes, if the weights in the model are for them."""
    if kind.library == "demo":
        return tuple("0123456789")
    if kind.library == "torchvision" and kind.weights is not None:
        names = kind.weights.meta.get("categories")
        return tuple(names) if names else None
    if kind.library == "hf":
        names = getattr(kind.hf_config, "id2label", None) or {}
        # Without names of its own a config has LABEL_0, LABEL_1, …
        if names and not all(str(name) == f"LABEL_{i}" for i, name in names.items()):
            return tuple(str(names[i]) for i in sorted(names))
    if kind.library == "timm" and kind.pretrained_cfg:
        names = kind.pretrained_cfg.get("label_names")
        return tuple(map(str, names)) if names else None
    return None


def live_viewer(model: nn.Module) -> Viewer:
    """The caller's own module, for tensors that are its input already."""
    first = next(model.parameters(), torch.empty(0))
    return Viewer(
        model=model,
        name=type(model).__name__,
        transform=images.to_tensor,
        device=first.device,
        dtype=first.dtype,
        config={"model": type(model).__qualname__},
    )
