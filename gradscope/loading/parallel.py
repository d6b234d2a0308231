"""Spreads a model over processes by torch's own means, and takes this process's part of each batch.

A style of tensor parallelism is an entry of ``_styles``, and of ``STYLES`` in config/parallel.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradscope.config.parallel import Fsdp
from gradscope.config.reading import LoadedConfig
from gradscope.errors import ConfigError, Place
from gradscope.loading.batches import Batch, MicroBatch, batch_size, cut
from gradscope.loading.process_group import Processes, axes_of
from gradscope.loading.surgery import module_names
from gradscope.patterns import Named, matching, without_wrappers, wraps

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """Parallelism of a workload's model.

    Attributes:
        processes: the processes of the run.
        kind: ddp, fsdp, tp, or "fsdp x tp".
        axes: the names of the mesh's dimensions, with the number of processes along each.
        part, parts: this process's part of each batch, and the number of parts.
        outer: the module that a step calls: the model, or its wrappers.
    """

    processes: Processes
    kind: str
    axes: dict[str, int]
    part: int
    parts: int
    outer: nn.Module

    @property
    def notices(self) -> list[str]:
        """Notices for the reader of the tables."""
        if self.parts == 1:
            return []
        return [
            f"batch: cut into {self.parts} parts, one for each process that shares the data; the "
            "loss and the gradients are means over these processes"
        ]

    def share(self, batch: Batch, target: Any) -> tuple[Batch, MicroBatch | None]:
        """Return this process's part of a batch; its target is the run's if it has none.

        Raises:
            ConfigError: the batch cannot be split into equal parts.
        """
        if self.parts == 1:
            return batch, None
        size = batch_size(batch)
        if size % self.parts or not size:
            more = max(1, round(size / self.parts)) * self.parts
            raise ConfigError(
                f"a batch of {size} cannot be cut into {self.parts} equal parts: samples would "
                "have other weights than in one process",
                help=f"give a batch of {more}: `input.batch={more}`, or more in `input.shape`",
            )
        if batch.target is None:
            batch = replace(batch, target=target)
        part, own = list(cut(batch, self.parts))[self.part]
        return own, part

    def take_sums(self) -> None:
        """Replace partial gradients by their sums over processes, as FSDP does.

        That is one more collective, in all processes alike. In training, PyTorch takes this sum
        when the gradient is first read.
        """
        for parameter in self.outer.parameters():
            gradient: Any = parameter.grad
            if any(one.is_partial() for one in getattr(gradient, "placements", ())):
                placements = parameter.placements  # type: ignore[attr-defined]
                parameter.grad = gradient.redistribute(placements=placements)


def parallelized(model: nn.Module, loaded: LoadedConfig, processes: Processes) -> ParallelModel:
    """Spread a model, which is the same in all processes, in place.

    Raises:
        ConfigError: nothing of the model can be spread, or not in this way.
        LayerError: a pattern that matches nothing.
    """
    from torch.distributed.device_mesh import init_device_mesh

    parallel, place = loaded.config.parallel, loaded.place
    assert parallel is not None
    parameters = list(model.parameters())
    if not any(p.requires_grad for p in parameters):
        raise ConfigError(
            "there is nothing to spread: no parameter requires a gradient", place=place("parallel")
        )
    if any(map(is_lazy, parameters)):
        raise ConfigError(
            "parameters of lazy modules have no shape yet, and cannot be spread",
            place=place("parallel"),
            help="give the modules their sizes",
        )
    # Mistakes that every process has are reported before one waits for another.
    axes = axes_of(loaded, processes.count)
    units = [] if parallel.fsdp is None else _units(model, parallel.fsdp, loaded)
    split = _split_layers(model, parallel.tp, loaded)
    processes.join()
    mesh = init_device_mesh(processes.device.type, tuple(axes.values()), mesh_dim_names=tuple(axes))
    kinds = {"ddp": parallel.ddp, "fsdp": parallel.fsdp, "tp": parallel.tp or None}
    for module, style in split:
        _styles()[style][1](module, mesh["tp"])
    outer = model
    if parallel.fsdp is not None:
        _shard(units, parallel.fsdp, mesh["dp"])
    elif parallel.ddp is not None:
        outer = nn.parallel.DistributedDataParallel(model, **parallel.ddp.model_dump())
    part = mesh["dp"].get_local_rank() if "dp" in axes else 0
    kind = " x ".join(name for name, wanted in kinds.items() if wanted is not None)
    return ParallelModel(processes, kind, axes, part, axes.get("dp", 1), outer)


def _units(model: nn.Module, wanted: Fsdp, loaded: LoadedConfig) -> list[nn.Module]:
    """Return the modules to shard as units, innermost first; a parameter belongs to the
    innermost.
    """
    key = "parallel.fsdp.units"
    modules, found = _modules(model), list[Named]()
    if wanted.units:
        found = matching(wanted.units, module_names(model), key=key, place=loaded.place)
    units = []
    for one in sorted(found, key=lambda one: one.name.count("."), reverse=True):
        unit = modules[one.name]
        if unit is not model and any(True for _ in unit.parameters()):
            _require_own(unit, one.name, model, loaded.place(key))
            units.append(unit)
    return [*units, model]


def _shard(units: Sequence[nn.Module], wanted: Fsdp, mesh: DeviceMesh) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(
        param_dtype=_dtype(wanted.param_dtype), reduce_dtype=_dtype(wanted.reduce_dtype)
    )
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    if wanted.reshard_after_forward is not None:
        options["reshard_after_forward"] = wanted.reshard_after_forward
    for unit in units:
        fully_shard(unit, **options)


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules by the names that patterns match."""
    return {
        without_wrappers(name): module
        for name, module in model.named_modules()
        if not wraps(module._modules)
    }


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)


def _split_layers(
    model: nn.Module, wanted: Mapping[str, str], loaded: LoadedConfig
) -> list[tuple[nn.Module, str]]:
    """Return the modules that patterns match, each with its style; of several matches the last
    wins."""
    modules, named = _modules(model), module_names(model)
    of: dict[str, tuple[str, str]] = {}
    for pattern, style in wanted.items():
        key = f"parallel.tp.{pattern}"
        for one in matching([pattern], named, key=key, place=loaded.place):
            of[one.name] = style, key
    for name, (style, key) in of.items():
        module, place, fitting = modules[name], loaded.place(key), _styles()[style][0]
        if not isinstance(module, fitting):
            known = ", ".join(kind.__name__ for kind in fitting)
            raise ConfigError(
                f"`{name}` is a {type(module).__name__}, which cannot be {style}",
                place=place,
                help=f"{style} is for {known}: name such layers",
            )
        _require_own(module, name, model, place)
    return [(modules[name], style) for name, (style, _) in of.items()]


def _require_own(unit: nn.Module, name: str, model: nn.Module, place: Place | None) -> None:
    """Refuse to shard a module with shared weights: sharding would separate them.

    Raises:
        ConfigError: a module outside has one of its parameters too.
    """
    own = {id(p): f"{name}.{n}" for n, p in unit.named_parameters()}
    inside = set(unit.modules())
    for outside_name, module in model.named_modules():
        if module in inside:
            continue
        for key, parameter in module.named_parameters(recurse=False):
            if id(parameter) in own:
                raise ConfigError(
                    f"`{own[id(parameter)]}` is also `{f'{outside_name}.{key}'.lstrip('.')}`: "
                    "spreading it would separate the two",
                    place=place,
                    help="leave layers with shared weights out",
                )


def _styles() -> dict[str, tuple[tuple[type[nn.Module], ...], Any]]:
    """Return styles by name: the modules that can be split so, and the style's maker."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def colwise(module: nn.Module, mesh: DeviceMesh) -> None:
        parallelize_module(module, mesh, ColwiseParallel())

    def colwise_gather(module: nn.Module, mesh: DeviceMesh) -> None:
        parallelize_module(module, mesh, ColwiseParallel(output_layouts=Replicate()))

    def rowwise(module: nn.Module, mesh: DeviceMesh) -> None:
        # The ids that an embedding is given are the same in all processes.
        given = Replicate() if isinstance(module, nn.Embedding) else Shard(-1)
        parallelize_module(module, mesh, RowwiseParallel(input_layouts=given))

    def sequence(module: nn.Module, mesh: DeviceMesh) -> None:
        # A full batch comes in and is cut here; a full one goes out.
        steps: list[ParallelStyle] = [
            PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
            SequenceParallel(sequence_dim=1),
            PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate()),
        ]
        for step in steps:
            parallelize_module(module, mesh, step)

    matrices = (nn.Linear, nn.Embedding)
    return {
        "colwise": (matrices, colwise),
        "colwise_gather": (matrices, colwise_gather),
        "rowwise": (matrices, rowwise),
        "sequence": ((nn.LayerNorm, nn.RMSNorm), sequence),
    }
