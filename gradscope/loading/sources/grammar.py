"""Plans ``input`` and ``target``, whose form ``config/inputs.py`` has checked.

A mapping gives keyword arguments if all of its values are sources; otherwise it is one source, and
a key names its kind. A list gives positional arguments. Nested lists and mappings may contain
sources. ``{value: x}`` passes x itself. A new kind of source also needs an entry in
``config/inputs.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from gradscope.config.inputs import SOURCES, check_input, check_target, is_keywords
from gradscope.config.targets import is_target
from gradscope.config.words import Complaint, describe, dotted
from gradscope.errors import ConfigError, Problem
from gradscope.loading.sources import Build, Context
from gradscope.loading.sources.pictures import plan_image
from gradscope.loading.sources.tensor_files import plan_file, read_source
from gradscope.loading.sources.tensors import (
    Modifiers,
    finish,
    mover,
    plan_shape,
    plan_values,
    to_tensor,
)
from gradscope.loading.sources.tokens import plan_text, plan_tokens

Call = tuple[tuple[Any, ...], dict[str, Any]]


def plan_call(config: Any, context: Context) -> Callable[[], Call]:
    """Plan the model's call; return a function that builds fresh ``(args, kwargs)``.

    Raises:
        ConfigError: a source, or its file, is malformed.
    """
    _refuse(check_input(config), context)
    if isinstance(config, list):
        items = [plan_value(item, context, f"input.{i}") for i, item in enumerate(config)]
        return lambda: (tuple(build() for build in items), {})
    if isinstance(config, Mapping) and (not config or is_keywords(config)):
        named = {k: plan_value(v, context, f"input.{k}") for k, v in config.items()}
        return lambda: ((), {k: build() for k, build in named.items()})
    build = _plan_source(config, context, "input", top=True)

    def call() -> Call:
        made = build()
        if isinstance(made, dict):
            return (), made
        return (tuple(made) if isinstance(made, list) else (made,)), {}

    return call


def _refuse(complaints: list[Complaint], context: Context) -> None:
    if complaints:
        raise ConfigError(
            *(Problem(c.message, context.place(dotted(c.path)), c.help) for c in complaints)
        )


def plan_value(value: Any, context: Context, key: str, *, listed: bool = False) -> Build:
    """Plan one argument: a source, or a list or a mapping of sources."""
    if isinstance(value, list):
        items = [plan_value(v, context, f"{key}.{i}", listed=True) for i, v in enumerate(value)]
        return lambda: [build() for build in items]
    if isinstance(value, Mapping) and (not value or is_keywords(value)):
        named = {k: plan_value(v, context, f"{key}.{k}", listed=listed) for k, v in value.items()}
        return lambda: {k: build() for k, build in named.items()}
    return _plan_source(value, context, key, listed=listed)


def _plan_source(
    spec: Mapping[str, Any], context: Context, key: str, *, top: bool = False, listed: bool = False
) -> Build:
    if is_target(spec):
        return lambda: mover(context, key)(context.instantiate(spec, key))
    kind = next((kind for kind in SOURCES if isinstance(spec, Mapping) and kind in spec), None)
    if kind is None:
        raise context.error(
            key, f"`{key}` is {describe(spec)}, not a source", f"one of {', '.join(SOURCES)}"
        )
    if kind == "value":
        return lambda: copy.deepcopy(spec["value"])
    if kind == "image":
        return plan_image(spec, context, key, single=listed)
    if kind in ("text", "tokens"):
        plan = plan_text if kind == "text" else plan_tokens
        return plan(spec, context, key, only_input=top)
    return {"shape": plan_shape, "file": plan_file, "values": plan_values}[kind](spec, context, key)


def plan_target(config: Any, context: Context, key: str = "target") -> Build:
    """Plan ``target``: class ids or values (a number counts for the full batch), a path to a file,
    or sources. Detection models take a list of mappings of sources.

    Raises:
        ConfigError: the target, or its file, is malformed.
    """
    _refuse(check_target(config), context)
    if isinstance(config, str):
        content = read_source(config, context, key)
        if not isinstance(content, dict):
            return lambda: mover(context, key)(content)
        help = "save the one array that is the target"
        raise context.error(key, f"`{config}` holds {len(content)} arrays, not one", help)
    return _plan_part(config, context, key)


def _plan_part(config: Any, context: Context, key: str, *, listed: bool = False) -> Build:
    """Plan sources as in ``input``; plain numbers are values."""
    if isinstance(config, Mapping) and (is_target(config) or any(k in SOURCES for k in config)):
        return plan_value(config, context, key, listed=listed)
    if isinstance(config, Mapping):
        named = {k: _plan_part(v, context, f"{key}.{k}", listed=listed) for k, v in config.items()}
        return lambda: {k: build() for k, build in named.items()}
    if isinstance(config, list) and any(isinstance(item, Mapping) for item in config):
        parts = [_plan_part(v, context, f"{key}.{i}", listed=True) for i, v in enumerate(config)]
        return lambda: [build() for build in parts]
    tensor = to_tensor(config, context, key)
    return lambda: finish(tensor, Modifiers(), context, key)
