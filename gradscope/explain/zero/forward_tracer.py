"""Traces one forward for zeros: which call made each node, the line, and which results are zero."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.explain.shared import tracing_modes
from gradscope.explain.shared.frames import locate
from gradscope.explain.shared.operations import function_name
from gradscope.explain.shared.tracing_modes import TracedCall
from gradscope.explain.zero.node_gradients import any_nonzero

_OWN = (__file__, str(tracing_modes.__file__))
_HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)


@dataclass(frozen=True, slots=True)
class ObservedValues:
    """Whether an operation gave nothing but zeros, and the range of its first input."""

    zero: bool
    low: float | None = None
    high: float | None = None
    dropped: bool = False  # by a dropout that leaves nothing


class ForwardTracer:
    """Notes, of every operation with a gradient that Python calls, what ``ObservedValues`` has."""

    def __init__(self) -> None:
        self.values: dict[Node, ObservedValues] = {}
        self.hooks = False  # whether a tensor got a hook of the user's
        self.recomputed = False  # whether something is not kept for backward, but made again then

    def run(self, call: TracedCall) -> Any:
        """Run the operation and look at its result."""
        limits = _range(call.args)  # before: what works in place overwrites it
        result = call.run()
        self.hooks = self.hooks or call.function in _HOOKS
        self.recomputed = self.recomputed or _packs()
        dropped = _drops_all(call)
        several = result if isinstance(result, tuple | list) else (result,)
        for tensor in several:
            # What is wrapped (vmap) or was overtaken by a write in place has no numbers to show.
            with suppress(RuntimeError, NotImplementedError, TypeError):
                if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                    self._note(tensor, limits, dropped)
        return result

    def _note(
        self, tensor: torch.Tensor, limits: tuple[float, float] | None, dropped: bool
    ) -> None:
        node = tensor.grad_fn
        if node is None or node in self.values:
            return
        low, high = limits or (None, None)
        self.values[node] = ObservedValues(not any_nonzero(tensor.detach()), low, high, dropped)


def _packs() -> bool:
    """Whether what is saved for backward now goes through functions of somebody's."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _drops_all(call: TracedCall) -> bool:
    p = call.args[1] if len(call.args) > 1 else call.kwargs.get("p")
    return "dropout" in function_name(call.function) and isinstance(p, int | float) and p == 1


def _range(args: tuple[Any, ...]) -> tuple[float, float] | None:
    """The smallest and the largest number of an operation's first argument."""
    given = args[0] if args else None
    with suppress(RuntimeError, NotImplementedError, TypeError):
        if isinstance(given, torch.Tensor) and given.requires_grad and given.numel():
            low, high = given.detach().aminmax()
            return float(low), float(high)
    return None


def with_hooks(model: nn.Module) -> bool:
    """Whether somebody reads gradients in backward, on a module or on a parameter."""
    modules = any(m._backward_hooks or m._backward_pre_hooks for m in model.modules())
    return modules or any(p._backward_hooks for p in model.parameters())


def location(node: Node) -> str | None:
    """The user's line that made a node, as ``net.py:31``; None inside a checkpoint's second run."""
    metadata: dict[str, Any] = node.metadata  # type: ignore[assignment]  # torch types a method
    stack = metadata.get("traceback_")
    if not stack:
        return None
    # The watch's own frames are between the operation and the user's line.
    return locate([frame for frame in stack if not any(file in frame for file in _OWN)])
