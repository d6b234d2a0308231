"""Where an operation that is run again stands in the script: nobody's frames tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gradscope.explain.non_finite.operation_tracer import NonFiniteTracer
from gradscope.explain.shared.call_site import CallSite
from gradscope.explain.shared.module_calls import ModuleCalls


@dataclass(frozen=True, slots=True)
class ReplayedOperation:
    """Where a node's operation stands in the script, and the function of PyTorch's that ran it."""

    site: CallSite = field(default_factory=CallSite)
    function: str | None = None


class ReplayedLines(ModuleCalls):
    """In the place of module calls: the operation that runs stands where it is said to stand."""

    def __init__(self) -> None:
        module = nn.Module()
        super().__init__(module, ReplayedLines.__init__.__code__)
        self.called.add(module)  # what runs outside of it now is the loss's
        self.at = CallSite()
        self._module = module

    def site(self, frame: Any = None) -> CallSite:
        """Where the operation stands."""
        return self.at

    def watch(self) -> NonFiniteTracer:
        """A watch that asks here."""
        return NonFiniteTracer(self._module, self.last, calls=self)
