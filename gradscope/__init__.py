"""See what flows through a PyTorch model, forward and backward, and where it stops.

    >>> import gradscope
    >>> report = gradscope.inspect("demo")

Names are loaded when they are first used, so that ``import gradscope`` imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.api import inspect
    from gradscope.errors import GradscopeError
    from gradscope.records import Report

__version__ = "0.1.0"
__all__ = ["GradscopeError", "Report", "__version__", "inspect"]

_HOMES = {"inspect": "api", "GradscopeError": "errors", "Report": "records"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradscope' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"gradscope.{_HOMES[name]}"), name)
