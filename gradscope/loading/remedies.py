"""Usual mistakes in a file or a constructor of the user's, and what to do about each."""

from __future__ import annotations

import re
import traceback

from gradscope.errors import did_you_mean, message_of

#: What the exception says, and the fix: the first that matches.
_REMEDIES = (
    (
        r"before Module\.__init__\(\) call",
        "call `super().__init__()` as the first line of that class's `__init__`",
    ),
    (
        r"Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available",
        "leave devices out of the model (`.cuda()`, `device='cuda'`): build it on the CPU, and "
        "`--device cuda` moves all of it where there is one; in `forward` take `x.device`",
    ),
    (
        r"attempted relative import with no known parent package",
        "make the folder a package, by an empty `__init__.py` in it, or import without the dot",
    ),
    (
        r"attempted relative import beyond top-level package",
        "put an empty `__init__.py` into each folder up to the one that the dots lead to, or "
        "import without them",
    ),
)


def missing_key(error: BaseException) -> tuple[str, list[str]] | None:
    """The key that no mapping had, and the keys of the one at hand; None for any other error."""
    if not isinstance(error, KeyError) or not error.args or not isinstance(error.args[0], str):
        return None
    key, keys = error.args[0], list[str]()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, dict) and value and key not in value:
                keys = [k for k in value if isinstance(k, str)]
    return key, keys


def remedy(error: BaseException) -> str | None:
    """What to do about a mistake that many make; None for any other."""
    for pattern, advice in _REMEDIES:
        if re.search(pattern, message_of(error), re.IGNORECASE):
            return advice
    if isinstance(error, AttributeError) and isinstance(error.obj, dict):
        keys = [key for key in error.obj if isinstance(key, str)]
        close = None if error.name in keys else did_you_mean(str(error.name), keys)
        return close or (
            f"read it by `['{error.name}']`; a mapping of the config arrives as a dict, unless it "
            f"names a class: `{{_target_: types.SimpleNamespace, {error.name}: …}}`"
        )
    found = missing_key(error)
    if found is not None and found[1]:
        key, keys = found
        return did_you_mean(key, keys) or f"it has {', '.join(f'`{k}`' for k in keys[:12])}"
    if isinstance(error, TypeError) and re.search(
        r"got dict\b|\bnot dict\b|'dict'", message_of(error)
    ):
        return (
            "read its values by `['…']`: a mapping of the config arrives as a dict; or give them "
            "one by one, as in `model: {_target_: …, width: 64}`"
        )
    return None
