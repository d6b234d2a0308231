"""The line of a replayed operation in the script, which no frame shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gradscope.explain.non_finite.operation_tracer import NonFiniteTracer
from gradscope.explain.shared.call_site import CallSite
from gradscope.explain.shared.module_calls import ModuleCalls


@dataclass(frozen=True, slots=True)
class ReplayedOperation:
    """Where a node's operation is in the script, and the function of PyTorch's that ran it."""

    site: CallSite = field(default_factory=CallSite)
    function: str | None = None


class ReplayedLines(ModuleCalls):
    """In the place of module calls: an operation that runs is at the line that
    was set."""

    def __init__(self) -> None:
        module = nn.Module()
        super().__init__(module, ReplayedLines.__init__.__code__)
        self.called.add(module)  # what runs outside of it now is the loss's
        self.at = CallSite()
        self._module = module

    def site(self, frame: Any = None) -> CallSite:
        """Where the operation is."""
        return self.at

    def tracer(self) -> NonFiniteTracer:
        """A watch that asks here."""
        return NonFiniteTracer(self._module, self.last, calls=self)
