"""``${env:NAME}`` and ``${env:NAME,default}`` in a config's texts."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from gradscope import references
from gradscope.config.words import Complaint, Path, shorten
from gradscope.config.yaml12 import scalar
from gradscope.errors import did_you_mean

#: ``$${`` is a literal ``${``; then a full interpolation; then one that never ends.
_TOKEN: Final = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)(?:,(.*))?\Z", re.DOTALL)
_USAGE: Final = "write `${env:NAME}` or `${env:NAME,default}`; `$${` is a literal `${`"


def interpolate(value: Any, path: Path = ()) -> tuple[Any, list[Complaint]]:
    """``value`` with the environment's values in its texts, and what could not be found.

    A text that is one interpolation and nothing else becomes what YAML reads in it: a number, a
    truth value, null. What was put in is not read for further interpolations.
    """
    complaints: list[Complaint] = []
    return _walk(value, path, complaints), complaints


def _walk(value: Any, path: Path, complaints: list[Complaint]) -> Any:
    if isinstance(value, dict):
        return {key: _walk(item, (*path, key), complaints) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, (*path, index), complaints) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    count = len(complaints)

    def put(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        found = _look_up(match[1], match[0], path)
        if isinstance(found, Complaint):
            complaints.append(found)
            return match[0]
        return found

    text = _TOKEN.sub(put, value)
    integer = _TOKEN.fullmatch(value)
    if integer and integer[1] is not None and len(complaints) == count:
        return scalar(text)
    return text


def _look_up(inner: str | None, integer: str, path: Path) -> str | Complaint:
    match = _NAME.match(inner) if inner is not None else None
    if match is None:
        fault = "an interpolation that never ends" if inner is None else "not an interpolation"
        return Complaint(path, f"`{shorten(integer)}` is {fault}", _USAGE)
    name, default = match[1], match[2]
    text = os.environ.get(name, default)
    if text is None:
        help = did_you_mean(name, os.environ)
        return Complaint(
            path,
            f"the environment variable `{name}` is not set",
            help or f"set it, or give a default: `${{env:{name},default}}`",
        )
    if name in os.environ:
        references.note(text, integer)
    if re.search("[\0\ud800-\udfff]", text):
        help = f"set it anew: export {name}=…"
        return Complaint(path, f"the environment variable `{name}` is not UTF-8 text", help)
    return text
