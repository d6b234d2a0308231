"""Changes settings of optimizers during a step, and restores the script's settings after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer

from gradscope.capture.hooks import hook_optimizers


def during_step(
    patches: ExitStack, changed: Callable[[dict[str, Any], Optimizer], dict[str, Any]]
) -> None:
    """Use the settings ``changed(group, optimizer)`` for each parameter group during each step."""
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            new = changed(group, optimizer)
            kept.append((group, {name: group[name] for name in new}))
            group.update(new)

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        while kept:
            group, old = kept.pop()
            group.update(old)

    for handle in hook_optimizers(before, after):
        patches.callback(handle.remove)
