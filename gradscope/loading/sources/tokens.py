"""``text:`` and ``tokens:`` — makes token ids for language models, with forward's other inputs."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradscope.config.words import shorten
from gradscope.errors import GradscopeError, message_of
from gradscope.images.files import shown
from gradscope.loading.sources import Build, Context
from gradscope.loading.sources.tensors import LARGEST, Modifiers, finish
from gradscope.loading.wall import Wall


def plan_tokens(
    spec: Mapping[str, Any], context: Context, key: str, *, only_input: bool = False
) -> Build:
    """Plan ``tokens: [[1, 2, 3]]``, one list per row; shorter rows are padded at their end.

    With ``only_input``, a transformers model gets the ids as keyword arguments, with the mask and
    the decoder's start token.
    """
    rows = spec["tokens"]
    rows = [rows] if isinstance(rows, list) and rows and type(rows[0]) is int else rows
    place = f"{key}.tokens"
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise context.error(place, f"`tokens` is {rows!r}, not lists of ids", "[[1, 2, 3]]")
    if not all(type(token) is int and 0 <= token <= LARGEST for row in rows for token in row):
        message = f"token ids are integers from 0 to {LARGEST}"
        raise context.error(place, message, "text goes in `text:`")
    longest = max(len(row) for row in rows)
    pad = getattr(context.kind.hf_config, "pad_token_id", None) or 0
    ids = torch.tensor(
        [row + [pad] * (longest - len(row)) for row in rows], dtype=torch.int64, device="cpu"
    )
    fields = {"input_ids": ids}
    if any(len(row) < longest for row in rows):
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        fields["attention_mask"] = torch.tensor(mask, dtype=torch.int64, device="cpu")
        context.say(f"input: rows padded to {longest} tokens with id {pad}")
    return _plan(fields, spec, context, key, only_input=only_input)


def plan_text(
    spec: Mapping[str, Any], context: Context, key: str, *, only_input: bool = False
) -> Build:
    """Plan ``text:``, a string or a list, with the model's tokenizer.

    Raises:
        ConfigError: the model has no tokenizer.
    """
    text = spec["text"]
    lines = text if isinstance(text, list) else [text]
    place = f"{key}.text"
    if not lines or not all(isinstance(line, str) for line in lines):
        raise context.error(place, f"`text` is {text!r}, not a string or a list of strings")
    tokenizer = _tokenizer(context, place)
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    try:
        encoded = tokenizer(lines, return_tensors="pt", padding=len(lines) > 1)
    except Exception as error:  # the tokenizer's own complaint, whatever its type
        raise context.error(
            place,
            f"the tokenizer refuses this text: {message_of(error)}",
            "give the ids: `tokens: [[…]]`",
        ) from error
    ids, special = set(encoded["input_ids"].flatten().tolist()), set(tokenizer.all_special_ids)
    if tokenizer.unk_token_id in ids and ids <= special:
        context.say("input: the tokenizer knows no word of the text")
    return _plan(dict(encoded), spec, context, key, only_input=only_input)


_IDS = "give the ids themselves: `input: {tokens: [[1, 2, 3]]}`"


def _tokenizer(context: Context, place: str) -> Any:
    """Return the tokenizer of the model's folder or id.

    Raises:
        ConfigError: there is no tokenizer, or it knows no words.
    """
    source = context.kind.tokenizer
    if context.kind.library != "hf" or not source:
        raise context.error(place, "this model has no tokenizer to read `text` with", _IDS)
    tokenizer = _read_tokenizer(source, context, place)
    # Without files, transformers makes an empty tokenizer by the model's type: every word is
    # unknown.
    if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
        local = Path(source).exists()
        where = shown(Path(source)) if local else context.kind.name
        save = f"save one there, `tokenizer.save_pretrained('{where}')`; or " if local else ""
        message = f"{where} has no tokenizer: there is no vocabulary to read `text` with"
        raise context.error(place, message, f"{save}{_IDS}")
    _say_class(type(tokenizer).__name__, Path(source), context)
    return tokenizer


def _say_class(name: str, folder: Path, context: Context) -> None:
    """Note the tokenizer if the folder names none, or one that does not exist."""
    if not folder.exists():
        return
    named = read_settings(folder / "tokenizer_config.json").get("tokenizer_class")
    if not isinstance(named, str):
        context.say(
            f"input: text through {name}, by the model's type: the folder names no tokenizer"
        )
    elif named.removesuffix("Fast") != name.removesuffix("Fast"):
        context.say(f"input: text through {name}, as transformers has no {named}")


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model's folder; return an empty mapping if it is missing or broken,
    because transformers does not require it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_tokenizer(source: str, context: Context, place: str) -> Any:
    transformers: Any = importlib.import_module("transformers")
    wall = Wall("AutoTokenizer", context.place(place), downloads=context.kind.of_the_hub)
    try:
        with wall:
            return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except GradscopeError:
        raise
    except Exception as error:  # OSError, ValueError, ImportError, KeyError: by what is missing
        reason = shorten(" ".join(message_of(error).split()) or type(error).__name__, 200)
        message = f"there is no tokenizer for {context.kind.name}: {reason}"
        raise context.error(place, message, _IDS) from error


def _plan(
    fields: dict[str, Tensor],
    spec: Mapping[str, Any],
    context: Context,
    key: str,
    *,
    only_input: bool,
) -> Build:
    modifiers = Modifiers.read(spec, context, key)
    if not only_input or context.kind.library != "hf":
        return lambda: finish(fields["input_ids"], modifiers, context, key)
    accepted = inspect.signature(context.model.forward).parameters
    rest = {k: v for k, v in fields.items() if k in accepted}
    main = (
        "input_ids" if "input_ids" in rest else str(getattr(context.model, "main_input_name", ""))
    )
    chosen = {main or "input_ids": fields["input_ids"], **rest}
    config = context.kind.hf_config
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        start = getattr(config, "decoder_start_token_id", None) or 0
        chosen["decoder_input_ids"] = torch.full((len(fields["input_ids"]), 1), start, device="cpu")
        context.say(f"input: decoder_input_ids is the start token {start}")
    return lambda: {k: finish(v, modifiers, context, key) for k, v in chosen.items()}
