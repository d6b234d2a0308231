"""``leaks``: forbidden dependencies of outputs, along every axis of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradscope import progress
from gradscope.api.failing import problem
from gradscope.api.opened import Options, opened, read, run_info, versions
from gradscope.config.loaded_config import LoadedConfig
from gradscope.errors import GradscopeError, ModelError, OptionError
from gradscope.explain.errors.explain_exception import explain_error
from gradscope.leaks.judge import Judged, judge
from gradscope.leaks.subject import Wishes
from gradscope.loading.workload import Workload
from gradscope.records.leaks import LeaksReport
from gradscope.running.rerun import StepFailed


def leaks(
    model: nn.Module | LoadedConfig | str | Path,
    inputs: Any = None,
    *,
    causal: bool | None = None,
    axes: Mapping[str, int] | None = None,
    padding: float | None = None,
    only: Sequence[str] | str = (),
    maps: bool = False,
    mode: str | None = None,
    call: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> LeaksReport:
    """Find forbidden dependencies of outputs: on the future, other samples, padding.

    The model runs in eval mode on rows of one sample that differ in one place, and gradients are
    taken from outputs to inputs.

    Args:
        model: a live module, whose state is restored, or a config: a YAML path or a spec such
            as ``torchvision:resnet18``.
        inputs: as for ``gradscope.inspect``.
        causal: True if output t may depend on inputs up to t only; None: as the model's config
            or mask says.
        axes: the input dimension of ``time``, ``batch`` or, for a set, ``order``.
        padding: the padding token, if no mask marks padding.
        only: the axes to judge; None: all but ``order``.
        maps: also make the dependency maps.
        mode: "train" runs the model in training mode, without dropout.
        call: the method to call instead of forward.
        device, dtype: the device and dtype of a config's model; a live module stays.
        seed: set before the inputs are made, and before each forward.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The verdict on each axis; ``status`` is "findings" if an axis leaks, else "ok".

    Raises:
        ModelError: the model raised on its own input; ``__cause__`` is the exception.
        GradscopeError: the config, an axis or a file is wrong.
    """
    only = (only,) if isinstance(only, str) else tuple(only)
    wishes = Wishes(causal, dict(axes or {}), padding, only, maps)
    wishes.check()
    options = replace(Options.of(locals()), mode=mode or "eval")
    with opened(read(model, options), options, LeaksReport) as workload:
        return _judged(workload, wishes)


def _judged(workload: Workload, wishes: Wishes) -> LeaksReport:
    if workload.device.type == "meta":
        raise OptionError("`meta` has shapes alone: there is nothing to compare", help="use `cpu`")
    progress.begin("forward passes that differ in one place")
    try:
        found = judge(workload, wishes)
    except StepFailed as failed:
        cause = failed.__cause__ or failed
        if isinstance(cause, GradscopeError):
            raise cause from cause.__cause__
        record = explain_error(cause, failed.phase, [], workload.model)
        report = replace(_report(workload, None), status="failed", error=record)
        raise ModelError(problem(record), report=report) from cause
    return _report(workload, found)


def _report(workload: Workload, found: Judged | None) -> LeaksReport:
    notices = () if found is None else found.notices
    run = replace(run_info(workload, notices, steps=1), loss="", loss_inferred=False)
    report = LeaksReport(run, versions=versions(), config=workload.config)
    if found is None:
        return report
    return replace(
        report,
        status="findings" if any(one.verdict == "leaks" for one in found.axes) else "ok",
        axes=found.axes,
        maps=found.maps,
        forwards=found.forwards,
        backwards=found.backwards,
    )
