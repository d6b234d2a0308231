"""The Python entries: a config or a live model in, a record out. Nothing here prints.

One file for each entry: ``inspecting`` makes a report, ``checking`` one for its findings alone,
``graphing`` an autograd graph, ``attributing`` attribution maps, ``answering`` answers, ``diffing``
a comparison, ``feature_arrays`` features; ``reading`` reads what was saved or recorded. ``opened``
is where each begins that runs a model, and a keyword that several take is a field of its
``Options``. Names are loaded when they are first used: no command waits for what another one needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.api._attributions import SaliencyRequest
    from gradscope.api.answering import why, why_config
    from gradscope.api.attributing import attribute, saliency
    from gradscope.api.checking import check, check_config
    from gradscope.api.diffing import diff, diff_configs
    from gradscope.api.extras import Extras
    from gradscope.api.feature_arrays import features
    from gradscope.api.graphing import graph, graph_config
    from gradscope.api.inspecting import inspect, inspect_config
    from gradscope.api.leaking import leaks, leaks_config
    from gradscope.api.listing import layers
    from gradscope.api.pictures import picture_files, read_pictures
    from gradscope.api.reading import load
    from gradscope.api.saliency_results import Saliency
    from gradscope.api.viewing import view
    from gradscope.api.watching import watch

__all__ = [
    "Extras",
    "Saliency",
    "SaliencyRequest",
    "attribute",
    "check",
    "check_config",
    "diff",
    "diff_configs",
    "features",
    "graph",
    "graph_config",
    "inspect",
    "inspect_config",
    "layers",
    "leaks",
    "leaks_config",
    "load",
    "picture_files",
    "read_pictures",
    "saliency",
    "view",
    "watch",
    "why",
    "why_config",
]

_HOMES = {
    "answering": ("why", "why_config"),
    "inspecting": ("inspect", "inspect_config"),
    "leaking": ("leaks", "leaks_config"),
    "listing": ("layers",),
    "reading": ("load",),
    "checking": ("check", "check_config"),
    "diffing": ("diff", "diff_configs"),
    "extras": ("Extras",),
    "graphing": ("graph", "graph_config"),
    "_attributions": ("SaliencyRequest",),
    "attributing": ("attribute", "saliency"),
    "saliency_results": ("Saliency",),
    "feature_arrays": ("features",),
    "viewing": ("view",),
    "watching": ("watch",),
    "pictures": ("picture_files", "read_pictures"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"gradscope.api.{home}"), name)
    raise AttributeError(f"module 'gradscope.api' has no attribute '{name}'")
