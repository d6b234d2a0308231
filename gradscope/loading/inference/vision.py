"""Infers inputs of torchvision and timm models, and of the bundled demo."""

from __future__ import annotations

from typing import Any

from gradscope import demo
from gradscope.loading.inference.inferred import Inferred
from gradscope.loading.sources import Context, in_channels

#: Boxes as (x1, y1, x2, y2), in pixels of a 224 × 224 picture.
_SIDE = 224
_BOXES = [[20.0, 30.0, 120.0, 140.0], [60.0, 80.0, 200.0, 210.0]]


def infer_demo(context: Context, batch: int | None) -> Inferred:
    """Return the first bundled digit, with its label as the target."""
    path, label = demo.DIGITS[0]
    spec: dict[str, Any] = {"image": str(path), "transform": {}}
    summary = f"a bundled handwritten {label}, pixel / 255"
    if batch:
        spec["batch"] = batch
    target = [label] * (batch or 1)
    return Inferred(spec, summary, _origin(context), target)


def infer_torchvision(context: Context, batch: int | None) -> Inferred:
    """Infer the input by the model's category, in the size of its weights."""
    category = context.kind.category
    if category == "detection":
        return _detection(context, batch or 2)
    if "video" in category:
        return _video(context, batch or 2)
    if "flow" in category:
        return _pair(context, batch or 1)
    return _one(context, [batch or 2, _channels(context, 3), *_size(context)])


def infer_timm(context: Context, batch: int | None) -> Inferred:
    """Infer the input in the size of timm's data config."""
    data = context.kind.data_config or context.kind.pretrained_cfg or {}
    channels, *size = data.get("input_size", (3, _SIDE, _SIDE))
    patches = getattr(context.model, "patch_embed", None)
    size = getattr(patches, "img_size", None) or size  # the one that `img_size=` asked for
    return _one(context, [batch or 2, _channels(context, channels), *size])


def _origin(context: Context) -> str:
    library, name = context.kind.library, context.kind.name
    return name if name == library or name.startswith(f"{library}:") else f"{library}:{name}"


def _one(context: Context, shape: list[int]) -> Inferred:
    return Inferred({"shape": shape}, f"randn {shape}", _origin(context))


def _channels(context: Context, usual: int) -> int:
    return in_channels(context.model) or usual


def _preset(context: Context) -> tuple[Any, dict[str, Any]]:
    """Return the preset of the weights, and the weights' notes."""
    kind = context.kind
    entry = kind.weights if kind.weights is not None else kind.default_weights
    if entry is None:
        return None, {}
    return entry.transforms(), getattr(entry, "meta", None) or {}


def _size(context: Context) -> list[int]:
    own = getattr(context.model, "image_size", None)  # vision transformers take one size only
    if isinstance(own, int):
        return [own, own]
    crop = getattr(_preset(context)[0], "crop_size", None) or [_SIDE]
    size = [crop] if isinstance(crop, int) else list(crop)
    return [size[0], size[-1]]


def _video(context: Context, batch: int) -> Inferred:
    frames = max(16, _preset(context)[1].get("min_temporal_size") or 0)
    return _one(context, [batch, _channels(context, 3), frames, *_size(context)])


def _pair(context: Context, batch: int) -> Inferred:
    shape = [batch, 3, 128, 128]
    return Inferred([{"shape": shape}, {"shape": shape}], f"two randn {shape}", _origin(context))


def _detection(context: Context, count: int) -> Inferred:
    """Infer pictures and, in train mode, two boxes with labels for each, and the heads' other
    targets.
    """
    pictures = [{"shape": [3, _SIDE, _SIDE], "fill": "rand"} for _ in range(count)]
    summary = f"{count} pictures [3, {_SIDE}, {_SIDE}]"
    if not context.model.training:
        return Inferred([pictures], summary, _origin(context))
    target: dict[str, Any] = {
        "boxes": {"values": _BOXES},
        "labels": {"values": [1] * len(_BOXES)},
    }
    heads = getattr(context.model, "roi_heads", None)
    if getattr(heads, "mask_predictor", None) is not None:
        target["masks"] = {
            "shape": [len(_BOXES), _SIDE, _SIDE],
            "dtype": "uint8",
            "fill": "randint(2)",
        }
    predictor = getattr(heads, "keypoint_predictor", None)
    if predictor is not None:
        points = predictor.kps_score_lowres.out_channels
        target["keypoints"] = {"values": [_keypoints(box, points) for box in _BOXES]}
    words = ", ".join(target)
    return Inferred(
        [pictures, [target] * count], f"{summary} with targets ({words})", _origin(context)
    )


def _keypoints(box: list[float], count: int) -> list[list[float]]:
    """Return visible points on the box's diagonal, as (x, y, 1)."""
    left, top, right, bottom = box
    parts = [(i + 1) / (count + 1) for i in range(count)]
    return [[left + p * (right - left), top + p * (bottom - top), 1.0] for p in parts]
