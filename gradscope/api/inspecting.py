"""A report: what flows through every call, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope import config as configs
from gradscope.api.runs import (
    fail,
    live_workload,
    load_workload,
    read_config,
    run_info,
    unloaded,
    versions,
)
from gradscope.capture.hooks import named_modules, named_parameters, select_layers
from gradscope.errors import ModelError
from gradscope.explain.errors import explain_error
from gradscope.loading import Workload, load_model
from gradscope.records import LayerInfo, Report, Totals
from gradscope.running.steps import Outcome, Plan, run
from gradscope.running.switches import switches_kept


def inspect(
    model: nn.Module | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
    layers: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    mode: str | None = None,
    optimizer: Mapping[str, Any] | Callable[..., Any] | None = None,
    steps: int | None = None,
    gradient: Any = None,
    repeats: int | None = None,
    retain_graph: bool | None = None,
    device: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    chain: Sequence[str] = (),
    verify: bool = False,
    allow: Sequence[str] = (),
) -> Report:
    """Run forward and backward once and record what flows.

    Args:
        model: a live module, which is given back exactly as it was, or a config: a YAML path or a
            spec such as ``torchvision:resnet18``.
        inputs: a tensor, a tuple or list of positional arguments, or a mapping of keyword
            arguments. None: those of the config, or inferred.
        target: what the loss compares with; None: the config's, or random where classes are wanted.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        layers: module-name patterns; ``calls`` and ``parameters`` hold what they select.
        exclude: patterns taken back from ``layers``.
        mode: "train" or "eval"; None keeps a live module's own modes.
        optimizer: a ``_target_`` mapping, or a callable that takes the parameters.
        steps: optimizer steps; the records are of the last.
        gradient: the external vector for a loss that is not a scalar.
        repeats: backwards through one graph; gradients accumulate.
        retain_graph: as in ``Tensor.backward``.
        device, dtype: where and in what precision a config's model runs; a live module stays.
        autocast: "bfloat16" or "float16".
        seed: set before the inputs are made and again before each forward.
        overrides: ``key=value`` pairs on top of a config.
        chain: layers whose autograd chain back to the leaves is kept.
        verify: also run two plain steps and say whether gradients are bit-identical.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The record that every command and format shows.

    Raises:
        ModelError: the model, the loss or the optimizer raised; ``.report`` has the part recorded
            until then, ``__cause__`` the exception.
        GradscopeError: the config, a name, a pattern or a file is not right.
    """
    patterns = (*layers, *(f"!{pattern}" for pattern in exclude))
    settings = {
        "mode": mode,
        "steps": steps,
        "seed": seed,
        "device": device,
        "dtype": dtype,
        "autocast": autocast,
        "backward.repeats": repeats,
        "backward.retain_graph": retain_graph,
        "loss": loss,
        "optimizer": optimizer,
        "gradient": gradient,
    }
    if isinstance(model, nn.Module):
        with live_workload(model, settings, inputs=inputs, target=target) as workload:
            return _observe(workload, Plan(patterns, tuple(chain), verify, restore=True))
    live = {"inputs": inputs, "loss": loss if callable(loss) else None}
    settings |= {"target": target, "layers": None if patterns == ("**",) else list(patterns)}
    loaded = read_config(model, settings, overrides, live)
    return inspect_config(loaded, chain=chain, verify=verify, allow=allow, **live)


@switches_kept()
def inspect_config(
    loaded: configs.LoadedConfig,
    *,
    exclude: Sequence[str] = (),
    chain: Sequence[str] = (),
    verify: bool = False,
    allow: Sequence[str] = (),
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
) -> Report:
    """Load what a config names and run it; live ``inputs`` and ``loss`` replace the config's.

    Raises:
        GradscopeError: as ``inspect``.
    """
    try:
        workload = load_workload(loaded, allow, inputs=inputs, loss=loss)
    except ModelError as error:
        run, record = unloaded(loaded, error)
        data = loaded.config.model_dump(mode="json")
        error.report = Report(
            status="failed", versions=versions(), config=data, run=run, error=record
        )
        raise
    patterns = (*workload.layers, *(f"!{pattern}" for pattern in exclude))
    return _observe(workload, Plan(patterns, tuple(chain), verify, restore=False))


def layers(
    loaded: configs.LoadedConfig, *, exclude: Sequence[str] = (), allow: Sequence[str] = ()
) -> tuple[LayerInfo, ...]:
    """The modules that the config's patterns select, without running them."""
    model = load_model(loaded, allow)
    patterns = (*loaded.config.layers, *(f"!{pattern}" for pattern in exclude))
    return tuple(
        LayerInfo(
            name=named.name,
            type=type(module).__name__,
            aliases=named.aliases,
            parameters=tuple(
                (name, tuple(p.shape), p.requires_grad)
                for name, p in module.named_parameters(recurse=False)
            ),
            total=sum(_numel(p) for p in module.parameters()),
        )
        for module, named in select_layers(model, patterns).items()
    )


def _observe(workload: Workload, plan: Plan) -> Report:
    outcome = run(workload, plan)
    report = _report(workload, outcome)
    outcome.recorder = None
    if outcome.failure is not None:
        fail(outcome, report)
    return report


def _report(workload: Workload, outcome: Outcome) -> Report:
    model = workload.model
    error = None
    if outcome.failure is not None:
        error = explain_error(outcome.failure, outcome.phase, outcome.executing())
    recorder = outcome.recorder
    parameters = list(named_parameters(model))
    return Report(
        status="ok" if error is None else "failed",
        versions=versions(),
        config=workload.config,
        run=run_info(
            workload,
            outcome.notices,
            steps=workload.steps,
            optimizer=outcome.optimizer,
            verified=outcome.verified,
        ),
        loss=outcome.loss,
        loss_nonfinite=outcome.loss_nonfinite,
        totals=Totals(
            parameters=sum(_numel(p) for p in parameters),
            trainable=sum(_numel(p) for p in parameters if p.requires_grad),
            gradient_norm=outcome.gradient_norm,
            saved_bytes=recorder.total_saved if recorder else None,
            modules=len(named_modules(model)),
            calls=recorder.count if recorder else 0,
            seconds=outcome.seconds,
        ),
        calls=outcome.calls,
        parameters=outcome.parameters,
        history=tuple(outcome.history),
        chains=tuple(recorder.chains) if recorder else (),
        error=error,
        modules=outcome.modules,
        links=tuple(recorder.links) if recorder else (),
    )


def _numel(parameter: nn.Parameter) -> int:
    return 0 if is_lazy(parameter) else parameter.numel()
