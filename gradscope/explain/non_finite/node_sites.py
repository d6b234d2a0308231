"""Where backward's nodes were made: PyTorch numbers them in order, so a list of places is enough.

It stands for anomaly mode, which keeps a full stack of text for each node.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

import torch
from torch.autograd.graph import Node

from gradscope.explain.shared.call_site import CallSite


class NodeSites:
    """Line, module call and function of the nodes that the run makes."""

    def __init__(self) -> None:
        self._last = torch._C._autograd._get_sequence_nr()
        self._first = self._last
        self._starts = array("q")
        self._places: list[tuple[CallSite, int, str | None, bool]] = []
        self._seen: dict[CallSite, CallSite] = {}

    def grown(self) -> bool:
        """Whether nodes were made since the last ``note``."""
        return torch._C._autograd._get_sequence_nr() != self._last

    def note(self, site: CallSite, serial: int, function: str | None) -> None:
        """The nodes made since are of this place, and of this call of a function."""
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        self._starts.append(self._last)
        self._places.append((self._seen.setdefault(site, site), serial, function, hooked))
        self._last = torch._C._autograd._get_sequence_nr()

    def of(self, node: Node) -> tuple[CallSite, int | None, str | None, bool]:
        """Place, call, function, and whether hooks are before what the node has saved."""
        number = node._sequence_nr()
        if not self._first <= number < self._last:
            return CallSite(), None, None, True
        return self._places[bisect_right(self._starts, number) - 1]
