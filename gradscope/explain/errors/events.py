"""The events of a traced run: operations, what they saved and wrote, and the backwards."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.autograd.graph import Node

from gradscope.explain.shared.call_site import CallSite


@dataclass(frozen=True, slots=True)
class Event:
    """An operation that ran; ``epoch`` counts the backwards before it."""

    op: str
    site: CallSite
    epoch: int = 0
    step: str = ""
    doer: str | None = None  # the optimizer whose step it belongs to
    target: str | None = None  # what the user calls the tensor that it wrote to, or a part of
    full: tuple[int, ...] = ()  # the shape of that tensor
    switch: bool = False  # whether a module built with ``inplace=True`` did it


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a node saved: where its memory is, and its version then."""

    name: str
    memory: int
    version: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """A write in place, which took the tensor's version to ``after``."""

    event: Event
    after: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CarriedTensor:
    """A tensor that was used after a backward though its graph was made before it."""

    node: Node
    text: str | None
    attribute: bool
    several: type | None  # that of the attribute, where it holds more than this tensor
    single: bool  # one number: a loss
    event: Event


@dataclass(slots=True)
class BackwardRun:
    """A run of backward: the nodes upstream of its roots, as the engine takes them."""

    event: Event
    roots: list[Node]
    root: torch.Tensor | None = None
    nodes: list[Node] = field(default_factory=list)
