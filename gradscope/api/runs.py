"""What every run shares: loading or adopting the model, the facts of the run, how it failed."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

import gradscope
from gradscope import config as configs
from gradscope.capture.hooks import named_modules, watchable
from gradscope.errors import GradscopeError, Interrupted, ModelError, OptionError, Problem
from gradscope.explain.errors import explain_error, is_own_bug
from gradscope.loading import Workload, load
from gradscope.loading.live import adopt, given
from gradscope.records import AutogradGraph, ErrorRecord, Report, RunInfo, WhyReport
from gradscope.running.state import kept_as_found, random_state_kept
from gradscope.running.switches import switches_kept


@contextmanager
def live_workload(
    model: nn.Module, settings: Mapping[str, Any], *, inputs: Any, target: Any
) -> Iterator[Workload]:
    """A workload around the caller's own module, which is given back as it was.

    Args:
        model: the module, which stays where it is.
        settings: the options by their config keys; None is not given.
        inputs: as for ``gradscope.inspect``.
        target: as for ``gradscope.inspect``.

    Raises:
        OptionError: a device or a dtype was asked for.
    """
    wishes = {key: value for key, value in settings.items() if value is not None}
    moved = [name for name in ("device", "dtype") if name in wishes]
    if moved:
        raise OptionError(
            f"`{moved[0]}` would move a live module, which is to stay as it is",
            help=f"move it yourself before the call, as in `model.to({wishes[moved[0]]!r})`",
        )
    # Loading makes inputs from the seed too: the caller's random state is kept around it all.
    with random_state_kept({p.device for p in model.parameters()}), switches_kept():
        workload = adopt(model, wishes, inputs=inputs, target=target)
        with kept_as_found(model, weights=False):
            mode = wishes.get("mode")
            if mode is not None:
                model.train(mode == "train")
            yield workload


def read_config(
    model: str | Path,
    settings: Mapping[str, Any],
    overrides: Sequence[str],
    live: Mapping[str, Any],
) -> configs.LoadedConfig:
    """The config behind a path or a spec; what is ``live`` replaces the config's when it runs."""
    options = {
        key: value
        for key, value in settings.items()
        if value is not None and value is not live.get(key)
    }
    if "gradient" in options:
        options["backward.gradient"] = options.pop("gradient")
    return configs.read(str(model), overrides, options=options)


def load_workload(
    loaded: configs.LoadedConfig,
    allow: Sequence[str],
    *,
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
) -> Workload:
    """What a config names, loaded; live ``inputs`` and ``loss`` replace the config's."""
    workload = load(loaded, allow)
    if inputs is not None:
        workload.batches = given(inputs)
    if loss is not None:
        workload.criterion.spec = loss
    return workload


def run_info(workload: Workload, notices: Sequence[str], **more: Any) -> RunInfo:
    """How the run was made, with what was said on the way."""
    return RunInfo(
        model=workload.name,
        device=str(workload.device),
        dtype=_word(workload.dtype),
        mode=workload.mode,
        seed=workload.seed,
        loss=workload.criterion.name,
        loss_inferred=workload.criterion.inferred,
        without_graph=workload.criterion.without_graph,
        autocast=None if workload.autocast is None else _word(workload.autocast),
        repeats=workload.repeats,
        notices=(
            *workload.notices,
            *workload.criterion.notices,
            *_unwatched(workload.model),
            *notices,
        ),
        **more,
    )


def unloaded(loaded: configs.LoadedConfig, error: ModelError) -> tuple[RunInfo, ErrorRecord]:
    """The facts of a run that failed before there was a model."""
    config = loaded.config
    record = explain_error(error.__cause__ or error, "construction", [])
    run = RunInfo(
        model=loaded.name,
        device=config.device,
        dtype=config.dtype,
        mode=config.mode or "train",
        seed=config.seed,
        steps=config.steps,
        loss="",
    )
    return run, record


class Stopped(Protocol):
    """What a run left that something stopped."""

    failure: BaseException | None


def fail(stopped: Stopped, record: Report | AutogradGraph | WhyReport) -> NoReturn:
    """Raise what stopped a run, with what was recorded until then."""
    failure, stopped.failure = stopped.failure, None
    assert failure is not None
    try:
        if isinstance(failure, KeyboardInterrupt):
            said = "interrupted: what was recorded until then is shown"
            raise Interrupted(said, report=record) from None
        if isinstance(failure, ModelError):  # a mistake that the loss found in the output
            failure.report = record
            raise failure
        if isinstance(failure, GradscopeError) or is_own_bug(failure):
            raise failure
        # Whatever else ends a step is the user's: a model that calls `sys.exit` raised as well.
        raise ModelError(problem(record.error), report=record) from failure
    finally:
        # Its traceback holds this frame: a cycle, which would keep all activations alive.
        del failure


def is_users(failure: BaseException) -> bool:
    """Whether what stopped a run is the model's own doing: neither Ctrl-C nor gradscope's."""
    if isinstance(failure, KeyboardInterrupt):
        return False
    if isinstance(failure, GradscopeError):
        return isinstance(failure, ModelError)
    return not is_own_bug(failure)


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


def problem(error: ErrorRecord | None) -> Problem:
    """The failure in one sentence, for those who see no table."""
    assert error is not None
    first = error.message.splitlines()[0]
    said = first if first == error.exception else f"{error.exception}: {first}"
    where = f" in `{error.name}`" if error.name else " in the model" if error.name == "" else ""
    notes = (*((f"at {error.location}",) if error.location else ()), *error.details)
    return Problem(f"{error.phase} raised{where}: {said}", None, error.advice, notes)


def versions() -> dict[str, str]:
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
