"""Contents of the zoo: one entry for each model, made small enough to run in seconds."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, Any]

GROUPS = ("torchvision", "timm", "transformers")


@dataclass(frozen=True)
class Entry:
    """A model with random weights and its inputs: a tensor, a tuple, or keyword arguments."""

    group: str
    kind: str
    family: str
    name: str
    make: Callable[[], Made]

    @property
    def label(self) -> str:
        """The name with its group, as the results have it."""
        return f"{self.group}:{self.name}"

    def build(self) -> Made:
        """The model in train mode and its inputs, the same ones each time."""
        torch.manual_seed(1)
        model, inputs = self.make()
        return model.train(), inputs


def all_entries(groups: Iterable[str] = GROUPS) -> list[Entry]:
    """Every entry of these groups; a library that is not asked for is not imported."""
    from zoo import timm_models, torchvision_models, transformers_models

    rooms = (torchvision_models, timm_models, transformers_models)
    by_group = dict(zip(GROUPS, rooms, strict=True))
    found = [entry for group in groups for entry in by_group[group].entries()]
    labels = [entry.label for entry in found]
    twice = {label for label in labels if labels.count(label) > 1}
    assert not twice, f"named twice: {sorted(twice)}"
    return found


def matching(entries: Iterable[Entry], patterns: Iterable[str]) -> list[Entry]:
    """The entries whose label, name, family or kind fits one of the patterns; all without one."""
    wanted = list(patterns)

    def fits(entry: Entry) -> bool:
        words = (entry.label, entry.name, entry.family, entry.kind)
        return any(fnmatch.fnmatchcase(word, pattern) for word in words for pattern in wanted)

    return [entry for entry in entries if not wanted or fits(entry)]
