"""Requirements of SARIF 2.1.0 for the objects that gradscope writes, as JSON Schema.

Written from sections 3.13 to 3.50 of the specification,
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. Objects are closed: a property
that the specification does not have is a mistake. Code scanning asks for more than the
specification: a rule, a file and a line with each result.
"""

from __future__ import annotations

from typing import Any


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


_TEXT = {"type": "string", "minLength": 1}
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_BAG = {"type": "object"}
_MESSAGE = _object("text", text=_TEXT, markdown=_TEXT)

_DESCRIPTOR = _object(
    "id shortDescription",
    id=_TEXT,
    name={"type": "string", "pattern": "^[A-Z][A-Za-z0-9]*$"},  # an identifier, in Pascal case
    shortDescription=_MESSAGE,
    fullDescription=_MESSAGE,
    help=_MESSAGE,
    defaultConfiguration=_object(level=_LEVEL),
)
_LOCATION = _object(
    "physicalLocation",
    physicalLocation=_object(
        "artifactLocation region",
        artifactLocation=_object("uri", uri={"type": "string", "format": "uri-reference"}),
        region=_object("startLine", startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations={
        "type": "array",
        "items": _object(fullyQualifiedName=_TEXT, kind=_TEXT),
    },
)
_RESULT = _object(
    "ruleId ruleIndex message locations partialFingerprints",
    ruleId=_TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    level=_LEVEL,
    message=_MESSAGE,
    locations={"type": "array", "items": _LOCATION, "minItems": 1, "maxItems": 10},
    partialFingerprints={"type": "object", "additionalProperties": _TEXT, "minProperties": 1},
    suppressions={
        "type": "array",
        "items": _object("kind", kind={"enum": ["inSource", "external"]}, justification=_TEXT),
    },
    properties=_BAG,
)
_INVOCATION = _object(
    "executionSuccessful",
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications={
        "type": "array",
        "items": _object(
            "message", message=_MESSAGE, level=_LEVEL, descriptor=_object("id", id=_TEXT)
        ),
    },
)
_RUN = _object(
    "tool results",
    tool=_object(
        "driver",
        driver=_object(
            "name",
            name=_TEXT,
            version=_TEXT,
            rules={"type": "array", "items": _DESCRIPTOR, "uniqueItems": True},
        ),
    ),
    invocations={"type": "array", "items": _INVOCATION},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": _RESULT},
)
SARIF = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        "version runs",
        **{"$schema": {"type": "string", "format": "uri"}},
        version={"const": "2.1.0"},
        runs={"type": "array", "items": _RUN},
    ),
}
