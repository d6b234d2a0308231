"""An autograd graph: every node behind the loss, and why what is missing is not in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradscope import config as configs
from gradscope.api.failing import explained_failure
from gradscope.api.runs import (
    fail,
    live_workload,
    load_workload,
    read_config,
    run_info,
    unloaded,
    versions,
)
from gradscope.capture.hooks import named_parameters, select_layers
from gradscope.errors import ModelError
from gradscope.explain.cuts import explain_missing
from gradscope.explain.frames import locate
from gradscope.loading import Workload
from gradscope.records.answers import Answer
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.running.plain import fresh, loss_of
from gradscope.running.roots import root_of, sum_again
from gradscope.running.state import deeper_recursion, kept_as_found, run_eagerly
from gradscope.running.switches import switches_kept
from gradscope.running.tracing import Traced, trace


def graph(
    model: nn.Module | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
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
        model: a live module, which is given back exactly as it was, or a config: a YAML path or a
            spec such as ``torchvision:resnet18``.
        inputs: as for ``gradscope.inspect``.
        target: as for ``gradscope.inspect``.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        root: a layer whose output the graph starts from instead of the loss: ``fc``, ``cell#2``
            for its third call, ``encoder:0`` for a place in what it returned, ``output`` for the
            model's own. Backward then starts as from the sum of that output.
        lines: also note the user's line that made each operation; forward takes longer.
        mode: "train" or "eval"; None keeps a live module's own modes.
        gradient: the external vector for a loss that is not a scalar.
        device, dtype: where and in what precision a config's model runs; a live module stays.
        autocast: "bfloat16" or "float16".
        seed: set before the inputs are made and again before forward.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The graph; its nodes come with each before those that it leads to.

    Raises:
        ModelError: the model or the loss raised, or the loss has no graph; ``.report`` has the
            graph as far as it was known, ``__cause__`` the exception.
        GradscopeError: the config, a name or a file is not right.
    """
    settings = {
        "mode": mode,
        "seed": seed,
        "device": device,
        "dtype": dtype,
        "autocast": autocast,
        "loss": loss,
        "gradient": gradient,
    }
    if isinstance(model, nn.Module):
        with live_workload(model, settings, inputs=inputs, target=target) as workload:
            return _trace(workload, root, lines=lines, restore=True)
    live = {"inputs": inputs, "loss": loss if callable(loss) else None}
    loaded = read_config(model, settings | {"target": target}, overrides, live)
    return graph_config(loaded, root=root, lines=lines, allow=allow, **live)


@switches_kept()
def graph_config(
    loaded: configs.LoadedConfig,
    *,
    root: str | None = None,
    lines: bool = False,
    exclude: Sequence[str] = (),
    allow: Sequence[str] = (),
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
) -> AutogradGraph:
    """Load what a config names and trace it; live ``inputs`` and ``loss`` replace the config's.

    The graph is always whole; that the config's layer patterns less ``exclude`` name modules is
    checked, for who draws it by them.

    Raises:
        GradscopeError: as ``graph``.
    """
    try:
        workload = load_workload(loaded, allow, inputs=inputs, loss=loss)
    except ModelError as error:
        run, record = unloaded(loaded, error)
        data = loaded.config.model_dump(mode="json")
        error.report = AutogradGraph(
            run, status="failed", versions=versions(), config=data, error=record
        )
        raise
    select_layers(workload.model, (*workload.layers, *(f"!{pattern}" for pattern in exclude)))
    return _trace(workload, root, lines=lines, restore=False)


def _trace(workload: Workload, word: str | None, *, lines: bool, restore: bool) -> AutogradGraph:
    root = root_of(word, workload.model)
    began = time.perf_counter()
    traced = trace(workload, root, lines=lines, locate=locate, restore=restore)
    took = time.perf_counter() - began
    error = None
    if traced.failure is not None:
        error = explained_failure(
            workload,
            traced.failure,
            traced.phase,
            traced.executing(),
            seconds=took,
            restore=restore,
            from_loss=root is None,
        )
    names = {named.name: p for p, named in named_parameters(workload.model).items()}
    reached = {node.name for node in traced.nodes if node.kind == "parameter"}
    reached -= set(traced.unreached)
    missing = [name for name, p in names.items() if p.requires_grad and name not in reached]
    answers: tuple[Answer, ...] = ()
    if missing and traced.phase == "backward":
        answers = _explained(workload, traced, missing, restore=restore)
    record = AutogradGraph(
        run_info(workload, traced.notices, steps=1),
        root=0 if traced.nodes else None,
        nodes=traced.nodes,
        start=traced.start,
        status="ok" if error is None else "failed",
        versions=versions(),
        config=workload.config,
        loss=traced.loss,
        loss_nonfinite=traced.loss_nonfinite,
        saved_bytes=traced.saved_bytes,
        calls=traced.calls,
        names=tuple(names),
        frozen=tuple(name for name, p in names.items() if not p.requires_grad),
        answers=answers,
        error=error,
    )
    traced.recorder = None
    if traced.failure is not None:
        fail(traced, record)
    return record


def _explained(
    workload: Workload, traced: Traced, missing: Sequence[str], *, restore: bool
) -> tuple[Answer, ...]:
    """A second forward, watched closely: only where something is missing."""
    batch = next(workload.batches(), None)
    if batch is None:
        return ()
    args, kwargs, target = fresh(batch)

    def forward() -> torch.Tensor:
        if traced.root is not None:
            return sum_again(workload, traced.root, args, kwargs)
        return loss_of(workload, args, kwargs, target)

    with kept_as_found(workload.model, weights=restore), run_eagerly(), deeper_recursion():
        start = None if traced.root is None else traced.start
        silent = _silent(traced.nodes) if traced.unreached else None
        return explain_missing(workload.model, forward, missing, start=start, silent=silent)


def _silent(nodes: Sequence[GraphNode]) -> set[str]:
    """The operations that got a gradient and gave none on to something that they lead to."""
    got = {node.id: node.grad_norm is not None or node.grad_nonfinite > 0 for node in nodes}
    return {n.op for n in nodes if got[n.id] and any(e and not got[e[0]] for e in n.to)}
