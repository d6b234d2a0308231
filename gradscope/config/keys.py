"""Lists every key of a config: for people, and as JSON Schema for editors and other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gradscope.config.schema import GROUPS, LISTS, Config, expected


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a config file."""
    schema = Config.model_json_schema()
    schema["properties"]["model"]["description"] = (
        "torchvision:NAME, timm:NAME, hf:DIR_OR_ID, ./net.py:Name, pkg.mod:Name, demo, "
        "demo:lecture, demo:scouter, demo:scouter-negative, "
        "or a mapping {_target_: dotted.Name, argument: value}."
    )
    inner = (*GROUPS.values(), *LISTS.values())
    groups = [schema["$defs"][group.__name__]["properties"] for group in inner]
    for properties in (schema["properties"], *groups):
        for name, part in properties.items():
            part.pop("title", None)
            properties[name] = _or_interpolated(part)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gradscope config",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _or_interpolated(part: dict[str, Any]) -> dict[str, Any]:
    """Allow an interpolation in place of a number or one of a few words."""
    outer: dict[str, Any] = {
        key: part.pop(key) for key in ("default", "description") if key in part
    }
    variable = {"type": "string", "pattern": r"^\$\{env:.*\}$"}
    members = part.get("anyOf", [part])
    if any({"type": "string"}.items() == member.items() for member in members) or "$ref" in part:
        return {**outer, **part}
    closed = part and not any(member.get("type") in ("object", "array") for member in members)
    return {**outer, "anyOf": [*members, variable]} if closed else {**outer, **part}


@dataclass(frozen=True, slots=True)
class KeyText:
    """The documentation of a dotted key. ``default`` is empty for a required key."""

    name: str
    takes: str
    default: str
    description: str


#: Keys inside ``input``: (form, default, meaning).
_INPUT: Final = {
    "shape": ("a list of sizes", "", "Random numbers of this shape."),
    "fill": (
        "randn, rand, zeros, ones, arange, randint(N) or a number",
        "randn",
        "How a tensor of this shape is filled.",
    ),
    "image": ("a path, a pattern or a list of these", "", "Pictures, as one batch."),
    "transform": (
        "a mapping with resize, crop, mean, std, grayscale, invert",
        "the weights' own",
        "The transform of pictures before the model gets them.",
    ),
    "file": ("a path", "", "Tensors from a .npy, .npz, .pt or .safetensors file."),
    "text": ("text or a list of it", "", "Token ids for a model of transformers."),
    "tokens": ("a list of numbers", "", "Token ids as they are."),
    "values": ("numbers and lists of them", "", "These numbers, as a tensor."),
    "value": ("anything", "", "This value as it is, no tensor: a flag, a number, a word."),
    "dtype": ("the name of a dtype", "the config's dtype", "Of this input."),
    "requires_grad": ("true or false", "false", "Have a gradient flow into this input."),
    "batch": ("an integer from 1", "2", "Samples of an input that is inferred or repeated."),
}


def keys() -> Iterator[KeyText]:
    """Yield the keys of the config in the order of its schema; the keys of a group, and of the
    input, follow it."""
    for name, field in Config.model_fields.items():
        yield _key(name, field, group=name in GROUPS)
        yield from _inner(name)
        if name == "input":
            yield from (KeyText(f"input.{inner}", *texts) for inner, texts in _INPUT.items())


def _inner(key: str) -> Iterator[KeyText]:
    """Yield the keys below a key, at all levels."""
    for inner, part in _fields(key):
        name = f"{key}.{inner}"
        yield _key(name, part, group=name in GROUPS)
        yield from _inner(name)


def _fields(key: str) -> Iterator[tuple[str, FieldInfo]]:
    model: type[BaseModel] | None = GROUPS.get(key) or LISTS.get(key)
    first = "0." if key in LISTS else ""
    for name, part in model.model_fields.items() if model else ():
        yield f"{first}{name}", part


def _key(name: str, field: FieldInfo, *, group: bool = False) -> KeyText:
    takes = expected(name)
    description = field.description or json_schema()["properties"][name]["description"]
    default = "" if field.is_required() or group else _written(field.get_default())
    return KeyText(name, takes.words if takes else "", default, description)


def _written(value: Any) -> str:
    """Return a default as a config would write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(json.dumps(item) for item in value)}]"
    return "{}" if value == {} else str(value)
