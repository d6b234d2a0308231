"""Findings alone: what is wrong with a model, for programs and for CI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gradscope import config as configs
from gradscope.api.inspecting import loaded_workload, observe, settings_of
from gradscope.api.runs import live_workload, read_config
from gradscope.records.report import Report
from gradscope.rules import RuleSettings
from gradscope.running.steps import Plan
from gradscope.running.switches import switches_kept


def check(
    model: nn.Module | str | Path,
    inputs: Any = None,
    *,
    target: Any = None,
    loss: str | Callable[..., Any] | None = None,
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
    """Run a model and say what is wrong with it: the report's ``findings``.

    The whole model is looked at, whatever layers the config names for its tables.

    Args:
        model: a live module, which is given back exactly as it was, or a config: a YAML path or a
            spec such as ``torchvision:resnet18``.
        inputs: as for ``gradscope.inspect``, as are all options that are not named here.
        target: what the loss compares with.
        loss: a built-in's name, or a callable of (output, target) or of (output).
        select, ignore: the rules that look, by code, beginning of codes, or name.
        preset: thresholds of another tool: "sagemaker", "deepchecker" or "autotrainer".
        thresholds: a rule's own by name, as in ``{"GS201": {"share": 0.3}}``.
        layers: module-name patterns; findings of other layers are left out.
        exclude: patterns taken back from ``layers``.
        precision: also forecast what narrower dtypes would lose: the report's ``precision``.

    Returns:
        The report; its ``status`` is "findings" where there are any, else "ok".

    Raises:
        ModelError: the model, the loss or the optimizer raised; ``.report`` has the findings from
            what was recorded until then, with the status "failed".
        GradscopeError: the config, a name, a pattern or a file is not right.
    """
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
    options: dict[str, Any] = {"select": select, "ignore": ignore, "preset": preset}
    if isinstance(model, nn.Module):
        own = {code: dict(limits) for code, limits in (thresholds or {}).items()}
        rules = RuleSettings.of({"thresholds": own}, **options)
        with live_workload(model, settings, inputs=inputs, target=target) as workload:
            only, more = _patterns(layers, exclude), _looks(precision)
            return observe(workload, Plan(), rules, only=only, more=more)
    live = {"inputs": inputs, "loss": loss if callable(loss) else None}
    loaded = read_config(model, settings | {"target": target}, overrides, live)
    return check_config(
        loaded,
        rules=settings_of(loaded, thresholds, **options),
        layers=layers,
        exclude=exclude,
        precision=precision,
        allow=allow,
        **live,
    )


@switches_kept()
def check_config(
    loaded: configs.LoadedConfig,
    *,
    rules: RuleSettings | None = None,
    layers: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    precision: bool = False,
    allow: Sequence[str] = (),
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
) -> Report:
    """Load what a config names and check it; live ``inputs`` and ``loss`` replace the config's.

    ``rules`` None are those of the config.

    Raises:
        GradscopeError: as ``check``.
    """
    rules = rules or settings_of(loaded)
    workload = loaded_workload(loaded, allow, inputs=inputs, loss=loss)
    plan = Plan(restore=workload.make_optimizer is not None)
    only, more = _patterns(layers, exclude), _looks(precision)
    return observe(workload, plan, rules, file=loaded.file, only=only, more=more)


def _patterns(layers: Sequence[str], exclude: Sequence[str]) -> tuple[str, ...]:
    return (*layers, *(f"!{pattern}" for pattern in exclude))


def _looks(precision: bool) -> frozenset[str]:
    return frozenset({"precision"}) if precision else frozenset()
