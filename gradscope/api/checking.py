"""Findings only, for programs and for CI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gradscope.api.extras import Extras
from gradscope.api.inspecting import rule_settings
from gradscope.api.opened import Options, opened, read, without
from gradscope.api.reporting import report_of
from gradscope.config import LoadedConfig
from gradscope.loading import Workload
from gradscope.records.report import Report
from gradscope.rules import RuleSettings


def check(
    model: nn.Module | str | Path,
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
    """Run a model, and report what is wrong with it: the ``findings``.

    The full model is checked, whatever layers the config names for its tables.

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
        precision: also forecast what narrower dtypes would lose: the report's ``precision``.

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
        file = source.file if isinstance(source, LoadedConfig) else None
        return _checked(workload, rules, file, without(layers, exclude), precision)


def check_config(
    loaded: LoadedConfig,
    *,
    rules: RuleSettings | None = None,
    layers: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    precision: bool = False,
    allow: Sequence[str] = (),
) -> Report:
    """Load what a config names and check it. ``rules`` None are those of the config.

    Raises:
        GradscopeError: as ``check``.
    """
    rules = rules or rule_settings(loaded)
    with opened(loaded, Options(allow=allow), Report) as workload:
        return _checked(workload, rules, loaded.file, without(layers, exclude), precision)


def _checked(
    workload: Workload,
    rules: RuleSettings,
    file: str | None,
    only: Sequence[str],
    precision: bool,
) -> Report:
    """Findings of the layers that ``only`` selects, from a check of all of them."""
    workload.layers = ("**",)
    return report_of(workload, rules, Extras(precision=precision), file=file, only=only)
