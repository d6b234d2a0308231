"""Makes ``clip_grad_norm_`` and ``clip_grad_value_`` leave gradients unchanged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from gradscope.capture.hooks import replace


def install(patches: ExitStack, notes: dict[str, Any], factor: float | None) -> None:
    """Replace both clipping functions: gradients stay unchanged, and the norm is returned as
    before."""
    for place in (nn.utils, nn.utils.clip_grad):
        replace(patches, place, "clip_grad_norm_", _unbounded)
        replace(patches, place, "clip_grad_value_", _nothing)


def _unbounded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        return original(parameters, float("inf"), *args, **kwargs)

    return clip_grad_norm_


def _nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip_grad_value_(parameters: Any, clip_value: float, *args: Any, **kwargs: Any) -> None:
        return None

    return clip_grad_value_
