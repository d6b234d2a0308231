"""Hooks of the user's own that only look on: a second run of a step is not for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def onlookers_silent(model: nn.Module) -> Iterator[None]:
    """Nothing that waits for ``.grad`` to be complete is told of it inside the block.

    Such a hook cannot change a gradient on its way. It may count, log, or step an optimizer, which
    a closer look must not make it do again.
    """
    kept = []
    for parameter in model.parameters():
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if hooks:
            kept.append((hooks, dict(hooks)))
            hooks.clear()
    try:
        yield
    finally:
        for hooks, found in kept:
            hooks.update(found)
