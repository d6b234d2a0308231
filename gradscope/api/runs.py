"""The facts of a run: how it was made, with which versions."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gradscope.capture.hooks import watchable
from gradscope.capture.names import named_modules
from gradscope.loading import Workload
from gradscope.records.run import RunInfo
from gradscope.version import __version__


def run_info(workload: Workload, notices: Sequence[str], **more: Any) -> RunInfo:
    """How the run was made, with what it had to note on the way."""
    return RunInfo(
        model=workload.name,
        device=str(workload.device),
        dtype=_name(workload.dtype),
        mode=workload.mode,
        seed=workload.seed,
        loss=workload.criterion.name,
        loss_inferred=workload.criterion.inferred,
        target_drawn=workload.criterion.drawn,
        without_graph=workload.criterion.without_graph,
        autocast=None if workload.autocast is None else _name(workload.autocast),
        repeats=workload.repeats,
        accumulate=workload.accumulate,
        notices=(
            *workload.notices,
            *workload.criterion.notices,
            *_unwatched(workload.model),
            *notices,
        ),
        **more,
    )


def versions() -> dict[str, str]:
    """Of gradscope, Python, PyTorch, and of the libraries of models that are loaded."""
    versions = {
        "gradscope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for name in ("torchvision", "timm", "transformers"):
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "unknown"))
    return versions


def _unwatched(model: nn.Module) -> list[str]:
    """What runs otherwise than the user runs it, or has no rows."""
    names = named_modules(model)
    notices = []
    if any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl for m in names):
        notices.append("torch.compile: compiled modules run eagerly here")
    left = sorted(names[m].name or "the model" for m in names.keys() - set(watchable(model)))
    if left:
        shown = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
        notices.append(f"scripted modules have no hooks, so no rows: {shown}")
    return notices


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
