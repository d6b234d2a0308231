"""Infers inputs of transformers models, by ``main_input_name`` and the model's config."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from gradscope.loading.inference.inferred import Inferred
from gradscope.loading.sources import Context

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
    # Some count positions from past the padding token, and so have fewer than they say.
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
