"""A report: what flows through every call, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope import config as configs
from gradscope.api.diagnosing import diagnosed
from gradscope.api.failing import explained_failure
from gradscope.api.runs import (
    fail,
    is_users,
    live_workload,
    load_workload,
    read_config,
    run_info,
    unloaded,
    versions,
)
from gradscope.capture.facts import unregistered
from gradscope.capture.hooks import named_modules, named_parameters, select_layers
from gradscope.errors import ModelError
from gradscope.loading import Workload, load_model
from gradscope.records.modules import LayerInfo, Unregistered
from gradscope.records.report import Report
from gradscope.records.run import Totals
from gradscope.rules import RuleSettings
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
    select: Sequence[str] | str = (),
    ignore: Sequence[str] | str = (),
    preset: str | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    allow: Sequence[str] = (),
) -> Report:
    """Run forward and backward once and record what flows, and what is wrong with it.

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
        select, ignore: the rules that look, by code, beginning of codes, or name.
        preset: thresholds of another tool: "sagemaker", "deepchecker" or "autotrainer".
        thresholds: a rule's own by name, as in ``{"GS201": {"share": 0.3}}``.
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
    said = {"thresholds": {code: dict(limits) for code, limits in (thresholds or {}).items()}}
    options: dict[str, Any] = {"select": select, "ignore": ignore, "preset": preset}
    if isinstance(model, nn.Module):
        rules = RuleSettings.of(said, **options)
        with live_workload(model, settings, inputs=inputs, target=target) as workload:
            return observe(workload, Plan(patterns, tuple(chain), verify), rules)
    live = {"inputs": inputs, "loss": loss if callable(loss) else None}
    settings |= {"target": target, "layers": None if patterns == ("**",) else list(patterns)}
    loaded = read_config(model, settings, overrides, live)
    rules = settings_of(loaded, thresholds, **options)
    return inspect_config(loaded, rules=rules, chain=chain, verify=verify, allow=allow, **live)


@switches_kept()
def inspect_config(
    loaded: configs.LoadedConfig,
    *,
    rules: RuleSettings | None = None,
    exclude: Sequence[str] = (),
    chain: Sequence[str] = (),
    verify: bool = False,
    allow: Sequence[str] = (),
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
) -> Report:
    """Load what a config names and run it; live ``inputs`` and ``loss`` replace the config's.

    ``rules`` None are those of the config.

    Raises:
        GradscopeError: as ``inspect``.
    """
    rules = rules or settings_of(loaded)
    workload = loaded_workload(loaded, allow, inputs=inputs, loss=loss)
    patterns = (*workload.layers, *(f"!{pattern}" for pattern in exclude))
    restore = workload.make_optimizer is not None  # a closer look begins where the run began
    plan = Plan(patterns, tuple(chain), verify, restore=restore)
    return observe(workload, plan, rules, file=loaded.file)


def settings_of(
    loaded: configs.LoadedConfig,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    **options: Any,
) -> RuleSettings:
    """The config's `rules`, with options put in and thresholds on top.

    Raises:
        GradscopeError: rules or thresholds that there are not.
    """
    said = loaded.config.model_dump(mode="json")["rules"]
    settings = RuleSettings.of(said, loaded.place, **options)
    own = RuleSettings.of({"thresholds": {k: dict(v) for k, v in (thresholds or {}).items()}})
    merged = {code: dict(limits) for code, limits in settings.thresholds.items()}
    for code, limits in own.thresholds.items():
        merged[code] = merged.get(code, {}) | dict(limits)
    return replace(settings, thresholds=merged)


def loaded_workload(
    loaded: configs.LoadedConfig,
    allow: Sequence[str],
    *,
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
) -> Workload:
    """What a config names, loaded.

    Raises:
        ModelError: the model could not be built; ``.report`` says why.
        GradscopeError: as ``inspect``.
    """
    try:
        return load_workload(loaded, allow, inputs=inputs, loss=loss)
    except ModelError as error:
        run, record = unloaded(loaded, error)
        data = loaded.config.model_dump(mode="json")
        error.report = Report(
            status="failed",
            versions=versions(),
            config=data,
            run=replace(run, file=loaded.file),
            error=record,
        )
        raise


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


def observe(
    workload: Workload,
    plan: Plan,
    rules: RuleSettings,
    *,
    file: str | None = None,
    only: Sequence[str] | None = None,
    more: Collection[str] = (),
) -> Report:
    """Run a workload once and say what is wrong with it.

    Args:
        workload: what runs.
        plan: how it is looked at.
        rules: which rules look.
        file: what names the model.
        only: layer patterns; findings of others are left out. None: the plan's layers.
        more: deep looks to take in any case.

    Raises:
        GradscopeError: as ``inspect``.
    """
    only = plan.layers if only is None else only
    select_layers(workload.model, only)  # a wrong pattern is said before anything runs
    outcome = run(workload, plan)
    report = _report(workload, outcome, restore=plan.restore)
    report = replace(report, run=replace(report.run, file=file))
    outcome.recorder = None
    if outcome.failure is None or is_users(outcome.failure):
        shown = report.parameters
        whole = replace(report, parameters=outcome.all_parameters)
        found = diagnosed(workload, whole, rules, only=only, more=more)
        report = replace(found, parameters=shown)
    if outcome.failure is not None:
        fail(outcome, report)
    return report


def _report(workload: Workload, outcome: Outcome, *, restore: bool) -> Report:
    model = workload.model
    error = None
    if outcome.failure is not None:
        took = outcome.seconds.forward + outcome.seconds.backward
        error = explained_failure(
            workload,
            outcome.failure,
            outcome.phase,
            outcome.executing(),
            seconds=took,
            restore=restore,
        )
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
        unregistered=_unregistered(workload, outcome),
    )


def _unregistered(workload: Workload, outcome: Outcome) -> tuple[Unregistered, ...]:
    """What gets a gradient and is no parameter, once the model is as it was before the run."""
    if outcome.recorder is None or outcome.failure is not None:
        return ()
    kept = unregistered(workload.model, outcome.recorder.leaves)
    if kept and workload.make_optimizer is not None:
        optimizer = workload.make_optimizer(workload.model)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        others = [leaf for leaf in outcome.recorder.leaves if id(leaf) not in held]
        return unregistered(workload.model, others)
    return kept


def _numel(parameter: nn.Parameter) -> int:
    return 0 if is_lazy(parameter) else parameter.numel()
