"""Spreads a model over the processes of torchrun, and takes this process's part of each batch.

A style of tensor parallelism is an entry of ``_styles``, and of ``STYLES`` in config/parallel.py.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.nn.parameter import is_lazy

from gradscope.config.loaded_config import LoadedConfig
from gradscope.config.parallel import Fsdp
from gradscope.errors import ConfigError, OptionError, Place, first_line, message_of
from gradscope.loading.batches import Batch, MicroBatch, batch_size, cut
from gradscope.loading.devices import resolve_device
from gradscope.loading.surgery import module_names
from gradscope.patterns import Named, matching, without_wrappers, wraps

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


#: Time that a process waits for the others when a group is made, and in each collective.
_PATIENCE = timedelta(minutes=10)
#: Time that a failed process waits for another.
BRIEFLY = timedelta(seconds=3)
#: Seconds between two reads of the store.
_PAUSE = 0.02
#: A store takes no value of more than 8 MiB.
_PIECE = 4_000_000
#: Messages of gloo and NCCL on a process that has ended.
_LOST = re.compile(r"\bgloo\b|\bnccl\b|connection (closed|reset|refused)", re.IGNORECASE)
#: Each run has its own keys in the store.
_runs = itertools.count()
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(slots=True)
class Processes:
    """The processes of a run, and their shared store.

    The store belongs to the launcher, so a report can be read after its process has ended. Every
    wait has a time limit.
    """

    rank: int
    count: int
    device: torch.device
    _store: Any  # a torch.distributed.Store
    _group_store: Any
    _reported: bool = False

    def is_from_others(self, failure: BaseException) -> bool:
        """Return True if this process may have stopped because another one ended.

        If one process ends, the launcher ends all others, which looks like Ctrl-C. A process that
        waits in a collective gets an error about a closed connection.
        """
        if isinstance(failure, KeyboardInterrupt | distributed.DistError):
            return True
        return isinstance(failure, RuntimeError) and bool(_LOST.search(message_of(failure)))

    def fail(self) -> None:
        """Report that this process failed."""
        with contextlib.suppress(RuntimeError):
            if self._store.add("failures", 1) == 1:
                self._store.set("first", str(self.rank))

    def first_failed(self) -> int | None:
        """Return the rank of the process that failed first, if any reported it."""
        with contextlib.suppress(RuntimeError):
            if self._store.check(["failures"]) and self._is_there("first", BRIEFLY):
                return int(self._store.get("first"))
        return None

    def leave_report(self, text: str) -> None:
        """Store this process's report; an empty text means that there is none."""
        self._reported = True
        with contextlib.suppress(RuntimeError):
            self._put(f"report-{self.rank}", text)

    def report_of(self, rank: int, patience: timedelta | None = None) -> str | None:
        """Return the report of another process; None without one."""
        return self._get(f"report-{rank}", patience) or None

    def leave_reduced(self, text: str) -> None:
        """Store the combined report; an empty text means that there is none."""
        with contextlib.suppress(RuntimeError):
            self._put("reduced", text)

    def reduced(self, patience: timedelta | None = None) -> str | None:
        """Return the combined report, in the other processes."""
        return self._get("reduced", patience)

    def join(self) -> None:
        """Make torch's process group: gloo for CPUs, NCCL for GPUs.

        Raises:
            OptionError: the group cannot be made.
        """
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.set_device(self.device)
        try:
            distributed.init_process_group(
                "nccl" if cuda else "gloo",
                store=self._group_store,
                rank=self.rank,
                world_size=self.count,
                timeout=_PATIENCE,
                device_id=self.device if cuda else None,
            )
        except RuntimeError as error:
            raise OptionError(
                f"rank {self.rank} of {self.count} cannot join the others: {first_line(error)}",
                help="if another one ended, its output has the reason",
            ) from error

    def leave_group(self) -> None:
        """Release processes that wait for this one in a collective."""
        if not distributed.is_initialized():
            return
        with contextlib.suppress(RuntimeError):
            distributed.group.WORLD.abort()  # type: ignore[union-attr]

    def end(self) -> None:
        """End this process early: store an empty report, and leave the group."""
        if not self._reported:
            self.leave_report("")
        self.leave_group()

    def _put(self, key: str, text: str) -> None:
        data = zlib.compress(text.encode(), 1)
        pieces = [data[i : i + _PIECE] for i in range(0, len(data), _PIECE)]
        for number, piece in enumerate(pieces):
            self._store.set(f"{key}/{number}", piece)
        self._store.set(key, str(len(pieces)))

    def _is_there(self, key: str, patience: timedelta) -> bool:
        """Return True once the key is in the store, False after ``patience``.

        The store's own wait would write to standard error.
        """
        end = time.monotonic() + patience.total_seconds()
        while not self._store.check([key]):
            if time.monotonic() > end:
                return False
            time.sleep(_PAUSE)
        return True

    def _get(self, key: str, patience: timedelta | None) -> str | None:
        try:
            if not self._is_there(key, patience or _PATIENCE):
                return None
            count = int(self._store.get(key))
            data = b"".join(self._store.get(f"{key}/{number}") for number in range(count))
        except RuntimeError:  # the launcher is not there any more
            return None
        return zlib.decompress(data).decode()


@contextmanager
def processes_of(loaded: LoadedConfig) -> Iterator[Processes | None]:
    """Yield the processes of a config's model; None if its ``parallel`` is null.

    Raises:
        ConfigError: this is the only process, or their number does not match the mesh.
        OptionError: they cannot share the device.
    """
    if loaded.config.parallel is None:
        yield None
        return
    model = None if loaded.origins.file is None else loaded.file  # or else a spec
    rank, local, world = _launched(model or loaded.name, loaded.place("parallel"))
    axes_of(loaded, world)
    wanted = resolve_device(loaded.config.device, loaded.place("device"))
    device = _device(wanted, local, loaded.place("device"))
    with _sharing_store(rank, world, device) as processes:
        yield processes


def axes_of(loaded: LoadedConfig, count: int) -> dict[str, int]:
    """Return the mesh's dimensions for that many processes, with the number along each.

    Raises:
        ConfigError: the mesh has another size.
    """
    parallel = loaded.config.parallel
    assert parallel is not None
    mesh: Mapping[str, int] = {str(axis): length for axis, length in parallel.mesh.items()}
    wanted = {"dp": (parallel.ddp or parallel.fsdp) is not None, "tp": bool(parallel.tp)}
    axes = {axis: mesh.get(axis, count) for axis, there in wanted.items() if there}
    size = math.prod(axes.values())
    if size != count:
        shape = " x ".join(f"{axis} {length}" for axis, length in axes.items())
        raise ConfigError(
            f"the mesh {shape} needs {size} processes, and there are {count}",
            place=loaded.place("parallel.mesh"),
            help=f"start {size}: `torchrun --nproc-per-node {size} …`, or write another `mesh`",
        )
    return axes


def _launched(config: str, place: Place | None) -> tuple[int, int, int]:
    """Return the rank, the local rank and the number of processes, from the launcher.

    Raises:
        ConfigError: there is no launcher.
    """
    missing = [name for name in _ENVIRONMENT if not os.environ.get(name)]
    if missing or not distributed.is_available():
        raise ConfigError(
            "`parallel` needs several processes, and there is only one",
            place=place,
            help=f"start it as `torchrun --nproc-per-node 2 -m gradscope inspect {config}`",
        )
    rank, world, local = (int(os.environ[name]) for name in _ENVIRONMENT[:3])
    return rank, local, world


def _device(device: torch.device, local_rank: int, place: Place | None) -> torch.device:
    """Return this process's GPU, if the config asks for GPUs.

    Raises:
        OptionError: the GPU does not exist, or all processes would share it.
    """
    if device.type == "cpu":
        return device
    if device.type != "cuda" or device.index is not None:
        raise OptionError(
            f"processes cannot share `{device}`", place=place, help="take `cuda`, or `cpu`"
        )
    there = torch.cuda.device_count()
    if local_rank >= there:
        raise OptionError(
            f"there is no GPU for process {local_rank + 1} of this machine: it has {there}",
            place=place,
            help=f"start {there} with `--nproc-per-node {there}`, or take `device: cpu`",
        )
    return torch.device("cuda", local_rank)


@contextmanager
def _sharing_store(rank: int, world: int, device: torch.device) -> Iterator[Processes]:
    """Yield the processes with the launcher's store; afterwards no group is left.

    Raises:
        OptionError: the caller has a group already.
    """
    if distributed.is_initialized():
        raise OptionError(
            "`parallel` makes its own process group, but one exists already",
            help="call it before `init_process_group`, or inspect without `parallel`",
        )
    # A build of torch without `distributed` has only the empty package.
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(rendezvous("env://", rank, world, timeout=_PATIENCE))
    store = PrefixStore(f"gradscope/{next(_runs)}", store)
    processes = Processes(
        rank, world, device, PrefixStore("records", store), PrefixStore("group", store)
    )
    _survive_sigterm(processes)
    try:
        yield processes
    except BaseException:
        processes.end()
        raise
    finally:
        if distributed.is_initialized():
            with contextlib.suppress(RuntimeError):  # the others may be gone
                distributed.destroy_process_group()


def _survive_sigterm(processes: Processes) -> None:
    """Survive the launcher's SIGTERM after another process failed, to print the rest.

    The launcher sends SIGTERM when a process fails, which would end the command as Ctrl-C does, and
    waits half a minute. The command ends afterwards, so nothing is restored.
    """
    ends = signal.getsignal(signal.SIGTERM)
    of_command_line = callable(ends) and hasattr(ends, "of_command_line")
    if not of_command_line or threading.current_thread() is not threading.main_thread():
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if processes.first_failed() is None and callable(ends):
            ends(number, frame)

    signal.signal(signal.SIGTERM, stop)


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
    innermost."""
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
