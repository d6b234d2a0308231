"""transformers: encoders, decoders, both, vision, audio, experts, state spaces, and more.

``transformers_models.yaml`` has their configs; what each kind of input is made of is here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

from zoo.entries import Entry, Made

Settings = dict[str, Any]


def entries() -> Iterator[Entry]:
    """Every entry of the group."""
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    for kind, rows in table["models"].items():
        defaults = rows.pop("defaults")
        for name, row in rows.items():
            settings = _settings({**defaults, **row}, table["bases"])
            holder, inputs = settings.pop("class"), settings.pop("inputs")
            make = functools.partial(_make, name, holder, inputs, settings)
            yield Entry("transformers", kind, name, name, make)


def _settings(row: Settings, bases: dict[str, Settings]) -> Settings:
    """A row, or a config within it, laid over its bases."""
    whole: Settings = {}
    for base in row.get("base", []):
        whole |= _settings(bases[base], bases)
    for key, value in row.items():
        whole[key] = _settings(value, bases) if isinstance(value, dict) else value
    whole.pop("base", None)
    return whole


def _make(model_type: str, holder: str, inputs: str, settings: Settings) -> Made:
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **settings)
    maker = getattr(transformers, holder)
    model = maker.from_config(config) if holder.startswith("Auto") else maker(config)
    return model, _INPUTS[inputs](config)


def _ids(*shape: int) -> torch.Tensor:
    """Token ids past the special ones."""
    return torch.randint(3, 90, shape)


def _text(config: Any) -> Settings:
    return {"input_ids": _ids(2, 16)}


def _pair(config: Any) -> Settings:
    return {"input_ids": _ids(2, 16), "decoder_input_ids": _ids(2, 8)}


def _picture(config: Any) -> Settings:
    size = getattr(config, "image_size", 64)
    side = size[0] if isinstance(size, list) else size
    side = side if isinstance(side, int) and side <= 64 else 64
    return {"pixel_values": torch.randn(2, 3, side, side)}


def _large_picture(config: Any) -> Settings:
    return {"pixel_values": torch.randn(2, 3, 96, 96)}


def _clip(config: Any) -> Settings:
    return {"pixel_values": torch.randn(2, config.num_frames, 3, 32, 32)}


def _sound(config: Any) -> Settings:
    return {"input_values": torch.randn(2, 800)}


def _waveform(config: Any) -> Settings:
    return {"input_values": torch.randn(2, 1, 320)}


def _spectrogram(config: Any) -> Settings:
    return {"input_values": torch.randn(2, config.max_length, config.num_mel_bins)}


def _speech_to_text(config: Any) -> Settings:
    return {"input_values": torch.randn(2, 4000), "decoder_input_ids": _ids(2, 8)}


def _features(config: Any) -> Settings:
    bins = getattr(config, "num_mel_bins", None)
    shape = (2, bins, 24) if bins else (2, 24, config.input_feat_per_channel)
    return {"input_features": torch.randn(shape), "decoder_input_ids": _ids(2, 8)}


def _text_and_picture(config: Any) -> Settings:
    return {"input_ids": _ids(2, 8), "pixel_values": torch.randn(2, 3, 32, 32)}


def _text_with_picture(config: Any) -> Settings:
    """The picture's places among the tokens: one for each of its patches."""
    ids = _ids(2, 24)
    ids[:, 1:17] = 98
    return {"input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32)}


def _trajectory(config: Any) -> Settings:
    return {
        "states": torch.randn(2, 4, config.state_dim),
        "actions": torch.randn(2, 4, config.act_dim),
        "rewards": torch.randn(2, 4, 1),
        "returns_to_go": torch.randn(2, 4, 1),
        "timesteps": torch.arange(4).expand(2, 4).contiguous(),
        "attention_mask": torch.ones(2, 4),
    }


def _series(config: Any) -> Settings:
    past = torch.randn(2, config.context_length, config.num_input_channels)
    return {"past_values": past}


def _bytes(config: Any) -> Settings:
    return {"inputs": _ids(2, config.max_position_embeddings)}


_INPUTS: dict[str, Callable[[Any], Settings]] = {
    "text": _text,
    "pair": _pair,
    "picture": _picture,
    "large picture": _large_picture,
    "clip": _clip,
    "sound": _sound,
    "waveform": _waveform,
    "spectrogram": _spectrogram,
    "speech to text": _speech_to_text,
    "features": _features,
    "text and picture": _text_and_picture,
    "text with picture": _text_with_picture,
    "trajectory": _trajectory,
    "series": _series,
    "bytes": _bytes,
}
