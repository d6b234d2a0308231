"""The values of a config's keys: shown to people, made of what they write, and as JSON Schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from gradscope.config.specs import LOSSES, OPTIMIZERS


class Strict(BaseModel):
    """What is made of no other key and no other type than it says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a key takes; ``choices`` are offered when the text is close to one of them.

    ``item`` is what each of its items takes, ``inner`` what each item's own items take.
    """

    words: str
    choices: tuple[str, ...] = ()
    item: str | None = None
    inner: str | None = None


def integer(value: Any) -> Any:
    """1e3 is a float to YAML and an integer to everybody else."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def called(value: Any) -> Any:
    return {"_target_": value} if isinstance(value, str) else value


def loss_call(value: Any) -> Any:
    if isinstance(value, str) and value not in LOSSES:
        if not re.search(r"[.:]", value):
            raise ValueError("no built-in loss")
        return {"_target_": value}
    return value


def named(value: Any) -> Any:
    """Classes that are called by numbers have numbers for names."""
    if not isinstance(value, list):
        return value
    return [str(item) if type(item) in (int, float) else item for item in value]


def each_called(value: Any) -> Any:
    return {k: called(v) for k, v in value.items()} if isinstance(value, dict) else value


TEXTS: Final = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}
CALL: Final = {
    "anyOf": [
        {"type": "string", "description": "A dotted name or a spec, called without arguments."},
        {
            "type": "object",
            "anyOf": [
                {"required": [spelling]} for spelling in ("_target_", "class_path", "_component_")
            ],
        },
    ]
}
LOSS: Final = {"anyOf": [{"enum": list(LOSSES)}, *CALL["anyOf"], {"type": "null"}]}
INPUT: Final = {
    "anyOf": [
        {"type": "string", "description": "A function that gives batches: ./data.py:batches."},
        {"type": "object"},
        {"type": "array"},
        {"type": "null"},
    ]
}
OPTIMIZER: Final = {"anyOf": [{"enum": list(OPTIMIZERS)}, *CALL["anyOf"], {"type": "null"}]}

Patterns = Annotated[
    list[str],
    BeforeValidator(listed),
    WithJsonSchema(TEXTS),
    Expected("a list of patterns", item="a pattern, which is text"),
]
