"""Operations whose slope is NaN or Inf, found when their graph is gone, by what was kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gradscope.explain.non_finite.operation_tracer import NonFiniteTracer
from gradscope.explain.non_finite.origin_messages import records
from gradscope.explain.non_finite.replayed_lines import ReplayedLines, ReplayedOperation
from gradscope.explain.shared.node_forward import NodeForward, bound, undone
from gradscope.records.answers import NonFiniteOrigin


@dataclass(frozen=True, slots=True)
class SavedNode:
    """A node whose slope may not be finite: what it saved, kept for when its graph is gone.

    Attributes:
        name: of the operation.
        edges: how many lead to its inputs.
    """

    name: str
    saved: Mapping[str, Any]
    edges: int
    written: ReplayedOperation


def explain_singular_derivatives(nodes: Iterable[SavedNode]) -> tuple[NonFiniteOrigin, ...]:
    """Which operations have a slope that is NaN or Inf where they were taken, the latest first.

    Each is run again alone, and a gradient of ones is sent into it.
    """
    places = ReplayedLines()
    tracer = places.tracer()
    for kept in nodes:
        places.at = kept.written.site
        for forward in bound(kept.name, kept.saved, kept.edges):
            if _back_and_forth(tracer, kept, forward):
                break
    return records(tracer.origins.reported(), ())


def _back_and_forth(tracer: NonFiniteTracer, kept: SavedNode, forward: NodeForward) -> bool:
    """Whether the operation ran."""
    leaves: dict[str, torch.Tensor] = {}
    for name in forward.edges:
        value = forward.arguments.get(name, undone(kept.name, kept.saved))
        if not isinstance(value, torch.Tensor):
            return False
        leaves[name] = value.detach().clone().requires_grad_()
    try:
        tracer.context.stage = "forward"
        with torch.enable_grad(), tracer.replaying(kept.written.function or kept.name):
            results = forward.run(leaves)
        roots = [result for result in results if result.requires_grad]
        tracer.context.stage = "backward"
        with tracer.replaying(None):
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except (RuntimeError, TypeError, NotImplementedError, IndexError):
        return False
    with tracer.quiet():
        for leaf in leaves.values():
            if leaf.grad is not None:
                tracer.external.stays(leaf.grad, "the gradient of the loss")
    return True
