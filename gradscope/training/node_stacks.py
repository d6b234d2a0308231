"""The Python stack of each node of the autograd graph, which PyTorch keeps on demand."""

from __future__ import annotations

import torch


class NodeStacks:
    """Makes PyTorch keep the Python stacks of nodes for a while, which costs time.

    It changes nothing for a script that already does so (``torch.autograd.set_detect_anomaly``).
    """

    def __init__(self) -> None:
        #: Whether they are kept now.
        self.kept = False

    def begin(self) -> None:
        """Keep the stacks of the nodes that are made from now on."""
        if not (self.kept or torch.is_anomaly_enabled()):
            self._set(True)

    def end(self) -> bool:
        """Stop keeping stacks; return True if they were kept."""
        kept = self.kept
        if kept:
            self._set(False)
        return kept

    def _set(self, on: bool) -> None:
        # Not by its class, which warns.
        torch.set_anomaly_enabled(on, torch.is_anomaly_check_nan_enabled())
        self.kept = on
