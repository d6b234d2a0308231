"""The Python entries: a config or a live model in, a record out. Nothing here prints."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import gradscope
from gradscope import config as configs
from gradscope.capture.hooks import (
    named_modules,
    named_parameters,
    select_layers,
    watchable,
)
from gradscope.errors import GradscopeError, Interrupted, ModelError, OptionError, Problem
from gradscope.explain.errors import explain_error, is_own_bug
from gradscope.loading import Workload, load, load_model
from gradscope.loading.live import adopt, given
from gradscope.records import LayerInfo, Report, RunInfo, Totals
from gradscope.running.state import kept_as_found, random_state_kept
from gradscope.running.steps import Outcome, Plan, run


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
    given = {
        "mode": mode,
        "steps": steps,
        "seed": seed,
        "device": device,
        "dtype": dtype,
        "autocast": autocast,
        "backward.repeats": repeats,
        "backward.retain_graph": retain_graph,
    }
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if isinstance(model, nn.Module):
        moved = [name for name in ("device", "dtype") if name in options]
        if moved:
            raise OptionError(
                f"`{moved[0]}` would move a live module, which is to stay as it is",
                help=f"move it yourself before the call, as in `model.to({options[moved[0]]!r})`",
            )
        # Loading makes inputs from the seed too: the caller's random state is kept around it all.
        with random_state_kept({p.device for p in model.parameters()}):
            settings = {**options, "loss": loss, "optimizer": optimizer, "gradient": gradient}
            workload = adopt(model, settings, inputs=inputs, target=target)
            plan = Plan(patterns, tuple(chain), verify, restore=True)
            with kept_as_found(model, weights=False):
                if mode is not None:
                    model.train(mode == "train")
                return _observe(workload, plan)
    live = {"inputs": inputs, "loss": loss if callable(loss) else None}
    words = {"target": target, "loss": loss, "optimizer": optimizer, "backward.gradient": gradient}
    if patterns != ("**",):
        options["layers"] = list(patterns)
    options |= {k: v for k, v in words.items() if v is not None and v is not live.get(k)}
    loaded = configs.read(str(model), overrides, options=options)
    return inspect_config(loaded, chain=chain, verify=verify, allow=allow, **live)


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
        workload = load(loaded, allow)
    except ModelError as error:
        raise _with_report(error, loaded) from error.__cause__
    if inputs is not None:
        workload.batches = given(inputs)
    if loss is not None:
        workload.criterion.spec = loss
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
    failure, outcome.failure, outcome.recorder = outcome.failure, None, None
    try:
        if failure is None:
            return report
        if isinstance(failure, KeyboardInterrupt):
            said = "interrupted: what was recorded until then is shown"
            raise Interrupted(said, report=report) from None
        if isinstance(failure, ModelError):  # a mistake that the loss found in the output
            failure.report = report
            raise failure
        if isinstance(failure, GradscopeError) or is_own_bug(failure):
            raise failure
        # Whatever else ends a step is the user's: a model that calls `sys.exit` raised as well.
        raise ModelError(_problem(report), report=report) from failure
    finally:
        # Its traceback holds this frame: a cycle, which would keep all activations alive.
        del failure


def _report(workload: Workload, outcome: Outcome) -> Report:
    model = workload.model
    error = None
    if outcome.failure is not None:
        error = explain_error(outcome.failure, outcome.phase, outcome.executing())
    recorder = outcome.recorder
    parameters = list(named_parameters(model))
    return Report(
        status="ok" if error is None else "failed",
        versions=_versions(),
        config=workload.config,
        run=RunInfo(
            model=workload.name,
            device=str(workload.device),
            dtype=_word(workload.dtype),
            mode=workload.mode,
            seed=workload.seed,
            steps=workload.steps,
            loss=workload.criterion.name,
            autocast=None if workload.autocast is None else _word(workload.autocast),
            optimizer=outcome.optimizer,
            repeats=workload.repeats,
            verified=outcome.verified,
            notices=(
                *workload.notices,
                *workload.criterion.notices,
                *_unwatched(model),
                *outcome.notices,
            ),
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
    )


def _unwatched(model: nn.Module) -> list[str]:
    """What runs otherwise than the user runs it, or has no rows."""
    names = named_modules(model)
    said = []
    if any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl for m in names):
        said.append("torch.compile: compiled modules run eagerly here, as they were written")
    left = sorted(names[m].name or "the model" for m in names.keys() - set(watchable(model)))
    if left:
        shown = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
        said.append(f"scripted modules take no hooks and have no rows: {shown}")
    return said


def _problem(report: Report) -> Problem:
    """The failure in one sentence, for those who see no table."""
    error = report.error
    assert error is not None
    first = error.message.splitlines()[0]
    said = first if first == error.exception else f"{error.exception}: {first}"
    where = f" in `{error.name}`" if error.name else " in the model" if error.name == "" else ""
    notes = (f"at {error.location}",) if error.location else ()
    return Problem(f"{error.phase} raised{where}: {said}", None, error.advice, notes)


def _with_report(error: ModelError, loaded: configs.LoadedConfig) -> ModelError:
    """A failure before there was a model, with the report that says so."""
    config = loaded.config
    cause = error.__cause__ or error
    record = explain_error(cause, "construction", [])
    run = RunInfo(
        model=loaded.name,
        device=config.device,
        dtype=config.dtype,
        mode=config.mode or "train",
        seed=config.seed,
        steps=config.steps,
        loss="",
    )
    data = config.model_dump(mode="json")
    error.report = Report(status="failed", versions=_versions(), config=data, run=run, error=record)
    return error


def _versions() -> dict[str, str]:
    versions = {
        "gradscope": gradscope.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for name in ("torchvision", "timm", "transformers"):
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "unknown"))
    return versions


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _numel(parameter: nn.Parameter) -> int:
    return 0 if is_lazy(parameter) else parameter.numel()
