"""Finds out why a PyTorch model does not train.

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
    from gradscope.api.answering import why as why
    from gradscope.api.attributing import saliency as saliency
    from gradscope.api.coord_checking import coord_check as coord_check
    from gradscope.api.diffing import diff as diff
    from gradscope.api.experimenting import experiment as experiment
    from gradscope.api.features import features as features
    from gradscope.api.graphing import graph as graph
    from gradscope.api.inspecting import check as check
    from gradscope.api.inspecting import inspect as inspect
    from gradscope.api.leaking import leaks as leaks
    from gradscope.api.reading import load as load
    from gradscope.api.watching import watch as watch
    from gradscope.errors import GradscopeError as GradscopeError
    from gradscope.records.answers import WhyReport as WhyReport
    from gradscope.records.coord_check import CoordCheckReport as CoordCheckReport
    from gradscope.records.diff import DiffReport as DiffReport
    from gradscope.records.experiment import ExperimentReport as ExperimentReport
    from gradscope.records.graph import AutogradGraph as AutogradGraph
    from gradscope.records.leaks import LeaksReport as LeaksReport
    from gradscope.records.report import Report as Report
    from gradscope.records.training import RunHistory as RunHistory

_HOMES = {
    "AutogradGraph": "records.graph",
    "CoordCheckReport": "records.coord_check",
    "DiffReport": "records.diff",
    "ExperimentReport": "records.experiment",
    "GradscopeError": "errors",
    "LeaksReport": "records.leaks",
    "Report": "records.report",
    "RunHistory": "records.training",
    "WhyReport": "records.answers",
    "check": "api.inspecting",
    "coord_check": "api.coord_checking",
    "diff": "api.diffing",
    "experiment": "api.experimenting",
    "features": "api.features",
    "graph": "api.graphing",
    "inspect": "api.inspecting",
    "leaks": "api.leaking",
    "load": "api.reading",
    "saliency": "api.attributing",
    "watch": "api.watching",
    "why": "api.answering",
}

__all__ = ["__version__", *_HOMES]

shown_by("gradscope.api.showing")


#: Entries with the same name as a room.
_ENTRIES = ("saliency", "features", "leaks", "experiment")


class _Package(ModuleType):
    """This package: four of its names are entries, not the rooms of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Python binds a room here when it is imported; it stays in ``sys.modules``.
        if not (name in _ENTRIES and isinstance(value, ModuleType)):
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
