"""Loads models for pictures, and resolves classes by number or name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradscope.config.inputs import is_keywords
from gradscope.config.loaded_config import LoadedConfig
from gradscope.errors import ConfigError, OptionError, Place, did_you_mean
from gradscope.images.decoding import to_tensor
from gradscope.images.files import existing_file
from gradscope.loading.inputs import make_batches
from gradscope.loading.sources.pictures import choose_transform
from gradscope.loading.specs import ModelKind
from gradscope.loading.workload import build_model
from gradscope.nesting import find
from gradscope.output_files import expanded

if TYPE_CHECKING:
    from PIL.Image import Image


def class_id(word: str, classes: tuple[str, ...] | None, count: int) -> int:
    """Return the id of a class by its number or name.

    Args:
        word: the user's text.
        classes: the names by id, if known.
        count: the number of classes.

    Raises:
        OptionError: the class does not exist; the message suggests the closest names.
    """
    if word.isdecimal() and len(word) < 18:
        if int(word) < count:
            return int(word)
        raise OptionError(
            f"there is no class {word}: the model has {count}",
            help=f"a number from 0 to {count - 1}",
        )
    if classes is None or len(classes) != count:
        raise OptionError(
            f"`{word}` is not a class number, and the model's classes have no names here",
            help=f"a number from 0 to {count - 1}",
        )
    wanted = word.casefold()
    exact = [i for i, name in enumerate(classes) if name.casefold() == wanted]
    hits = exact or [i for i, name in enumerate(classes) if wanted in name.casefold()]
    if len(hits) == 1:
        return hits[0]
    if not hits:
        close = did_you_mean(wanted, [name.casefold() for name in classes], count=3)
        raise OptionError(
            f"no class is called `{word}`", help=close or f"or a number from 0 to {count - 1}"
        )
    some = ", ".join(f"{i} ({classes[i]})" for i in hits[:5]) + (", …" if len(hits) > 5 else "")
    raise OptionError(f"several classes are called `{word}`", help=f"give the number: {some}")


@dataclass(frozen=True)
class Viewer:
    """A model and its input transform: ``transform`` returns [C, H, W]. ``classes`` has the names
    by class id, if the weights or the config have them; ``named`` is their origin. ``random`` is
    True for random weights. ``inputs`` has all inputs of a model with several."""

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
    inputs: PictureInput | None = None


@dataclass(frozen=True)
class PictureInput:
    """All inputs of a model; ``pictures`` is the tensor to explain, with its name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    name: str
    pictures: Tensor


def picture_input(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str | None
) -> PictureInput:
    """Return the inputs and the one to explain by name: ``1``, ``image``, ``batch.image``.

    Without a name it is the only floating tensor [N, C, H, W].

    Raises:
        OptionError: the input does not exist, or several are possible.
    """
    found = dict(find({**{str(i): each for i, each in enumerate(args)}, **kwargs}, Tensor))
    pictures = [key for key, t in found.items() if t.dim() == 4 and t.is_floating_point()]
    listed = ", ".join(f"`{key}` {list(tensor.shape)}" for key, tensor in found.items())
    if name is None and len(pictures) != 1:
        several = f"{len(pictures)} inputs of the model are pictures"
        raise OptionError(
            several if pictures else "no input of the model is a picture [N, C, H, W]",
            help=f"`--input NAME` selects the input to explain: {listed or 'there is no tensor'}",
        )
    if name is not None and name not in found:
        raise OptionError(f"the model has no input `{name}`", help=f"its inputs: {listed}")
    if name is not None and name not in pictures:
        raise OptionError(
            f"the input `{name}` is {list(found[name].shape)}, which is not a picture",
            help="the explained input is floating, [N, C, H, W]; the other inputs stay fixed",
        )
    name = name or pictures[0]
    return PictureInput(args, kwargs, name, found[name])


def load_viewer(
    loaded: LoadedConfig, allow: Sequence[str] = (), *, input: str | None = None
) -> Viewer:
    """Load the model of a config, in the config's mode, with the transform for pictures.

    ``input`` names the input to explain. The config's own input is built only if it has several
    parts, or if one is named.

    Raises:
        GradscopeError: as ``load``; or the input does not exist or is not a picture.
    """
    built = build_model(loaded, allow)
    context = built.context(loaded)
    given: Any = loaded.config.input
    inputs, key = None, "input"
    if input is not None or isinstance(given, list) or is_keywords(given):
        batches, _, _ = make_batches(loaded.config.input, None, context, seed=loaded.config.seed)
        batch = next(batches())
        inputs = picture_input(batch.args, batch.kwargs, input)
        key = f"input.{inputs.name}"
        for part in inputs.name.split("."):
            given = _part(given, part)
    wanted = given.get("transform") if isinstance(given, Mapping) else None
    transform, label = choose_transform(wanted, context, key)
    messages = [f"transform: {label}"] if label else []
    messages += [
        f"{key}: ignored: this command does not change the model"
        for key in ("interventions", "accumulate")
        if key in loaded.given
    ]
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
        inputs=inputs,
    )


def _part(given: Any, name: str) -> Any:
    """Return the config's source of one input; None if a function makes all inputs."""
    if isinstance(given, list):
        return given[int(name)]
    return given.get(name) if is_keywords(given) else given


def _given(loaded: LoadedConfig) -> tuple[str, ...] | None:
    """Return the class names of the config, given in it or in a file."""
    given = loaded.config.classes
    if not isinstance(given, str):
        return None if given is None else tuple(given)
    place = loaded.place("classes")
    path = loaded.directory / expanded(given)
    existing_file(path, suffixes=(".txt",), place=place, what="list of classes")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        help = "a name on each line, in UTF-8"
        raise ConfigError(f"`{given}` cannot be read: {reason}", place=place, help=help) from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _classes(kind: ModelKind) -> tuple[str, ...] | None:
    """Return the names of the library's classes, if the model's weights are trained on them."""
    if kind.library == "demo":
        return tuple("0123456789")
    if kind.library == "torchvision" and kind.weights is not None:
        names = kind.weights.meta.get("categories")
        return tuple(names) if names else None
    if kind.library == "hf":
        names = getattr(kind.hf_config, "id2label", None) or {}
        # A config without class names has LABEL_0, LABEL_1, …
        if names and not all(str(name) == f"LABEL_{i}" for i, name in names.items()):
            return tuple(str(names[i]) for i in sorted(names))
    if kind.library == "timm" and kind.pretrained_cfg:
        names = kind.pretrained_cfg.get("label_names")
        return tuple(map(str, names)) if names else None
    return None


def live_viewer(model: nn.Module, inputs: PictureInput | None = None) -> Viewer:
    """Make a viewer of the caller's module, for tensors that are model inputs."""
    first = next(model.parameters(), torch.empty(0, device="cpu"))
    return Viewer(
        model=model,
        name=type(model).__name__,
        transform=to_tensor,
        device=first.device,
        dtype=first.dtype,
        config={"model": type(model).__qualname__},
        inputs=inputs,
    )
