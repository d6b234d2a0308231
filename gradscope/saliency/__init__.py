"""Attribution maps: one public file per method, found by its name (``grad_cam.py``).

A method's file has ``paper``, ``signed``, ``reads``, ``attribute(subject, *, …)``, and ``random =
True`` if it draws random numbers.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradscope import plugins
from gradscope.config.yaml12 import scalar
from gradscope.errors import OptionError, did_you_mean
from gradscope.records.saliency import MethodText

if TYPE_CHECKING:
    from gradscope.saliency._explaining import AttributionPlan, RecordedMap, explain
    from gradscope.saliency._forward import ModelInputs, probabilities, read_pixels
    from gradscope.saliency._subject import Subject

__all__ = [
    "AttributionPlan",
    "ModelInputs",
    "RecordedMap",
    "Subject",
    "explain",
    "probabilities",
    "read_pixels",
]

_HOMES = {
    "_explaining": ("AttributionPlan", "RecordedMap", "explain"),
    "_forward": ("ModelInputs", "probabilities", "read_pixels"),
    "_subject": ("Subject",),
}


def __getattr__(name: str) -> Any:
    # Imported on request only, so that listing the methods imports no torch.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def method_names() -> list[str]:
    """Return the names of all methods."""
    return plugins.names(__name__)


def method(name: str) -> ModuleType:
    """Return the module of a method.

    Raises:
        OptionError: no method has that name; the message suggests the closest.
    """
    choices = method_names()
    if name not in choices:
        raise OptionError(
            f"unknown method `{name}`",
            help=did_you_mean(name.lower().replace("_", "-"), choices)
            or "`gradscope saliency --methods` lists them",
        )
    found: ModuleType = plugins.load(__name__, name)
    return found


def methods() -> tuple[MethodText, ...]:
    """Return the documentation of every method."""
    found = []
    for name in method_names():
        file = method(name)
        title = (file.__doc__ or "").strip().splitlines()[0].rstrip(".")
        summary = title.partition(": ")[2] or title
        options = (f"{p.name}={p.default}" for p in options_of(name).values())
        found.append(MethodText(name, summary, tuple(options), file.paper))
    return tuple(found)


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """Return a method's options, by name."""
    parameters = inspect.signature(method(name).attribute).parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def read_options(words: Sequence[str], methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``key=value`` words to options of each method that has them, with the right types.

    Raises:
        OptionError: no chosen method has the option, or the value has another type.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in methods}
    offered = {name: options_of(name) for name in methods}
    for word in words:
        key, sign, text = word.partition("=")
        key = key.strip().replace("-", "_")
        if not sign:
            raise OptionError(
                f"`--option {word}` gives no value", help="write `--option name=value`"
            )
        takers = [name for name in methods if key in offered[name]]
        if not takers:
            choices = sorted({option for options in offered.values() for option in options})
            those = f"{', '.join(methods)} take{'s' * (len(methods) == 1)}"
            raise OptionError(
                f"no chosen method has an option `{key}`",
                help=did_you_mean(key, choices)
                or (f"{those} {', '.join(choices)}" if choices else f"{those} none"),
            )
        for name in takers:
            found[name][key] = _typed(key, text, offered[name][key])
    return found


def _typed(key: str, text: str, parameter: inspect.Parameter) -> Any:
    """Convert the value to the type of the parameter's default."""
    value, default = scalar(text), parameter.default
    if isinstance(default, bool):
        right = isinstance(value, bool)
    elif isinstance(default, int):
        right = isinstance(value, int) and not isinstance(value, bool)
    elif isinstance(default, float):
        right = isinstance(value, int | float) and not isinstance(value, bool)
        right = right and math.isfinite(value)
        value = float(value) if right else value
    else:
        value, right = text, True
    if right:
        return value
    kind = {bool: "true or false", int: "an integer", float: "a number"}[type(default)]
    raise OptionError(
        f"`--option {key}={text}` is not {kind}", help=f"the default is `{key}={default}`"
    )
