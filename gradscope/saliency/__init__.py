"""Attribution maps, one public file per method; a file is found by its name (``grad_cam.py``).

To add a method, add a file with ``paper``, ``signed``, ``reads`` (and ``random = True`` where it
draws numbers) and ``attribute(subject, *, …)``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradscope.records.saliency import MethodText

if TYPE_CHECKING:
    from gradscope.saliency._explaining import AttributionPlan, RecordedMap, explain
    from gradscope.saliency._forward import probabilities
    from gradscope.saliency._inputs import ModelInputs
    from gradscope.saliency._options import method_names, options_of, read_options
    from gradscope.saliency._segmentation import read_pixels
    from gradscope.saliency._subject import Subject

__all__ = [
    "AttributionPlan",
    "ModelInputs",
    "RecordedMap",
    "Subject",
    "explain",
    "method_names",
    "methods",
    "options_of",
    "probabilities",
    "read_options",
    "read_pixels",
]

_HOMES = {
    "_explaining": ("AttributionPlan", "RecordedMap", "explain"),
    "_forward": ("probabilities",),
    "_inputs": ("ModelInputs",),
    "_options": ("method_names", "options_of", "read_options"),
    "_segmentation": ("read_pixels",),
    "_subject": ("Subject",),
}


def __getattr__(name: str) -> Any:
    # Only when it is asked for: to list the methods is to load no torch.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def methods() -> tuple[MethodText, ...]:
    """Every method, as its file documents it."""
    from gradscope.saliency import _options

    found = []
    for name in _options.method_names():
        file = _options.method(name)
        title = (file.__doc__ or "").strip().splitlines()[0].rstrip(".")
        summary = title.partition(": ")[2] or title
        options = (f"{p.name}={p.default}" for p in _options.options_of(name).values())
        found.append(MethodText(name, summary, tuple(options), file.paper))
    return tuple(found)
