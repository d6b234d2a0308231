"""Builds a config's workload: model, inputs, loss and optimizer, in order."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradscope.actions import Intervention
from gradscope.config.loaded_config import LoadedConfig
from gradscope.errors import Problem, TargetError
from gradscope.loading import checkpoints, devices, losses, specs, surgery
from gradscope.loading.batches import StepMethod, check_given, step_method
from gradscope.loading.devices import seed_everything
from gradscope.loading.inputs import Batch, given, make_batches
from gradscope.loading.losses import Criterion
from gradscope.loading.optimizers import default_optimizer, optimizer_maker
from gradscope.loading.parallel import ParallelModel, Processes, parallelized
from gradscope.loading.random_states import RandomState, read_states
from gradscope.loading.sources import Context
from gradscope.loading.sources.grammar import plan_target
from gradscope.loading.sources.tensors import to_tensor
from gradscope.loading.specs import ModelKind
from gradscope.loading.surgery import compiled_of, unwrapped
from gradscope.loading.targets import Targets
from gradscope.nesting import replaced
from gradscope.output_files import expanded
from gradscope.patterns import matching


@dataclass
class Workload:
    """All parts of one run, ready on its device."""

    model: nn.Module
    name: str
    batches: Callable[[], Iterator[Batch]]  # each call starts anew; the last batch repeats
    criterion: Criterion
    make_optimizer: Callable[[nn.Module], Optimizer] | None
    device: torch.device
    dtype: torch.dtype
    autocast: torch.dtype | None = None
    mode: str = "train"  # already applied to the model
    seed: int = 0
    random_states: tuple[RandomState, ...] = ()  # before each forward, in place of the seed's
    steps: int = 1
    accumulate: int = 1  # micro-batches of each step
    repeats: int = 1
    retain_graph: bool = False
    gradient: Any | None = None  # the external vector, a tensor
    interventions: tuple[Intervention, ...] = ()
    layers: tuple[str, ...] = ("**",)
    notices: list[str] = field(default_factory=list)  # what was inferred or mended, in sentences
    config: dict[str, Any] = field(default_factory=dict)  # every key's effective value, plain JSON
    kind: ModelKind | None = None
    method: StepMethod | None = None  # the method that a step calls, None: forward
    compiled: nn.Module | None = None  # what `torch.compile` made of the model
    as_compiled: bool = False  # what was compiled runs as such, and not as it was written
    live: bool = False  # the caller's own module, weights and all: it is given back as it was
    parallel: ParallelModel | None = None  # how it is spread over processes, None: it is not

    def called(self) -> Callable[..., Any]:
        """Return the callable that a step calls with its batch."""
        if self.parallel is not None:
            return self.parallel.outer
        if self.method is None:
            compiled = self.compiled if self.as_compiled else None
            return self.model if compiled is None else compiled
        return getattr(self.model, self.method.name)  # type: ignore[no-any-return]


def load(
    loaded: LoadedConfig,
    allow: Sequence[str] = (),
    *,
    inputs: Any = None,
    processes: Processes | None = None,
) -> Workload:
    """Build the workload of a config; ``allow`` and GRADSCOPE_ALLOW permit more imports.

    Args:
        loaded: the config.
        allow: further imports that it may make.
        inputs: the caller's inputs, which replace the config's.
        processes: the processes over which ``parallel`` spreads the model.

    Raises:
        ConfigError: a file or an argument is wrong.
        TargetError: with all names that are refused or do not exist.
        OptionError: the device does not exist.
        LayerError: a pattern of layers, freeze or interventions has no match.
        ModelError: the user's code raised.
    """
    config, place = loaded.config, loaded.place
    autocast = devices.resolve_autocast(config.autocast, place("autocast"))
    built = build_model(loaded, allow, None if processes is None else processes.device)
    model, kind, targets, device = built.model, built.kind, built.targets, built.device
    dtype, notices = built.dtype, built.notices
    make_optimizer = _optimizer(loaded, targets, model, notices)
    own_target = config.loss not in (None, "output")
    method = step_method(model, config.call, place("call"), own_target=own_target)
    wanted = config.input if inputs is None else inputs
    check_given(method, wanted, config.target if config.target == "random" else None, place("call"))
    criterion_spec = losses.resolve(config.loss, targets.instantiate, place)
    as_one = method is not None and method.as_one
    batches, messages, target = make_batches(
        config.input,
        config.target,
        built.context(loaded),
        seed=config.seed,
        as_one=as_one,
        parts=0 if method is None or method.own_target else method.takes,
        own=None if inputs is None else given(inputs, as_one=as_one),
    )
    if method is not None:
        batches, target = method.batches(batches, target), target if method.own_target else None
    backward = config.backward
    context = built.context(loaded)
    gradient = tensor_of(backward.gradient, context, "backward.gradient")
    interventions = surgery.resolve(
        config.interventions, model, lambda value, key: tensor_of(value, context, key), place
    )
    random_states: tuple[RandomState, ...] = ()
    if config.random_state is not None:
        path = loaded.directory / expanded(config.random_state)
        random_states, left_out = read_states(path, device, place("random_state"))
        notices += left_out
    parallel = None
    if processes is not None:
        parallel = parallelized(model, loaded, processes)
        notices += parallel.notices
    effective = _effective(loaded, device, dtype, built.weights, make_optimizer)
    return Workload(
        model=model,
        name=loaded.name,
        batches=batches,
        criterion=Criterion(
            criterion_spec, target, seed=config.seed, external_gradient=gradient is not None
        ),
        make_optimizer=make_optimizer,
        device=device,
        dtype=dtype,
        autocast=autocast,
        mode=config.mode,
        seed=config.seed,
        random_states=random_states,
        steps=config.steps,
        accumulate=config.accumulate,
        repeats=backward.repeats,
        retain_graph=backward.retain_graph,
        gradient=gradient,
        interventions=interventions,
        layers=loaded.layers,
        notices=[
            *notices,
            *(method.notices if method else []),
            *messages,
            *targets.notices,
            *surgery.notices(interventions),
        ],
        config=effective,
        kind=kind,
        method=method,
        compiled=built.compiled,
        parallel=parallel,
    )


def load_model(loaded: LoadedConfig, allow: Sequence[str] = ()) -> nn.Module:
    """Return only the model, as ``load`` builds it; its inputs need not be known.

    Raises:
        GradscopeError: as ``load``.
    """
    return build_model(loaded, allow).model


@dataclass
class BuiltModel:
    """The model on its device, with facts found while building it."""

    model: nn.Module
    kind: ModelKind
    weights: str | None
    notices: list[str]
    device: torch.device
    dtype: torch.dtype
    targets: Targets
    compiled: nn.Module | None

    def context(self, loaded: LoadedConfig) -> Context:
        """Return the surroundings of the config's sources, without notices so far."""
        where, make = (loaded.directory, loaded.place), self.targets.instantiate
        return Context(self.model, self.kind, *where, self.device, self.dtype, make)


def build_model(
    loaded: LoadedConfig, allow: Sequence[str], device: torch.device | None = None
) -> BuiltModel:
    """Check names, build the model, load weights, freeze parts, set the mode.

    ``device`` is this process's device; None: the config's.
    """
    config, place = loaded.config, loaded.place
    device = device or devices.resolve_device(config.device, place("device"))
    dtype = devices.resolve_dtype(config.dtype, place("dtype"))
    devices.check_pair(device, dtype, place("dtype"))
    asked = [*allow, *os.environ.get("GRADSCOPE_ALLOW", "").split(",")]
    targets = Targets(loaded.directory, asked, place, loaded.typed)
    seed_everything(config.seed)
    _check_names(loaded, targets)  # what a file makes when it is imported is seeded too
    if device.type != "meta":
        specs.check_memory(config.model, targets)
    seed_everything(config.seed)
    model, kind, weights, notices = _model(loaded, targets, device, dtype)
    compiled = compiled_of(model)
    model, wrappers = unwrapped(model)
    notices += wrappers
    dtype = _settle(loaded, targets, model, kind, device, dtype, notices)
    notices += surgery.freeze(model, config.freeze, place)
    if "layers" in loaded.given:  # the run selects them: here a mistake has its place
        matching(config.layers, surgery.module_names(model), key="layers", place=place)
    try:
        model.train(config.mode == "train")
    except Exception as error:  # a method of the user's in the place of torch's
        what = f"`{type(model).__name__}.train` failed"
        raise targets.own.failure(error, what, place("mode") or place("model")) from error
    notices += surgery.put_in_eval_mode(model, config.eval_modules, place)
    if config.compile is not None and device.type != "meta":
        made: Any = torch.compile(model, **config.compile.model_dump())  # not before its first call
        compiled = made
        notices += unwrapped(made)[1]
    return BuiltModel(model, kind, weights, notices, device, dtype, targets, compiled)


def _check_names(loaded: LoadedConfig, targets: Targets) -> None:
    """Report all refused or unknown names at once, before anything is built."""
    problems: list[Problem] = []
    try:
        specs.faults(loaded.config.model, targets)
    except TargetError as error:
        problems += error.problems
    values = loaded.config.model_dump()
    problems += [p for p in targets.names.faults(values) if p not in problems]
    if problems:
        raise TargetError(*problems)


def _model(
    loaded: LoadedConfig, targets: Targets, device: torch.device, dtype: torch.dtype
) -> tuple[nn.Module, ModelKind, str | None, list[str]]:
    """Return the built model: weights first, then replacements, then the checkpoint."""
    config = loaded.config
    random = config.weights is None and "weights" in loaded.given
    built = specs.build(config.model, targets, weights=config.weights, random=random, device=device)
    notices = list(built.notices)
    notices += surgery.replace(built.model, config.replace, targets.instantiate, loaded.place)
    if config.checkpoint is not None:
        path = loaded.directory / expanded(config.checkpoint)
        if dtype == torch.float64:  # its values would be rounded on their way there
            surgery.cast(built.model, dtype)
        notices += checkpoints.load(built.model, path, loaded.place("checkpoint"))
    return built.model, built.kind, built.weights, notices


def _settle(
    loaded: LoadedConfig,
    targets: Targets,
    model: nn.Module,
    kind: ModelKind,
    device: torch.device,
    dtype: torch.dtype,
    notices: list[str],
) -> torch.dtype:
    """Move the model to its device and dtype; a user's own keeps its dtype by default."""
    own = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if kind.library == "python" and "dtype" not in loaded.given and own - {dtype}:
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        shown = ", ".join(sorted(str(each).removeprefix("torch.") for each in own))
        notices.append(f"dtype: {shown}, the model's own")
    else:
        surgery.cast(model, dtype)
    try:
        model.to(device)
    except Exception as error:  # out of memory, a driver that fails, a method of the user's
        what = f"moving the model to {device} failed"
        raise targets.own.failure(error, what, loaded.place("device")) from error
    return dtype


def tensor_of(value: Any, context: Context, key: str) -> Any:
    """Convert numbers, nested lists, a file or a source to a tensor; None stays None."""
    if value is None:
        return None
    if isinstance(value, (Mapping, str)):
        return plan_target(value, context, key)()
    return to_tensor(value, context, key).to(context.device)


def _optimizer(
    loaded: LoadedConfig, targets: Targets, model: nn.Module, notices: list[str]
) -> Callable[[nn.Module], Optimizer] | None:
    """Return the configured optimizer; SGD if steps were requested without one; else none."""
    config = loaded.config
    if config.optimizer is not None:
        return optimizer_maker(config.optimizer, targets, model)
    asked = loaded.place("steps")
    # In a file `steps: 1` only spells out the default; as an option or override it asks for one.
    in_file = asked is None or asked.file.endswith((".yaml", ".yml"))
    if config.steps == 1 and in_file:
        return None
    if next(model.parameters(), None) is None:
        notices.append("optimizer: none, the model has no parameters")
        return None
    notices.append("optimizer: SGD, lr 0.01 (the default when there are steps)")
    return default_optimizer


def _effective(
    loaded: LoadedConfig,
    device: torch.device,
    dtype: torch.dtype,
    weights: str | None,
    make_optimizer: Callable[[nn.Module], Optimizer] | None,
) -> dict[str, Any]:
    """Return the config with resolved defaults, as plain JSON data."""
    values: dict[str, Any] = loaded.config.model_dump(mode="json")
    values["device"] = str(device)
    values["dtype"] = str(dtype).removeprefix("torch.")
    values["weights"] = weights
    if make_optimizer is default_optimizer:
        values["optimizer"] = {"_target_": "torch.optim.SGD", "lr": 0.01}
    return values


def in_float64(workload: Workload) -> Workload:
    """Return the same workload with copies of the model, and of a loss that is a module.

    Exceptions (a model that cannot be copied) are left to the caller.
    """
    criterion = copy.copy(workload.criterion)
    if isinstance(criterion.spec, nn.Module):
        criterion.spec = copy.deepcopy(criterion.spec).double()
    criterion.target = widened(criterion.target)

    def batches() -> Iterator[Batch]:
        for batch in workload.batches():
            yield Batch(*widened((batch.args, batch.kwargs, batch.target)))

    return replace(
        workload,
        model=copy.deepcopy(workload.model).double(),
        batches=batches,
        criterion=criterion,
        dtype=torch.float64,
        autocast=None,
        gradient=widened(workload.gradient),
        live=False,
    )


def widened(tree: Any) -> Any:
    """Return the same nesting with floating tensors in float64, complex ones in complex128."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        return tensor.detach().to(wide).requires_grad_(tensor.requires_grad)

    return replaced(tree, torch.Tensor, widen)
