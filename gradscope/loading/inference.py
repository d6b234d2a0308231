"""Infers the inputs of a model without ``input`` in its config.

For torchvision, timm and transformers models, and the bundled demo; ``first_layer.py`` does so for
all others. Each function returns an ``Inferred`` in the config's grammar, which the code for the
user's ``input`` reads too. A new family is a function here and a line in ``infer``.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from gradscope import demo
from gradscope.loading.first_layer import Inferred, infer_layers
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
    targets."""
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


#: Tokens in a row, and samples of one second of speech.
_TOKENS = 16
_SAMPLES = 16000
#: Frames of a spectrogram.
_FRAMES = 64
#: Steps of a trajectory.
_STEPS = 4
#: Perceivers whose inputs are the ids of bytes.
_OF_TEXT = ("ForMaskedLM", "ForSequenceClassification")
_CLIPS = ("videomae", "vivit", "timesformer")


def infer_transformers(context: Context, batch: int | None) -> Inferred:
    """Infer token ids, pixels or sound, as keyword arguments, and the decoder's ids if there is a
    decoder.

    Raises:
        ConfigError: the config does not describe this kind of input.
    """
    model: Any = context.model
    config = context.kind.hf_config or model.config
    accepted = inspect.signature(model.forward).parameters
    rows = batch or _rows(context, config)
    main = str(getattr(model, "main_input_name", None) or "input_ids")
    spec = _trajectory(config, rows) if main == "states" else None
    spec = spec or {main: _main(main, context, config, rows)}
    if main == "input_ids" and "pixel_values" in accepted and _find(config, "image_size"):
        spec["pixel_values"] = _pixels(config, rows)
        spec[main] = _with_pictures(spec[main], config)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        spec["decoder_input_ids"] = _ids(context, config, rows, decoder=True)
    words = ", ".join(f"{name} {_words(source)}" for name, source in spec.items())
    return Inferred(spec, words, f"the config of {type(model).__name__}")


def _words(source: dict[str, Any]) -> str:
    rows = source.get("values")
    if rows is not None:
        return f"ids [{len(rows)}, {len(rows[0])}]"
    return f"{source.get('fill', 'randn')} {source['shape']}"


def _rows(context: Context, config: Any) -> int:
    """Return 2; 1 if the model refuses more than one row without a padding token."""
    single = type(context.model).__name__.endswith("ForSequenceClassification")
    return 1 if single and getattr(config, "pad_token_id", None) is None else 2


def _find(config: Any, *names: str) -> Any:
    """Return the first of these settings in the config or in its encoder's part."""
    parts = [config, *(getattr(config, part, None) for part in ("vision_config", "encoder"))]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return None


def _main(main: str, context: Context, config: Any, rows: int) -> dict[str, Any]:
    if main == "input_ids":
        return _ids(context, config, rows)
    if main == "pixel_values":
        return _pixels(config, rows)
    bins = _find(config, "num_mel_bins")
    if main == "input_values":
        if getattr(config, "model_type", "") == "audio-spectrogram-transformer":
            return {"shape": [rows, config.max_length, bins]}
        channels = getattr(config, "audio_channels", None)
        return {"shape": [rows, *([channels] if channels else []), _SAMPLES]}
    if main == "input_features" and bins and getattr(config, "max_source_positions", None):
        return {"shape": [rows, bins, 2 * config.max_source_positions]}
    if main == "input_features" and getattr(config, "input_feat_per_channel", None):
        width = config.input_feat_per_channel * config.input_channels
        return {"shape": [rows, _FRAMES, width]}
    if main == "past_values" and getattr(config, "num_input_channels", None):
        return {"shape": [rows, config.context_length, config.num_input_channels]}
    if main == "inputs" and type(context.model).__name__.endswith(_OF_TEXT):
        full = {"shape": [rows, config.max_position_embeddings], "dtype": "int64"}
        return {**full, "fill": f"randint({config.vocab_size})"}
    raise context.error(
        "input",
        f"`{main}` of {type(context.model).__name__} cannot be inferred",
        f"give its shape: `input: {{{main}: {{shape: [{rows}, …]}}}}`",
    )


def _ids(context: Context, config: Any, rows: int, *, decoder: bool = False) -> dict[str, Any]:
    text = config.get_text_config(decoder=True) if decoder else config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    table = None if decoder else _table(context.model)
    if table is not None:
        vocabulary = min(vocabulary or table, table)
    if not vocabulary:
        raise context.error(
            "input", "the model's config has no `vocab_size`", "give `input: {tokens: [[1, 2, 3]]}`"
        )
    longest = [getattr(text, name, None) for name in ("max_position_embeddings", "n_positions")]
    # Some models count positions from after the padding token, so they have fewer than configured.
    length = min([_TOKENS, *(n if n > 2 * _TOKENS else max(1, n - 2) for n in longest if n)])
    return {"shape": [rows, length], "dtype": "int64", "fill": f"randint({vocabulary})"}


def _with_pictures(ids: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return ids with a token for each patch of the row's picture, if the model needs them."""
    token = getattr(config, "image_token_id", None)
    vision = getattr(config, "vision_config", None)
    size, patch = (getattr(vision, name, None) for name in ("image_size", "patch_size"))
    if not (isinstance(token, int) and isinstance(size, int) and isinstance(patch, int)):
        return ids
    full = getattr(config, "vision_feature_select_strategy", "default") == "full"
    places = (size // patch) ** 2 + full
    rows, length = ids["shape"]
    row = [token] * places + [number for number in range(length + 1) if number != token][:length]
    return {"values": [row] * rows}


def _trajectory(config: Any, rows: int) -> dict[str, Any] | None:
    """Return the inputs of a decision transformer: states, actions and returns of a few steps."""
    if not hasattr(config, "state_dim") or not hasattr(config, "act_dim"):
        return None
    return {
        "states": {"shape": [rows, _STEPS, config.state_dim]},
        "actions": {"shape": [rows, _STEPS, config.act_dim]},
        "rewards": {"shape": [rows, _STEPS, 1]},
        "returns_to_go": {"shape": [rows, _STEPS, 1]},
        "timesteps": {"values": [list(range(_STEPS))] * rows},
        "attention_mask": {"shape": [rows, _STEPS], "fill": "ones"},
    }


def _table(model: Any) -> int | None:
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def _pixels(config: Any, rows: int) -> dict[str, Any]:
    size = _find(config, "image_size") or 224
    if isinstance(size, dict):
        size = [size.get("height", 224), size.get("width", 224)]
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    shape = [_find(config, "num_channels") or 3, height, width]
    if getattr(config, "model_type", "") in _CLIPS:
        shape = [config.num_frames, *shape]
    return {"shape": [rows, *shape]}


def infer(context: Context, *, batch: int | None = None) -> Inferred:
    """Infer the input from the model's library, with ``batch`` rows (default: 2).

    Raises:
        ConfigError: the input cannot be inferred; the help suggests one from the model's layers.
    """
    families = {
        "demo": infer_demo,
        "torchvision": infer_torchvision,
        "timm": infer_timm,
        "hf": infer_transformers,
    }
    return families.get(context.kind.library, infer_layers)(context, batch)
