"""The autograd graph of a model's step, or of an existing tensor."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gradscope.api.failing import explained_failure, fail
from gradscope.api.opened import Options, opened, read, run_info, versions
from gradscope.capture.graph import free_nodes
from gradscope.capture.hooks import select_layers
from gradscope.capture.names import named_parameters
from gradscope.capture.trace import Trace
from gradscope.config.loaded_config import LoadedConfig
from gradscope.errors import OptionError
from gradscope.explain.missing.explain_missing import explain_missing
from gradscope.explain.shared.frames import locate
from gradscope.loading.workload import Workload
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.records.run import RunInfo
from gradscope.running.gradients import loss_value
from gradscope.running.rerun import rerun
from gradscope.running.trace import LOSS, GraphTrace, RootSum, root_of, trace


def graph_of(tensor: Tensor, model: Any = None) -> AutogradGraph:
    """Return the graph upstream of a tensor, without gradients, because no backward runs.

    Args:
        tensor: a loss, or any other.
        model: names the parameters. Its modules' calls were not traced, so no operation has a
            module.

    Raises:
        OptionError: the tensor has no graph, or ``model`` is not a module.
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
    trace = Trace(
        *(get_gradient_edge(tensor).node, (), _nowhere, {id(p): name for name, p in named.items()}),
        recomputed=lambda: ((), _nowhere),
        locate=lambda stack: None,
        excluded=list(named.values()),
    )
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
    """Return the module and the call of a node, for a graph without traced calls."""
    raise AssertionError(f"there is no span {span}")


def graph(
    model: nn.Module | LoadedConfig | str | Path | Tensor,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
    call: str | None = None,
    root: str | None = None,
    lines: bool = False,
    mode: str | None = None,
    gradient: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> AutogradGraph:
    """Run forward and backward once and record the autograd graph between them.

    Args:
        model: a live module, whose state is restored, or a config: a YAML path or a spec such as
            ``torchvision:resnet18``. Or a tensor, such as a loss: nothing runs, its existing graph
            is returned, and ``inputs`` may be the model that names the parameters.
        inputs: as for ``gradscope.inspect``.
        target: as for ``gradscope.inspect``.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        call: the method that a step calls instead of forward, such as "training_step".
        root: a layer at which the graph starts, instead of the loss: ``fc``, ``cell#2`` for its
            third call, ``encoder:0`` for a part of its output, ``output`` for the model's output.
            Backward then starts from the sum of that output.
        lines: also record the line of each operation; forward takes longer.
        mode: "train" or "eval"; None keeps a live module's own modes.
        gradient: the external vector for a loss that is not a scalar.
        device, dtype: the device and dtype of a config's model; a live module stays.
        autocast: "bfloat16" or "float16".
        seed: set before the inputs are made, and before forward.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The graph; each node comes before the nodes that it leads to.

    Raises:
        ModelError: the model or the loss raised, or the loss has no graph; ``.report`` has the
            graph so far, ``__cause__`` is the exception.
        GradscopeError: the config, a name or a file is wrong.
    """
    options = Options.of(locals())
    if isinstance(model, Tensor):
        given = {**options.settings(), **({"root": root} if root is not None else {})}
        if given or lines:
            raise OptionError(
                f"`{next(iter(given), 'lines')}` is for a run, and the tensor's graph is there",
                help="`gradscope.graph(loss, model)` takes nothing else",
            )
        return graph_of(model, inputs)
    with opened(read(model, options), options, AutogradGraph) as workload:
        return _traced(workload, root, lines=lines)


def _traced(workload: Workload, word: str | None, *, lines: bool) -> AutogradGraph:
    select_layers(workload.model, workload.layers)  # a wrong pattern is reported before it runs
    workload = replace(workload, steps=1, make_optimizer=None)
    root = root_of(word, workload.model)
    start = LOSS if root is None else root.word
    began = time.perf_counter()
    traced = trace(workload, root, lines=lines, locate=locate)
    took = time.perf_counter() - began
    error = explained_failure(workload, traced, seconds=took, from_loss=root is None)
    names = {named.name: p for p, named in named_parameters(workload.model).items()}
    reached = {node.name for node in traced.nodes if node.kind == "parameter"}
    reached -= set(traced.unreached)
    missing = [name for name, p in names.items() if p.requires_grad and name not in reached]
    record = AutogradGraph(
        run_info(workload, traced.notices, steps=1),
        root=0 if traced.nodes else None,
        nodes=traced.nodes,
        start=start,
        status="ok" if error is None else "failed",
        versions=versions(),
        config=workload.config,
        loss=traced.loss,
        loss_nonfinite=traced.loss_nonfinite,
        saved_bytes=traced.saved_bytes,
        calls=traced.calls,
        names=tuple(names),
        frozen=tuple(name for name, p in names.items() if not p.requires_grad),
        answers=_missing(workload, traced, missing, start) if traced.phase == "backward" else (),
        error=error,
    )
    traced.recorder = None
    if traced.failure is not None:
        fail(traced, record)
    return record


def _missing(
    workload: Workload, traced: GraphTrace, missing: Sequence[str], start: str
) -> tuple[Answer, ...]:
    """Explain parameters that are missing in the graph, by tracing a second forward."""
    if not missing:
        return ()
    root = traced.output
    silent = _silent(traced.nodes) if traced.unreached else None
    observer = None if root is None else RootSum(output=root)
    with rerun(workload, observer=observer, weights=None) as step:
        return explain_missing(
            workload.model,
            step.loss,
            missing,
            start=None if root is None else start,
            silent=silent,
        )


def _silent(nodes: Sequence[GraphNode]) -> set[str]:
    """Find operations that got a gradient, but passed none on to a node that they lead to."""
    got = {node.id: node.grad_norm is not None or node.grad_nonfinite > 0 for node in nodes}
    return {n.op for n in nodes if got[n.id] and any(e and not got[e[0]] for e in n.to)}
