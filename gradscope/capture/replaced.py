"""Replaces functions and methods of PyTorch until a stack is closed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType
from typing import Any

#: The code that calls a function of the script's or of PyTorch's in the place of the script.
in_between: set[CodeType] = set()


def replace(
    patches: ExitStack, owner: Any, name: str, made: Callable[[Callable[..., Any]], Any]
) -> None:
    """Replace ``owner.name`` by ``made(original)``; closing ``patches`` restores it."""
    original = getattr(owner, name)
    inherited = name not in vars(owner)
    own = made(original)
    code = getattr(own, "__code__", None) or getattr(type(own).__call__, "__code__", None)
    if isinstance(code, CodeType):
        in_between.add(code)
    setattr(owner, name, own)

    def put_back() -> None:
        if getattr(owner, name) is not own:  # other code has wrapped it meanwhile
            return
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    patches.callback(put_back)
