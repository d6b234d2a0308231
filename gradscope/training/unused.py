"""Parameters that DDP missed when it raised, with the script's line of their module."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from torch import nn

from gradscope.explain.shared.frames import shown
from gradscope.training.models import Model
from gradscope.training.replicas import ddp_around

_GAVE_UP = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+:([\d ]+)")


def unused_parameters(error: BaseException, models: Iterable[Model]) -> dict[str, Any] | None:
    """Return the details of the event ``unused-parameters``; None for any other error.

    DDP counts the parameters that it manages: those that want a gradient, in their order.
    """
    text = str(error)
    indices = _INDICES.search(text)
    if _GAVE_UP not in text or indices is None:
        return None
    missed = [int(number) for number in indices[1].split()]
    for model in models:
        outer = model.outer()
        ddp = None if outer is None else ddp_around(outer)
        if ddp is None:
            continue
        ignored = ddp.parameters_to_ignore
        managed = [
            name
            for name, parameter in ddp.module.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]
        if missed and missed[-1] < len(managed):
            names = [managed[i] for i in missed]
            module, location = _skipped(ddp.module, names)
            return {
                "model": model.id,
                "parameters": names,
                "module": module,
                "location": location,
            }
    return None


def _skipped(root: nn.Module, names: list[str]) -> tuple[str | None, str | None]:
    """Return the outermost module whose parameters were all unused, and the line that would call
    it."""
    lost = set(names)
    for name, module in root.named_modules():
        own = {f"{name}.{one}" for one, _ in module.named_parameters()}
        if name and own and own <= lost:
            return name, _line_of(root, name)
    return None, _line_of(root, names[0])


def _line_of(root: nn.Module, name: str) -> str | None:
    """Return the line in which a parent's forward names the attribute that holds the module."""
    parts = name.split(".")
    for depth in reversed(range(len(parts))):
        around = root.get_submodule(".".join(parts[:depth]))
        location = _mention(type(around).forward, parts[depth])
        if location is not None:
            return location
    return None


def _mention(function: Any, attribute: str) -> str | None:
    """Return the first line of a function with ``self.attribute``, as ``file:line``."""
    try:
        lines, start = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # its source is not there
        return None
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == attribute
    ]
    return f"{shown(file)}:{start + min(found) - 1}" if found and file else None
