"""Disables ``torch.autocast``: the forward runs in the dtype of the weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from gradscope.capture.hooks import replace


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Disable each autocast."""
    replace(patches, torch.autocast, "__init__", _disabled)


def _disabled(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._enabled = False

    return __init__
