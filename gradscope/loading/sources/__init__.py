"""Sources of a model's inputs: one file per kind of source, one for their grammar.

A source is planned once, which reports all its mistakes, and built as often as needed. Each build
makes new leaf tensors, so a run never gets inputs that an earlier run changed. All sources share a
context: the model, the base of paths, the device, the dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradscope.errors import ConfigError, Place

if TYPE_CHECKING:
    from gradscope.loading.specs import ModelKind

#: A planned source: each call builds its value anew.
Build = Callable[[], Any]


@dataclass(frozen=True)
class Context:
    """The context of one config's sources: model, paths, device, dtype."""

    model: nn.Module
    kind: ModelKind
    directory: Path
    place: Callable[[str], Place | None]
    device: torch.device
    dtype: torch.dtype
    instantiate: Callable[[Mapping[str, Any], str], Any]
    notices: list[str] = field(default_factory=list)

    def error(self, key: str, message: str, help: str | None = None) -> ConfigError:
        """Return a ConfigError that points at ``key``."""
        return ConfigError(message, place=self.place(key), help=help)

    def say(self, notice: str) -> None:
        """Note an inferred or adjusted setting, once."""
        if notice not in self.notices:
            self.notices.append(notice)


def in_channels(model: nn.Module) -> int | None:
    """Return the channels of the model's first convolution, or None without one.

    If a stem first moves pixels into channels, its count is not the picture's.
    """
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            return module.in_channels if module.in_channels <= 4 else None
    return None
