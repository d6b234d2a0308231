"""Finds the stage of a pipeline (``torch.distributed.pipelining``) that runs a model."""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import Any

from torch import nn


def stages_imported() -> ModuleType | None:
    """Return PyTorch's module that runs stages; None if the script has not imported it."""
    return sys.modules.get("torch.distributed.pipelining.stage")


def stage_of(outer: nn.Module) -> int | None:
    """Return the number of a model's stage, counted from 0 over all processes."""
    imported = stages_imported()
    if imported is None:
        return None
    kind = imported._PipelineStageBase
    # Not `isinstance`: a lazy proxy would load its object.
    stages: list[Any] = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    return next((one.stage_index for one in stages if one.submod is outer), None)
