"""The graph of a tensor that is there already: nothing runs, and nothing of it is changed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gradscope.api.runs import versions
from gradscope.capture.graph import free_nodes
from gradscope.capture.names import named_parameters
from gradscope.capture.trace import Trace, TraceContext
from gradscope.errors import OptionError
from gradscope.records.graph import AutogradGraph
from gradscope.records.run import RunInfo
from gradscope.running.losses import loss_value


def graph_of(tensor: Tensor, model: Any = None) -> AutogradGraph:
    """The graph upstream of a tensor, without gradients, as no backward runs.

    Args:
        tensor: a loss, or any other.
        model: gives the parameters their names; its modules' calls were not traced, so that no
            operation has a module.

    Raises:
        OptionError: the tensor has no graph, or ``model`` is none.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise OptionError(
            f"beside a tensor, `graph` takes the model that names its parameters, and no "
            f"{type(model).__name__}",
            help="`gradscope.graph(loss, model)`, or `gradscope.graph(model, inputs)` to run it",
        )
    if not tensor.requires_grad:
        raise OptionError(
            "the tensor has no graph: it does not require a gradient",
            help="check for `no_grad`, `detach()` and `.item()` upstream of it",
        )
    named = {} if model is None else {each.name: p for p, each in named_parameters(model).items()}
    context = TraceContext(
        names={id(p): name for name, p in named.items()},
        recomputed=lambda: ((), _nowhere),
        locate=lambda stack: None,
        excluded=list(named.values()),
    )
    trace = Trace(get_gradient_edge(tensor).node, (), _nowhere, context)
    try:
        nodes, saved = trace.nodes(), trace.saved_bytes
    finally:
        free_nodes(trace.release())
    value, nonfinite = loss_value(tensor) if tensor.numel() == 1 else (None, None)
    return AutogradGraph(
        RunInfo(
            model="a tensor" if model is None else type(model).__name__,
            device=str(tensor.device),
            dtype=str(tensor.dtype).removeprefix("torch."),
            mode="",
            seed=0,
            steps=0,
            loss="given",
            notices=("gradients: none, the graph is shown before any backward",),
        ),
        root=0,
        nodes=nodes,
        start="loss" if tensor.numel() == 1 else "the tensor",
        versions=versions(),
        loss=value,
        loss_nonfinite=nonfinite,
        saved_bytes=saved,
        names=tuple(named),
        frozen=tuple(name for name, p in named.items() if not p.requires_grad),
    )


def _nowhere(span: int) -> tuple[str, int]:
    """The module and the call of a node, where none was traced."""
    raise AssertionError(f"there is no span {span}")
