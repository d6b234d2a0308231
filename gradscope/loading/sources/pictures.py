"""``image:`` — reads pictures, with the config's transform or the weights', or as pixel / 255."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import Tensor

from gradscope.config.targets import is_target
from gradscope.config.words import shorten
from gradscope.errors import ConfigError, GradscopeError, first_line, message_of
from gradscope.images.decoding import read_image, to_tensor
from gradscope.images.files import find_images
from gradscope.loading.imports import OwnCode
from gradscope.loading.sources import Build, Context, in_channels
from gradscope.loading.sources.tensors import Modifiers, finish
from gradscope.loading.sources.tokens import read_settings
from gradscope.loading.wall import Wall

Transform = Callable[[Image.Image], Tensor]


def plan_image(
    spec: Mapping[str, Any], context: Context, key: str, *, single: bool = False
) -> Build:
    """Plan pictures as one batch ``[N, C, H, W]``.

    With ``single``, as inside a nested list, a picture has no batch dimension (``[C, H, W]``), and
    several are a list. A torchvision detection model takes such a list.
    """
    modifiers = Modifiers.read(spec, context, key)
    paths = _paths(spec["image"], context, f"{key}.image")
    transform, label = choose_transform(spec.get("transform"), context, key)
    place = context.place(f"{key}.image")
    pictures = [transform(read_image(path, place=place)) for path in paths]
    names = paths[0].name if len(paths) == 1 else f"{len(paths)} pictures"
    if label:
        context.say(f"input: {names} through {label}")
    if single:
        leaves = Modifiers(modifiers.dtype, modifiers.requires_grad)
        if len(pictures) == 1:
            return lambda: finish(pictures[0], leaves, context, key)
        return lambda: [finish(picture, leaves, context, key) for picture in pictures]
    if context.kind.category == "detection":
        count = modifiers.batch or len(pictures)
        leaves = Modifiers(modifiers.dtype, modifiers.requires_grad)
        rows = [pictures[i % len(pictures)] for i in range(count)]
        return lambda: [[finish(row, leaves, context, key) for row in rows]]
    sizes = {tuple(picture.shape) for picture in pictures}
    if len(sizes) > 1:
        some = " and ".join(str(list(size)) for size in sorted(sizes)[:2])
        raise context.error(
            f"{key}.image",
            f"the pictures have different sizes and make no batch: {some}",
            "give them one size: `transform: {resize: 256, crop: 224}`",
        )
    batch = torch.stack(pictures)
    return lambda: finish(batch, modifiers, context, key)


def _paths(names: Any, context: Context, key: str) -> list[Path]:
    listed = names if isinstance(names, list) else [names]
    if not listed or not all(isinstance(name, str) for name in listed):
        raise context.error(key, f"`image` is {names!r}, not a path, a pattern or a list of these")
    place = context.place(key)
    return [p for name in listed for p in find_images(name, context.directory, place=place)]


def choose_transform(wanted: Any, context: Context, key: str) -> tuple[Transform, str | None]:
    """Return the transform, and its name if the config does not set it."""
    place = f"{key}.transform"
    if wanted is None:
        return _own(context) or (_pixels(context), "pixel / 255")
    if is_target(wanted):
        made = context.instantiate(wanted, place)
        return lambda image: _checked(_applied(made, image, context, place), context, place), None
    if not isinstance(wanted, Mapping):
        raise context.error(
            place, f"`transform` is {wanted!r}, not a mapping", "for example {resize: 256}"
        )
    return _configured(wanted, context, place), None


def _applied(
    transform: Callable[[Image.Image], Any], image: Image.Image, context: Context, place: str
) -> Any:
    """Return the transform's result for a picture.

    Raises:
        ConfigError: a library's transform refuses the picture.
        ModelError: the user's own raised.
    """
    try:
        return transform(image)
    except Exception as error:  # of any type: the transform may be the user's
        own = OwnCode([context.directory, Path.cwd()])
        if own.frames(error):
            raise own.failure(error, "the transform failed", context.place(place)) from error
        size = f"{image.width} × {image.height}"
        raised = f"{type(error).__name__}: {message_of(error)}"
        message = f"the transform cannot be applied to a picture of {size}: {raised}"
        raise context.error(place, message) from error


def _checked(result: Any, context: Context, place: str) -> Tensor:
    if isinstance(result, Tensor):
        return result
    raise context.error(
        place,
        f"the transform gave {type(result).__name__}, not a tensor",
        "end it with torchvision.transforms.ToTensor",
    )


def _own(context: Context) -> tuple[Transform, str] | None:
    """Return the transform of the model's library for its weights."""
    kind = context.kind
    if kind.library == "demo":
        digits = _configured({"resize": 28, "crop": 28}, context, "input.transform")
        return digits, "the digits' own transform: grey, cut to 28 × 28, pixel / 255"
    entry: Any = kind.weights if kind.weights is not None else kind.default_weights
    preset: Any = None
    if kind.library == "torchvision" and hasattr(entry, "transforms"):
        # Video presets take clips, flow presets take two pictures.
        if kind.category in ("classification", "segmentation", "detection", "quantization"):
            preset, label = entry.transforms(), f"the transform of {entry}"
    elif kind.library == "timm" and kind.data_config:
        timm_data = importlib.import_module("timm.data")
        preset, label = timm_data.create_transform(**kind.data_config), "timm's own transform"
    elif kind.library == "hf" and _has_processor(kind.tokenizer):
        preset, label = _hf_processor(str(kind.tokenizer), context)
    if preset is None:
        return None
    grey = in_channels(context.model) == 1

    def transform(image: Image.Image) -> Tensor:
        if not grey:
            return torch.as_tensor(preset(image.convert("RGB")), device="cpu")
        # Weights were made for three channels: one channel is their mean.
        return torch.as_tensor(preset(image.convert("L").convert("RGB")), device="cpu").mean(
            0, keepdim=True
        )

    return transform, label


def _has_processor(folder: str | None) -> bool:
    return bool(folder) and Path(str(folder), "preprocessor_config.json").is_file()


def _hf_processor(folder: str, context: Context) -> tuple[Transform, str]:
    """Return the folder's image processor, and a sentence on it."""
    transformers: Any = importlib.import_module("transformers")

    def broken(error: Exception) -> ConfigError:
        return context.error(
            "model",
            f"the image processor of {context.kind.name} cannot be used: "
            f"{shorten(first_line(error), 200)}",
            "mend its preprocessor_config.json, or say what to do: `input: {transform: {resize: "
            "224}}`",
        )

    def transform(image: Image.Image) -> Tensor:
        try:
            return torch.as_tensor(
                processor(images=[image], return_tensors="pt")["pixel_values"][0],
                device="cpu",
            )
        except Exception as error:  # of any type: the file may hold any value
            raise broken(error) from error

    try:
        with Wall("AutoImageProcessor", context.place("model")):
            processor = transformers.AutoImageProcessor.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
    except GradscopeError:
        raise
    except Exception as error:  # OSError, ValueError, KeyError: by what is wrong with the file
        raise broken(error) from error
    content = read_settings(Path(folder, "preprocessor_config.json"))
    if isinstance(content.get("image_processor_type"), str):
        return transform, "the model's own image processor"
    kind = type(processor).__name__
    return transform, f"{kind}, by the model's type: the folder names no image processor"


def _pixels(context: Context) -> Transform:
    channels = in_channels(context.model)

    def transform(image: Image.Image) -> Tensor:
        mode = {1: "L", 3: "RGB"}.get(channels or 0, image.mode)
        return to_tensor(image.convert(mode))

    return transform


def _configured(wanted: Mapping[str, Any], context: Context, place: str) -> Transform:
    """Apply grayscale, resize (one number: the shorter side), centre crop, pixel / 255, invert,
    then (pixel - mean) / std."""
    resize = _size(wanted.get("resize"), context, f"{place}.resize")
    crop = _size(wanted.get("crop"), context, f"{place}.crop")
    mean = _channels(wanted.get("mean", 0.0), context, f"{place}.mean")
    std = _channels(wanted.get("std", 1.0), context, f"{place}.std")
    for flag in ("grayscale", "invert"):
        if not isinstance(wanted.get(flag, False), bool):
            raise context.error(
                f"{place}.{flag}", f"`{flag}` is {wanted[flag]!r}, not true or false"
            )
    if any(value == 0 for value in std.flatten().tolist()):
        raise context.error(f"{place}.std", "`std` is 0: dividing by it gives no picture")
    grey = wanted.get("grayscale", in_channels(context.model) == 1)
    keep = "grayscale" not in wanted and in_channels(context.model) is None

    def fitted(image: Image.Image) -> Image.Image:
        if resize is not None:
            image = image.resize(_target_size(image, resize), Image.Resampling.BILINEAR)
        if crop is None:
            return image
        height, width = crop if len(crop) == 2 else (crop[0], crop[0])
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))

    def transform(image: Image.Image) -> Tensor:
        image = image if keep else image.convert("L" if grey else "RGB")
        try:
            image = fitted(image)
        except (Image.DecompressionBombError, ArithmeticError, MemoryError, ValueError) as error:
            reason = message_of(error) or "there is no memory for it"
            raise context.error(place, f"no picture has such a size: {reason}") from error
        image = ImageOps.invert(image) if wanted.get("invert") else image
        pixels = to_tensor(image)
        if max(len(mean), len(std)) not in (1, len(pixels)):
            raise context.error(
                f"{place}.{'mean' if len(mean) > 1 else 'std'}",
                f"{max(len(mean), len(std))} numbers for a picture of {len(pixels)} channels",
            )
        return (pixels - mean) / std

    return transform


def _target_size(image: Image.Image, size: list[int]) -> tuple[int, int]:
    if len(size) == 2:
        return size[1], size[0]
    # Cut, not rounded: a photograph must come out as torchvision's Resize makes it.
    short = min(image.size)
    return max(1, size[0] * image.width // short), max(1, size[0] * image.height // short)


def _size(value: Any, context: Context, place: str) -> list[int] | None:
    if value is None:
        return None
    sizes = value if isinstance(value, list) else [value]
    if len(sizes) in (1, 2) and all(type(n) is int and n > 0 for n in sizes):
        return sizes
    raise context.error(place, f"{value!r} is not a size", "one number, or [height, width]")


def _channels(value: Any, context: Context, place: str) -> Tensor:
    numbers = value if isinstance(value, list) else [value]
    if numbers and all(isinstance(n, (int, float)) for n in numbers):
        return torch.tensor(numbers, dtype=torch.float32, device="cpu").reshape(-1, 1, 1)
    raise context.error(place, f"{value!r} is neither a number nor one number for each channel")
