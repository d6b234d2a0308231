"""A report: what flows through every call, forward and backward, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope.api.extras import Extras
from gradscope.api.opened import Options, opened, read, without
from gradscope.api.reporting import report_of
from gradscope.config import LoadedConfig
from gradscope.records.report import Report
from gradscope.rules import RuleSettings


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
        tasks: also take the gradients of each loss separately, where the loss is several.
        costs: also run forward again for the seconds and the floating-point operations of each
            call.
        histogram: layers of whose outputs, parameters and gradients histograms are kept.
        gradcheck: layers whose backward is compared with finite differences, in float64.
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
    extras = Extras.of(locals())
    patterns = without(layers, exclude)
    options = Options.of(locals(), layers=None if patterns == ("**",) else patterns)
    source = read(model, options)
    rules = rule_settings(source, thresholds, select=select, ignore=ignore, preset=preset)
    with opened(source, options, Report, parallel=True) as workload:
        file = source.file if isinstance(source, LoadedConfig) else None
        return report_of(workload, rules, extras, file=file)


def inspect_config(
    loaded: LoadedConfig,
    *,
    rules: RuleSettings | None = None,
    extras: Extras | None = None,
    exclude: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> Report:
    """Load what a config names and run it. ``rules`` None are those of the config.

    Raises:
        GradscopeError: as ``inspect``.
    """
    rules = rules or rule_settings(loaded)
    with opened(loaded, Options(allow=allow), Report, parallel=True) as workload:
        workload.layers = without(workload.layers, exclude)
        return report_of(workload, rules, extras or Extras(), file=loaded.file)


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
