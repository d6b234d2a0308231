"""Trains networks in double precision under every kind of parallelism, one after the other.

Each rank leaves `truth-RANK.json`: for each step what `full_tensor()` and one process on the whole
batch say of every parameter, the collectives that ran, and a digest of the weights. The last step's
loss is NaN on the last rank alone, which with `--kill` then is killed.
"""

from __future__ import annotations

import argparse
import copy
import gc
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

# Beside this script, which `torchrun` starts by its path.
from networks import batch, loss_of, made, units
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

STEPS, RATE, CLIP = 2, 0.1, 0.5
#: Of 4, "moe fsdp" stands for that of 2 as well: there a rank's shard of the gate is empty.
CASES = {
    2: (
        *("resnet ddp", "resnet fsdp", "gpt ddp accumulate", "gpt fsdp accumulate"),
        *("gpt fsdp keep mixed", "gpt tp", "moe ddp", "root fsdp nan"),
    ),
    4: ("gpt fsdp tp", "gpt hsdp", "moe fsdp", "root fsdp nan"),
}
_EVERY = ("ddp", "fsdp", "fsdp keep")
_SPLIT = (*_EVERY, "fsdp mixed", "tp")
_WAYS = {
    2: {"resnet": _EVERY, "gpt": _SPLIT, "moe": _SPLIT},
    4: {
        "resnet": (*_EVERY, "hsdp"),
        "gpt": (*_SPLIT, "hsdp", "fsdp tp"),
        "moe": (*_SPLIT, "hsdp", "fsdp tp"),
    },
}
LARGE_CASES = {
    world: tuple(f"{kind} {how}" for kind, several in kinds.items() for how in several)
    for world, kinds in _WAYS.items()
}
#: In tensor parallelism.
COLUMNS, ROWS = ("up", "query", "key", "value"), ("down", "project")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument(
        "--large", action="store_true", help="networks of the size that people have"
    )
    parser.add_argument("--only", default="", help="cases that begin so")
    parser.add_argument("--dtype", default="float64")
    return parser.parse_args()


OPTIONS = options()
DTYPE = getattr(torch, OPTIONS.dtype)


def parallel(net: nn.Module, how: list[str], world: int) -> tuple[nn.Module, int, int]:
    """The network as the script trains it, how many parts a batch has, and which is this rank's."""
    rank = dist.get_rank()
    if "accumulate" in how and "fsdp" in how:
        net.blocks[0] = checkpoint_wrapper(net.blocks[0])
    if "ddp" in how:
        views = OPTIONS.large  # half the memory
        return (
            nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=views),
            world,
            rank,
        )
    if how == ["tp"]:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        return tensor_parallel(net, mesh), 1, 0
    sharding = {"reshard_after_forward": "keep" not in how}
    if "mixed" in how:
        sharding["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if how == ["fsdp", "tp"]:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        tensor_parallel(net, mesh["tp"])
        sharding["mesh"], parts, own = mesh["dp"], 2, mesh["dp"].get_local_rank()
    elif how == ["hsdp"]:
        sharding["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
        parts, own = world, rank
    else:
        sharding["mesh"] = init_device_mesh("cpu", (world,))
        parts, own = world, rank
    for unit in units(net):
        fully_shard(unit, **sharding)
    return fully_shard(net, **sharding), parts, own


def tensor_parallel(net: nn.Module, mesh: object) -> nn.Module:
    for module in [*net.modules()]:
        names = {name for name, _ in module.named_children()}
        columns = {name: ColwiseParallel() for name in COLUMNS if name in names}
        rows = {name: RowwiseParallel() for name in ROWS if name in names}
        if columns:
            parallelize_module(module, mesh, columns | rows)
    return net


class Collectives(TorchDispatchMode):
    """Counts what goes from one process to another."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        if "c10d" in func.namespace and "wait_tensor" not in func.name():
            self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))


def full(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def share_of(total: float) -> float:
    """Return the factor that `clip_grad_norm_` multiplies gradients with."""
    return min(1.0, CLIP / (total + 1e-6))


def norm_of(tensor: torch.Tensor) -> float:
    return full(tensor).double().norm().item()


def norms(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: norm_of(tensor) for name, tensor in tensors.items()}


def total_of(gradients: dict[str, float]) -> float:
    return sum(norm**2 for norm in gradients.values()) ** 0.5


def named(net: nn.Module) -> dict[str, nn.Parameter]:
    def plain(name: str) -> str:
        return name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")

    return {plain(name): parameter for name, parameter in net.named_parameters()}


def gradients_alone(
    net: nn.Module, parts: list[tuple[torch.Tensor, torch.Tensor]], how: list[str]
) -> tuple[float, list[torch.Tensor]]:
    """The loss and the gradients of one process that is given the parts one after the other.

    Where precision is mixed by the same policy: weights and inputs of each part in bfloat16, their
    gradients added up in float32.
    """
    losses, sums = [], [torch.zeros_like(p) for p in net.parameters()]
    with torch.no_grad():
        low = copy.deepcopy(net).bfloat16() if "mixed" in how else net
    sums = [one.float() for one in sums] if "mixed" in how else sums
    for x, y in parts:
        loss = loss_of(low, x, y)
        # Not `backward`, which would be a step of the script.
        for one, gradient in zip(sums, torch.autograd.grad(loss, [*low.parameters()]), strict=True):
            one += gradient.to(one.dtype) / len(parts)
        losses.append(loss.item() / len(parts))
    return sum(losses), [s.to(p.dtype) for s, p in zip(sums, net.parameters(), strict=True)]


def alone(net: nn.Module, kind: str, how: list[str], parts: int) -> list[dict[str, object]]:
    """Return the figures of one process."""
    found = []
    for step in range(STEPS):
        x, y = drawn(kind, step, how)
        loss, each = gradients_alone(net, [*zip(x.chunk(parts), y.chunk(parts), strict=True)], how)
        gradients = dict(zip(named(net), each, strict=True))
        arrived, values = norms(gradients), norms(named(net))
        total, moved = total_of(arrived), {}
        with torch.no_grad():
            for name, p in named(net).items():
                before = p.clone()
                p -= RATE * share_of(total) * gradients[name]
                moved[name] = norm_of(p - before)
        found.append(
            {"loss": loss, "gradients": arrived, "total": total, "values": values, "moved": moved}
        )
    return found


def drawn(kind: str, step: int, how: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch(kind, step, DTYPE, large=OPTIONS.large)
    if "nan" in how and step == STEPS - 1:
        x[-1, 0] = -1.0
    return x, y


def copy_all_weights() -> None:
    """Of large networks gradscope copies a few weights at each look: here each has its ratio."""
    memory = sys.modules.get("gradscope.training.memory")
    if memory is not None:
        memory._SHARE = 1.0


def observed(net: nn.Module, kind: str, how: list[str]) -> dict[str, object]:
    world = dist.get_world_size()
    micro = 2 if "accumulate" in how else 1
    net, parts, own = parallel(net, how, world)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    steps = []
    for step in range(STEPS):
        x, y = (t.chunk(parts * micro)[own::parts] for t in drawn(kind, step, how))
        optimizer.zero_grad()
        for number in range(micro):
            last = number == micro - 1
            waiting = net.no_sync() if "ddp" in how and not last else nullcontext()
            if "fsdp" in how and micro > 1:
                net.set_requires_gradient_sync(last)
            with waiting:
                (loss_of(net, x[number], y[number]) / micro).backward()
        arrived = norms({name: p.grad for name, p in named(net).items() if p.grad is not None})
        total = total_of(arrived)
        if "tp" in how:  # PyTorch's own takes no parameters of several meshes
            with torch.no_grad():
                for p in net.parameters():
                    p.grad.mul_(share_of(total))
        else:
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        values = norms(named(net))
        before = {name: p.detach().clone() for name, p in named(net).items()}
        optimizer.step()
        moved = {name: norm_of(p.detach() - before.pop(name)) for name, p in named(net).items()}
        steps.append({"gradients": arrived, "total": total, "values": values, "moved": moved})
    digest = hashlib.sha256()
    for parameter in named(net).values():
        digest.update(full(parameter).numpy().data)
    return {"steps": steps, "weights": digest.hexdigest()}


def wait_until_written() -> None:
    """Let gradscope's thread write what is recorded: on a loaded machine it takes seconds."""
    writer = sys.modules.get("gradscope.runfile.writer")
    for one in list(writer._writers) if writer else ():
        one.flush()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    copy_all_weights()
    truth = []
    for case in (LARGE_CASES if OPTIONS.large else CASES)[world]:
        if not case.startswith(OPTIONS.only):
            continue
        kind, *how = case.split()
        net = made(kind, large=OPTIONS.large).to(DTYPE)
        parts = {"tp": 1, "fsdp tp": 2}.get(" ".join(how), world)
        parts *= 2 if "accumulate" in how else 1
        # In one process alone: all find the same, and of large ones there is no memory for all.
        one = [] if rank else alone(copy.deepcopy(net), kind, how, parts)
        gc.collect()  # what is left of it is no model that trains
        dist.barrier()
        with Collectives() as collectives:
            entry = observed(net, kind, how)
        truth.append({"case": case, "alone": one, "collectives": collectives.counts, **entry})
        del net
        gc.collect()
    Path(f"truth-{rank}.json").write_text(json.dumps(truth), encoding="utf-8")
    if OPTIONS.kill:
        wait_until_written()
    dist.barrier()
    if OPTIONS.kill:
        if rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    dist.destroy_process_group()


main()
