"""Turns a live model or a config into a workload: the first step of every entry.

A keyword that several entries share is a field of ``Options``."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope import progress
from gradscope.api.failing import users_problem
from gradscope.capture.hooks import hookable_modules, select_layers
from gradscope.capture.names import named_modules
from gradscope.capture.parameters import parameter_count
from gradscope.config import loaded_config as configs
from gradscope.config.loaded_config import LoadedConfig
from gradscope.errors import ModelError, OptionError, few
from gradscope.explain.errors.explain_exception import explain_error
from gradscope.loading.live_objects import adopt
from gradscope.loading.parallel import processes_of
from gradscope.loading.specs import require_constructed
from gradscope.loading.workload import Workload, load, load_model
from gradscope.records.answers import WhyReport
from gradscope.records.coord_check import CoordCheckReport
from gradscope.records.graph import AutogradGraph
from gradscope.records.leaks import LeaksReport
from gradscope.records.modules import LayerInfo
from gradscope.records.report import Report
from gradscope.records.run import RunInfo
from gradscope.running.state import random_state_restored, state_restored, switches_restored
from gradscope.version import __version__

#: Results of an entry, also for a failed run.
_Failed = Report | AutogradGraph | WhyReport | LeaksReport | CoordCheckReport


def run_info(workload: Workload, notices: Sequence[str], **more: Any) -> RunInfo:
    """Return the settings of the run, with all its notices."""
    return RunInfo(
        model=workload.name,
        device=str(workload.device),
        dtype=_name(workload.dtype),
        mode=workload.mode,
        seed=workload.seed,
        loss=workload.criterion.name,
        loss_inferred=workload.criterion.inferred,
        target_drawn=workload.criterion.drawn,
        without_graph=workload.criterion.without_graph,
        autocast=None if workload.autocast is None else _name(workload.autocast),
        repeats=workload.repeats,
        accumulate=workload.accumulate,
        notices=(
            *workload.notices,
            *workload.criterion.notices,
            *_unwatched(workload.model),
            *notices,
        ),
        **more,
    )


def versions() -> dict[str, str]:
    """Return the versions of gradscope, Python, PyTorch, and the loaded model libraries."""
    versions = {
        "gradscope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for name in ("torchvision", "timm", "transformers"):
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "unknown"))
    return versions


def _unwatched(model: nn.Module) -> list[str]:
    """Return notices on modules that run differently than in the user's code, or have no rows."""
    names = named_modules(model)
    notices = []
    if any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl for m in names):
        notices.append("torch.compile: compiled modules run eagerly here")
    left = sorted(names[m].name or "the model" for m in names.keys() - set(hookable_modules(model)))
    if left:
        notices.append(f"scripted modules have no hooks, so no rows: {few(left)}")
    return notices


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The keywords that all entries share; ``gradscope.inspect`` describes each. None: not given.

    ``layers`` are patterns, as in a config.
    """

    inputs: Any = None
    overrides: Sequence[str] = ()
    allow: Sequence[str] = ()
    target: Any = None
    layers: Sequence[str] | None = None
    loss: Any = None
    call: str | None = None
    optimizer: Any = None
    mode: str | None = None
    steps: int | None = None
    gradient: Any = None
    repeats: int | None = None
    retain_graph: bool | None = None
    interventions: Sequence[Mapping[str, Any]] | None = None
    accumulate: int | None = None
    device: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    seed: int | None = None

    @classmethod
    def of(cls, keywords: Mapping[str, Any], *, layers: Sequence[str] | None = None) -> Options:
        """Select the options among an entry's keywords."""
        own = {f.name: keywords[f.name] for f in fields(cls) if f.name in keywords}
        return cls(**own | {"layers": layers})

    def settings(self) -> dict[str, Any]:
        """Return the options that were given, by their config keys."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_KEYS}
        return {_KEYS.get(name, name): v for name, v in found.items() if v is not None}


#: Options that no config has as they are, and the keys of those that it has by another name.
_NO_KEYS = ("inputs", "overrides", "allow")
_KEYS = {
    "gradient": "backward.gradient",
    "repeats": "backward.repeats",
    "retain_graph": "backward.retain_graph",
}


def read(
    model: nn.Module | LoadedConfig | str | Path, options: Options
) -> nn.Module | LoadedConfig:
    """Read the config of a path or a spec, with the options in it; return a live module or a config
    unchanged.

    Raises:
        GradscopeError: the config or an option is wrong, or a module was never constructed.
    """
    if isinstance(model, nn.Module):
        require_constructed(model)
    if isinstance(model, nn.Module | LoadedConfig):
        return model
    settings = options.settings()
    if callable(options.loss):  # as the inputs, it is put in the place of the config's later
        del settings["loss"]
    return configs.read(str(model), options.overrides, options=settings)


def without(layers: Sequence[str], exclude: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of layers, with ``exclude`` taken out."""
    return (*layers, *(f"!{pattern}" for pattern in exclude))


@contextmanager
def opened(
    source: nn.Module | LoadedConfig,
    options: Options,
    report: type[_Failed],
    *,
    parallel: bool = False,
) -> Iterator[Workload]:
    """Make the workload of a config, or of a live module, whose state is restored.

    Also restores PyTorch's global settings.

    Args:
        source: the result of ``read``.
        options: the options of that ``read``.
        report: makes the report of an error if the config's model cannot be built.
        parallel: True if the entry supports a model that is spread over processes.

    Raises:
        ModelError: the config's model raised while it was built; ``.report`` says why.
        GradscopeError: an option, a name or a file is wrong.
    """
    if isinstance(source, nn.Module):
        with _adopted(source, options) as workload:
            yield workload
        return
    progress.begin(f"building {source.name}")
    if source.config.parallel is not None and not parallel:
        raise OptionError(
            "`parallel` is for `inspect` only",
            place=source.place("parallel"),
            help="run in one process: `parallel=null`",
        )
    with switches_restored(), processes_of(source) as processes:
        try:
            workload = load(source, options.allow, inputs=options.inputs, processes=processes)
        except BaseException as error:
            problem = users_problem(error, "construction failed")
            failure = error if problem is None else ModelError(problem)
            if isinstance(failure, ModelError):
                failure.report = _unbuilt(source, error, report)
            raise failure from (error.__cause__ if failure is error else error)
        if callable(options.loss):
            workload.criterion.spec = options.loss
        yield workload


@contextmanager
def live_model_restored(model: nn.Module, mode: str | None) -> Iterator[None]:
    """Set the mode of the caller's module in the block (None keeps it), and restore the module
    afterwards.
    """
    with state_restored(model, weights=False):
        if mode is not None:
            model.train(mode == "train")
        yield


@contextmanager
def _adopted(model: nn.Module, options: Options) -> Iterator[Workload]:
    settings = options.settings()
    moved = [name for name in ("device", "dtype") if name in settings]
    if moved:
        raise OptionError(
            f"`{moved[0]}` would move a live module, which gradscope must not change",
            help=f"move it yourself before the call, as in `model.to({settings[moved[0]]!r})`",
        )
    # Loading makes inputs from the seed too: the caller's random state is kept around it all.
    with random_state_restored({p.device for p in model.parameters()}), switches_restored():
        workload = adopt(model, settings, inputs=options.inputs, target=options.target)
        if options.layers is not None:
            workload.layers = tuple(options.layers)
        with live_model_restored(model, options.mode):
            yield workload


def _unbuilt(
    loaded: LoadedConfig,
    error: BaseException,
    report: type[_Failed],
) -> _Failed:
    """Return the record of a run that failed before the model was built."""
    config = loaded.config
    run = RunInfo(
        model=loaded.name,
        device=config.device,
        dtype=config.dtype,
        mode=config.mode or "train",
        seed=config.seed,
        steps=config.steps,
        loss="",
    )
    if report is Report:
        run = replace(run, file=loaded.file)
    return report(
        run=run,
        status="failed",
        versions=versions(),
        config=config.model_dump(mode="json"),
        error=explain_error(error.__cause__ or error, "construction", []),
    )


def layers(loaded: LoadedConfig, *, allow: Sequence[str] = ()) -> tuple[LayerInfo, ...]:
    """Return the modules that the config's patterns select, without running them."""
    model = load_model(loaded, allow)
    return tuple(
        LayerInfo(
            name=named.name,
            type=type(module).__name__,
            aliases=named.aliases,
            parameters=tuple(
                (name, None if is_lazy(p) else tuple(p.shape), p.requires_grad)
                for name, p in module.named_parameters(recurse=False)
            ),
            total=parameter_count(module),
        )
        for module, named in select_layers(model, loaded.layers).items()
    )
