"""Handles tensors that exist before or after the run: inputs, parameters, buffers, outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gradscope.capture.names import buffer_names, first_names
from gradscope.capture.stats import measure
from gradscope.explain.non_finite.origins import ObservedOrigin, ObservedOrigins
from gradscope.explain.non_finite.reasons import INF, NAN, Reason, broken, level, only_negative
from gradscope.explain.shared.frames import CallSite
from gradscope.explain.shared.tracing_modes import tensors_in
from gradscope.nesting import find

_LOOK = "check its source: the file, or a division or logarithm in the preprocessing"
_LOAD = "load a checkpoint from before, or initialise it"


class ExternalTensors:
    """Registers tensors from outside the run, and notes its non-finite results.

    Args:
        model: owns parameters and buffers.
        origins: the registry.
    """

    def __init__(self, model: nn.Module, origins: ObservedOrigins) -> None:
        self._model = model
        self._origins = origins

    def before(self, inputs: Mapping[str, Any] | None) -> None:
        """Register the known inputs, the parameters and the buffers at their present values."""
        for key, value in (inputs or {}).items():
            for path, tensor in find(value, torch.Tensor):
                self._input(f"{key}.{path}" if path else key, tensor)
        for name, parameter in first_names(self._model):
            if mask := self._held(name, parameter, "parameter", _LOAD):
                self._origins.mark_reached(mask if parameter.requires_grad else 0)
        for name, buffer in buffer_names(self._model):
            self._held(name, buffer, "parameter", _LOAD)

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Register the arguments of the model's own call."""
        for tree in (args, kwargs):
            for name, tensor in find(tree, torch.Tensor):
                self._input(name, tensor)

    def returned(self, name: str, root: bool, output: Any) -> None:
        """Note a module's output; NaN in it is reported, and so is Inf in the model's result."""
        for tensor in tensors_in(output):
            mask = self._origins.of(tensor)
            found = level(tensor) if mask else 0
            if not found:
                continue
            if not root:
                self._origins.spread(mask, name)
            made = any(not origin.deliberate for origin in self._origins.members(mask))
            if found == NAN or (root and made):
                self._origins.mark_reached(mask)

    def stays(self, tensor: torch.Tensor, name: str) -> int:
        """Mark the origins of a lasting tensor; return its level if it has no known origin."""
        found = level(tensor)
        mask = self._origins.of(tensor) if found else 0
        self._origins.spread(mask, name)
        self._origins.mark_reached(mask)
        return 0 if mask else found

    def kept_in_state(self) -> None:
        """Mark origins from the optimizer's step that are still in its state."""
        held = self._origins.living()
        for number, origin in enumerate(self._origins.all):
            if held >> number & 1 and origin.phase == "step" and not origin.deliberate:
                origin.spread.setdefault("the optimizer's state")
                origin.reached = True

    def outside(self, tensor: torch.Tensor, found: int, site: CallSite) -> int:
        """Register a tensor of unknown origin: a constant, or from a closure or a file."""
        count = _count(tensor, found)
        reason = Reason(_share(tensor, count), _LOOK, count)
        return self._origins.add(
            ObservedOrigin(
                found,
                "input",
                None,
                site,
                reason,
                deliberate=found == INF,
                inputs=(measure(tensor),),
            )
        )

    def _input(self, name: str, tensor: torch.Tensor) -> None:
        if not self._origins.of(tensor):
            self._held(name, tensor, "input", _LOOK)

    def _held(self, name: str, tensor: torch.Tensor, phase: str, advice: str) -> int:
        found = level(tensor)
        if not found:
            return 0
        count = _count(tensor, found)
        mask = self._origins.add(
            ObservedOrigin(
                found,
                phase,
                None,
                CallSite(),
                Reason(_share(tensor, count), advice, count),
                deliberate=found == INF and only_negative(tensor),
                name=name,
                inputs=(measure(tensor),),
            )
        )
        self._origins.put(tensor, mask, overwritten=False)
        return mask


def _count(tensor: torch.Tensor, found: int) -> int | None:
    """Return the number of elements that are NaN or Inf; None for a sparse tensor."""
    return None if tensor.is_sparse else int(broken(tensor.detach(), found).sum())


def _share(tensor: torch.Tensor, count: int | None) -> str:
    return "some values" if count is None else f"{count} of {tensor.numel()} values"
