"""A report: what flows through every call, forward and backward, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.api.diagnosing import diagnosed
from gradscope.api.failing import explained_failure, fail, is_users
from gradscope.api.opened import Options, opened, read, without
from gradscope.api.runs import run_info, versions
from gradscope.capture.facts import unregistered
from gradscope.capture.hooks import named_modules, named_parameters, select_layers
from gradscope.capture.parameters import parameter_count
from gradscope.config import LoadedConfig
from gradscope.errors import OptionError
from gradscope.loading import Workload, load_model
from gradscope.records.modules import LayerInfo, Unregistered
from gradscope.records.report import Report
from gradscope.records.run import Totals
from gradscope.rules import RuleSettings
from gradscope.running.observe import Observation, observe


def inspect(
    model: nn.Module | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
    call: str | None = None,
    layers: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    mode: str | None = None,
    optimizer: Mapping[str, Any] | Callable[..., Any] | None = None,
    steps: int | None = None,
    gradient: Any = None,
    repeats: int | None = None,
    retain_graph: bool | None = None,
    interventions: Sequence[Mapping[str, Any]] | None = None,
    accumulate: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    chain: Sequence[str] = (),
    verify: bool = False,
    tasks: bool = False,
    costs: bool = False,
    histogram: Sequence[str] = (),
    gradcheck: Sequence[str] = (),
    sketch: bool = False,
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
        call: the method that a step calls in the place of forward, such as "training_step".
        layers: module-name patterns; ``calls`` and ``parameters`` hold what they select.
        exclude: patterns taken back from ``layers``.
        mode: "train" or "eval"; None keeps a live module's own modes.
        optimizer: a ``_target_`` mapping, or a callable that takes the parameters.
        steps: optimizer steps; the records are of the last.
        gradient: the external vector for a loss that is not a scalar.
        repeats: backwards through one graph; gradients accumulate.
        retain_graph: as in ``Tensor.backward``.
        interventions: what is changed on its way, as a config writes it:
            ``{"layers": "conv1", "at": "grad_output", "do": "clip_norm", "value": 1.0}``.
        accumulate: micro-batches that the batch is cut into; the report says whether their
            gradients add up to the batch's.
        device, dtype: where and in what precision a config's model runs; a live module stays.
        autocast: "bfloat16" or "float16".
        seed: set before the inputs are made and again before each forward.
        overrides: ``key=value`` pairs on top of a config.
        chain: layers whose autograd chain back to the leaves is kept.
        verify: also run two plain steps and say whether gradients are bit-identical.
        tasks: also take the gradients of each loss by itself, where the loss is several.
        costs: also run forward again for the seconds and the floating-point operations of each
            call.
        histogram: layers of whose outputs, parameters and gradients histograms are kept.
        gradcheck: layers whose backward is held against finite differences, in float64.
        sketch: also keep a random projection of every tensor, by which the saved report can be
            compared with another.
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
    patterns = without(layers, exclude)
    options = Options.of(locals(), layers=None if patterns == ("**",) else patterns)
    source = read(model, options)
    rules = rule_settings(source, thresholds, select=select, ignore=ignore, preset=preset)
    with opened(source, options, Report) as workload:
        file = source.file if isinstance(source, LoadedConfig) else None
        return report_of(
            *(workload, rules),
            file=file,
            chain=chain,
            verify=verify,
            tasks=tasks,
            histogram=histogram,
            gradcheck=gradcheck,
            looks=_looks(costs=costs, histograms=histogram, gradcheck=gradcheck, sketch=sketch),
        )


def inspect_config(
    loaded: LoadedConfig,
    *,
    rules: RuleSettings | None = None,
    exclude: Sequence[str] = (),
    chain: Sequence[str] = (),
    verify: bool = False,
    tasks: bool = False,
    costs: bool = False,
    histogram: Sequence[str] = (),
    gradcheck: Sequence[str] = (),
    sketch: bool = False,
    allow: Sequence[str] = (),
) -> Report:
    """Load what a config names and run it. ``rules`` None are those of the config.

    Raises:
        GradscopeError: as ``inspect``.
    """
    rules = rules or rule_settings(loaded)
    with opened(loaded, Options(allow=allow), Report) as workload:
        workload.layers = without(workload.layers, exclude)
        return report_of(
            *(workload, rules),
            file=loaded.file,
            chain=chain,
            verify=verify,
            tasks=tasks,
            histogram=histogram,
            gradcheck=gradcheck,
            looks=_looks(costs=costs, histograms=histogram, gradcheck=gradcheck, sketch=sketch),
        )


def _looks(**asked: bool | Sequence[str]) -> set[str]:
    """The closer looks that somebody asked for."""
    return {name for name, wanted in asked.items() if wanted}


def rule_settings(
    source: nn.Module | LoadedConfig,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    **options: Any,
) -> RuleSettings:
    """The config's `rules`, a live module has none, with options put in and thresholds on top.

    Raises:
        GradscopeError: rules or thresholds that there are not.
    """
    own = {"thresholds": {code: dict(limits) for code, limits in (thresholds or {}).items()}}
    if isinstance(source, nn.Module):
        return RuleSettings.of(own, **options)
    in_config = source.config.model_dump(mode="json")["rules"]
    settings = RuleSettings.of(in_config, source.place, **options)
    merged = {code: dict(limits) for code, limits in settings.thresholds.items()}
    for code, limits in RuleSettings.of(own).thresholds.items():
        merged[code] = merged.get(code, {}) | dict(limits)
    return replace(settings, thresholds=merged)


def layers(
    loaded: LoadedConfig, *, exclude: Sequence[str] = (), allow: Sequence[str] = ()
) -> tuple[LayerInfo, ...]:
    """The modules that the config's patterns select, without running them."""
    model = load_model(loaded, allow)
    patterns = without(loaded.config.layers, exclude)
    return tuple(
        LayerInfo(
            name=named.name,
            type=type(module).__name__,
            aliases=named.aliases,
            parameters=tuple(
                (name, tuple(p.shape), p.requires_grad)
                for name, p in module.named_parameters(recurse=False)
            ),
            total=parameter_count(module),
        )
        for module, named in select_layers(model, patterns).items()
    )


def report_of(
    workload: Workload,
    rules: RuleSettings,
    *,
    file: str | None = None,
    chain: Sequence[str] = (),
    verify: bool = False,
    tasks: bool = False,
    only: Sequence[str] | None = None,
    looks: Collection[str] = (),
    histogram: Sequence[str] = (),
    gradcheck: Sequence[str] = (),
) -> Report:
    """Run a workload and say what is wrong with it.

    Args:
        workload: what runs, with the patterns of the layers to record.
        rules: which rules look.
        file: what names the model.
        chain: patterns of the layers whose chains are kept.
        verify: also prove that looking is harmless.
        tasks: also take the gradients of each loss by itself.
        only: layer patterns; findings of others are left out. None: the workload's layers.
        looks: deep looks to take in any case.
        histogram: patterns of the layers of which histograms are kept.
        gradcheck: patterns of the layers whose backward is checked.

    Raises:
        GradscopeError: as ``inspect``.
    """
    only = workload.layers if only is None else only
    for patterns in (only, histogram, gradcheck):  # a wrong pattern is told before anything runs
        if patterns:
            select_layers(workload.model, patterns)
    observation = observe(workload, layers=workload.layers, chain=chain, verify=verify)
    report = _report(workload, observation)
    report = replace(report, run=replace(report.run, file=file))
    observation.recorder = None
    if observation.failure is None or is_users(observation.failure):
        shown = report.parameters
        if tasks and observation.failure is None:
            _require_several(report)
            looks = {*looks, "tasks"}
        if workload.accumulate > 1 and workload.device.type != "meta":
            looks = {*looks, "accumulation"}
        whole = replace(report, parameters=observation.all_parameters)
        found = diagnosed(
            workload,
            whole,
            rules,
            only=only,
            looks=looks,
            histogram=histogram,
            gradcheck=gradcheck,
            last=observation.number,
            first_nonfinite=observation.first_nonfinite,
        )
        report = replace(found, parameters=shown)
    if observation.failure is not None:
        fail(observation, report)
    return report


def _require_several(report: Report) -> None:
    if len(report.losses) < 2:
        raise OptionError(
            f"`tasks` compares the gradients of several losses, and `{report.run.loss}` is one",
            help="have the model or the `loss` return a mapping of them: `{'name': loss, …}`",
        )


def _report(workload: Workload, observation: Observation) -> Report:
    took = observation.seconds.forward + observation.seconds.backward
    error = explained_failure(workload, observation, seconds=took)
    recorder = observation.recorder
    parameters = list(named_parameters(workload.model))
    return Report(
        status="ok" if error is None else "failed",
        versions=versions(),
        config=workload.config,
        run=run_info(
            workload,
            observation.notices,
            steps=workload.steps,
            optimizer=observation.optimizer,
            verified=observation.verified,
        ),
        loss=observation.loss,
        loss_nonfinite=observation.loss_nonfinite,
        losses=observation.losses,
        totals=Totals(
            parameters=sum(_numel(p) for p in parameters),
            trainable=sum(_numel(p) for p in parameters if p.requires_grad),
            gradient_norm=observation.gradient_norm,
            saved_bytes=recorder.total_saved if recorder else None,
            modules=len(named_modules(workload.model)),
            calls=recorder.count if recorder else 0,
            seconds=observation.seconds,
        ),
        calls=observation.calls,
        parameters=observation.parameters,
        history=tuple(observation.history),
        chains=tuple(recorder.chains) if recorder else (),
        error=error,
        modules=observation.modules,
        links=tuple(recorder.links) if recorder else (),
        unregistered=_unregistered(workload, observation),
        interventions=observation.interventions,
    )


def _unregistered(workload: Workload, observation: Observation) -> tuple[Unregistered, ...]:
    """What gets a gradient and is no parameter, once the model is as it was before the run."""
    if observation.recorder is None or observation.failure is not None:
        return ()
    kept = unregistered(workload.model, observation.recorder.leaves)
    if kept and workload.make_optimizer is not None:
        optimizer = workload.make_optimizer(workload.model)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        others = [leaf for leaf in observation.recorder.leaves if id(leaf) not in held]
        return unregistered(workload.model, others)
    return kept


def _numel(parameter: nn.Parameter) -> int:
    return 0 if is_lazy(parameter) else parameter.numel()
