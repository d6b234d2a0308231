"""See what flows through a PyTorch model, forward and backward, and where it stops.

    >>> import gradscope
    >>> report = gradscope.inspect("demo")

Names are loaded when they are first used, so that ``import gradscope`` imports no torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradscope.records.showing import shown_by
from gradscope.version import __version__

if TYPE_CHECKING:
    from gradscope.api import (
        check,
        diff,
        features,
        graph,
        inspect,
        leaks,
        load,
        saliency,
        watch,
        why,
    )
    from gradscope.errors import GradscopeError
    from gradscope.records.answers import WhyReport
    from gradscope.records.diff import DiffReport
    from gradscope.records.graph import AutogradGraph
    from gradscope.records.history import RunHistory
    from gradscope.records.leaks import LeaksReport
    from gradscope.records.report import Report

__all__ = [
    "AutogradGraph",
    "DiffReport",
    "GradscopeError",
    "LeaksReport",
    "Report",
    "RunHistory",
    "WhyReport",
    "__version__",
    "check",
    "diff",
    "features",
    "graph",
    "inspect",
    "leaks",
    "load",
    "saliency",
    "watch",
    "why",
]

_HOMES = {
    "AutogradGraph": "records.graph",
    "DiffReport": "records.diff",
    "GradscopeError": "errors",
    "LeaksReport": "records.leaks",
    "Report": "records.report",
    "RunHistory": "records.history",
    "WhyReport": "records.answers",
    "check": "api",
    "diff": "api",
    "features": "api",
    "graph": "api",
    "inspect": "api",
    "leaks": "api",
    "load": "api",
    "watch": "api",
    "saliency": "api",
    "why": "api",
}

shown_by("gradscope.api.showing")


class _Package(ModuleType):
    """This package, of which ``saliency``, ``features`` and ``leaks`` are entries, not rooms."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Python binds a room here when it is imported; it stays in ``sys.modules``.
        if not (name in ("saliency", "features", "leaks") and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradscope' has no attribute '{name}'")
    import importlib
    import random

    # Rich draws random numbers as it is imported, and the generator is the caller's.
    state = random.getstate()
    try:
        return getattr(importlib.import_module(f"gradscope.{_HOMES[name]}"), name)
    finally:
        random.setstate(state)
