"""The keys of a config as JSON Schema, for editors and other tools."""

from __future__ import annotations

from typing import Any

from gradscope.config.schema import GROUPS, LISTS, Config


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) that a config file answers to."""
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
    """A number or one of a few words may also come from the environment."""
    outer: dict[str, Any] = {
        key: part.pop(key) for key in ("default", "description") if key in part
    }
    variable = {"type": "string", "pattern": r"^\$\{env:.*\}$"}
    members = part.get("anyOf", [part])
    if any({"type": "string"}.items() == member.items() for member in members) or "$ref" in part:
        return {**outer, **part}
    closed = part and not any(member.get("type") in ("object", "array") for member in members)
    return {**outer, "anyOf": [*members, variable]} if closed else {**outer, **part}
