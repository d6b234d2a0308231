"""``text:`` and ``tokens:`` — token ids for language models, with what else their forward wants."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradscope.errors import GradscopeError, message_of
from gradscope.loading.sources.context import Build, Context
from gradscope.loading.sources.tensors import LARGEST, Modifiers, finish
from gradscope.loading.wall import Wall


def plan_tokens(
    spec: Mapping[str, Any], context: Context, key: str, *, whole: bool = False
) -> Build:
    """``tokens: [[1, 2, 3]]``, one list for each row; shorter rows are padded at their end.

    With ``whole``, where the ids are the model's only input, a transformers model gets them as
    keyword arguments, with the mask and the decoder's start that they need.
    """
    rows = spec["tokens"]
    rows = [rows] if isinstance(rows, list) and rows and type(rows[0]) is int else rows
    place = f"{key}.tokens"
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise context.error(place, f"`tokens` is {rows!r}, not lists of ids", "[[1, 2, 3]]")
    if not all(type(token) is int and 0 <= token <= LARGEST for row in rows for token in row):
        message = f"token ids are whole numbers from 0 to {LARGEST}"
        raise context.error(place, message, "text goes in `text:`")
    longest = max(len(row) for row in rows)
    pad = getattr(context.kind.hf_config, "pad_token_id", None) or 0
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows], dtype=torch.int64)
    fields = {"input_ids": ids}
    if any(len(row) < longest for row in rows):
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        fields["attention_mask"] = torch.tensor(mask, dtype=torch.int64)
        context.say(f"input: rows padded to {longest} tokens with id {pad}")
    return _plan(fields, spec, context, key, whole=whole)


def plan_text(spec: Mapping[str, Any], context: Context, key: str, *, whole: bool = False) -> Build:
    """``text:`` one string or a list, through the model's own tokenizer.

    Raises:
        ConfigError: a model without a tokenizer beside it.
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
    return _plan(dict(encoded), spec, context, key, whole=whole)


def _tokenizer(context: Context, place: str) -> Any:
    source = context.kind.tokenizer
    remedy = "give the ids themselves: `input: {tokens: [[1, 2, 3]]}`"
    if context.kind.library != "hf" or not source:
        raise context.error(place, "this model has no tokenizer to read `text` with", remedy)
    transformers: Any = importlib.import_module("transformers")
    wall = Wall("AutoTokenizer", context.place(place), downloads=context.kind.of_the_hub)
    try:
        with wall:
            return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except GradscopeError:
        raise
    except Exception as error:  # OSError, ValueError, ImportError, KeyError: by what is missing
        text = message_of(error).strip()
        first = text.splitlines()[0] if text else type(error).__name__
        raise context.error(
            place, f"there is no tokenizer for {context.kind.name}: {first}", remedy
        ) from error


def _plan(
    fields: dict[str, Tensor], spec: Mapping[str, Any], context: Context, key: str, *, whole: bool
) -> Build:
    modifiers = Modifiers.read(spec, context, key)
    if not whole or context.kind.library != "hf":
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
        chosen["decoder_input_ids"] = torch.full((len(fields["input_ids"]), 1), start)
        context.say(f"input: decoder_input_ids is the start token {start}")
    return lambda: {k: finish(v, modifiers, context, key) for k, v in chosen.items()}
