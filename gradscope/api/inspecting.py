"""The entries that make a report: ``inspect`` for its tables, ``check`` for its findings only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope.api.full_samples import Extras
from gradscope.api.opened import Options, opened, read, without
from gradscope.api.reporting import report_of
from gradscope.config.reading import LoadedConfig
from gradscope.records.report import Report
from gradscope.rules import RuleSettings


def inspect(
    model: nn.Module | LoadedConfig | str | Path,
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
    per_sample: bool = False,
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
    """Run forward and backward once; record activations, gradients and findings.

    Args:
        model: a live module, whose state is restored, or a config: a YAML path or a
            spec such as ``torchvision:resnet18``.
        inputs: a tensor, a tuple or list of positional arguments, or a mapping of keyword
            arguments. None: as in the config, or inferred.
        target: the target of the loss; None: as in the config, or random classes.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        call: the method that a step calls instead of forward, such as "training_step".
        layers: module-name patterns that select ``calls`` and ``parameters``.
        exclude: patterns removed from ``layers``.
        mode: "train" or "eval"; None keeps a live module's own modes.
        optimizer: a ``_target_`` mapping, or a callable that takes the parameters.
        steps: optimizer steps; the last one is recorded.
        gradient: the external vector for a loss that is not a scalar.
        repeats: backwards through one graph; gradients accumulate.
        retain_graph: as in ``Tensor.backward``.
        interventions: changes of tensors during the step, as in a config:
            ``{"layers": "conv1", "at": "grad_output", "do": "clip_norm", "value": 1.0}``.
        accumulate: the number of micro-batches; the report says whether their gradients add up to
            the batch's.
        device, dtype: the device and dtype of a config's model; a live module stays.
        autocast: "bfloat16" or "float16".
        seed: set before the inputs are made, and before each forward.
        overrides: ``key=value`` pairs on top of a config.
        chain: layers to record with their autograd chain back to the leaves.
        verify: also run two plain steps, and check whether gradients are bit-identical.
        tasks: also compute the gradients of each loss separately, if there are several.
        per_sample: also split the gradient by sample: the loss, the norm and the share of
            each, and the gradient's noise scale.
        costs: also measure the seconds and floating-point operations of each call.
        histogram: layers with histograms of outputs, parameters and gradients.
        gradcheck: layers to compare with finite differences, in float64.
        sketch: also keep a random projection of every tensor, to compare saved reports.
        select, ignore: rules to run or to leave out, by code, prefix of codes, or name.
        preset: thresholds of another tool: "sagemaker", "deepchecker" or "autotrainer".
        thresholds: thresholds by rule and name, as in ``{"GS201": {"share": 0.3}}``.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The report.

    Raises:
        ModelError: the model, the loss or the optimizer raised; ``.report`` has the records so far,
            ``__cause__`` is the exception.
        GradscopeError: the config, a name, a pattern or a file is wrong.
    """
    extras = Extras.of(locals())
    patterns = without(layers, exclude)
    options = Options.of(locals(), layers=None if patterns == ("**",) else patterns)
    source = read(model, options)
    rules = rule_settings(source, thresholds, select=select, ignore=ignore, preset=preset)
    with opened(source, options, Report, parallel=True) as workload:
        file = source.file if isinstance(source, LoadedConfig) else None
        return report_of(workload, rules, extras, file=file)


def rule_settings(
    source: nn.Module | LoadedConfig,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    **options: Any,
) -> RuleSettings:
    """Return the config's ``rules`` (none for a live module), overridden by options and thresholds.

    Raises:
        GradscopeError: a rule or a threshold does not exist.
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


def check(
    model: nn.Module | LoadedConfig | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
    call: str | None = None,
    select: Sequence[str] | str = (),
    ignore: Sequence[str] | str = (),
    preset: str | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    layers: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    precision: bool = False,
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
    allow: Sequence[str] = (),
) -> Report:
    """Run a model, and report its problems: the ``findings``.

    All layers are checked, also those that the config's ``layers`` leaves out of the tables.

    Args:
        model: a live module, whose state is restored, or a config: a YAML path or a
            spec such as ``torchvision:resnet18``.
        inputs: as for ``gradscope.inspect``, as are all options that are not named here.
        target: the target of the loss.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        call: the method that a step calls instead of forward, such as "training_step".
        select, ignore: rules to run or to leave out, by code, prefix of codes, or name.
        preset: thresholds of another tool: "sagemaker", "deepchecker" or "autotrainer".
        thresholds: thresholds by rule and name, as in ``{"GS201": {"share": 0.3}}``.
        layers: module-name patterns; findings of other layers are left out.
        exclude: patterns removed from ``layers``.
        precision: also forecast the values lost in narrower dtypes: the report's ``precision``.

    Returns:
        The report; its ``status`` is "findings" if there are any, else "ok".

    Raises:
        ModelError: the model, the loss or the optimizer raised; ``.report`` has the findings so
            far, with the status "failed".
        GradscopeError: the config, a name, a pattern or a file is wrong.
    """
    options = Options.of(locals())
    source = read(model, options)
    rules = rule_settings(source, thresholds, select=select, ignore=ignore, preset=preset)
    with opened(source, options, Report) as workload:
        workload.layers = ("**",)
        file = source.file if isinstance(source, LoadedConfig) else None
        extras = Extras(precision=precision)
        return report_of(workload, rules, extras, file=file, only=without(layers, exclude))
