"""Trains small networks in double precision under every kind of parallelism, one after the other.

Each rank leaves `truth-RANK.json`: for each step what `full_tensor()` and one process on the whole
batch say of every parameter, the collectives that ran, and a digest of the weights. The last step's
loss is NaN on the last rank alone, which then is killed.
"""

from __future__ import annotations

import copy
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
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

STEPS, BATCH, RATE, CLIP = 2, 8, 0.1, 0.5
CASES = {
    2: (
        *("resnet ddp", "resnet fsdp", "gpt ddp accumulate", "gpt fsdp keep"),
        *("gpt fsdp accumulate", "gpt fsdp mixed", "gpt tp", "moe ddp", "moe fsdp"),
        "root fsdp nan",
    ),
    4: ("gpt fsdp tp", "gpt hsdp", "moe fsdp", "root fsdp nan"),
}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = (self.mix(x) @ x.transpose(-1, -2)).softmax(-1)
        x = x + weights @ x
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Experts(nn.Module):
    """Each token goes to one expert, by what it is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 3)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            here = chosen == number
            out[here] = expert(x[here]) * shares[here].unsqueeze(-1)
        return x + out


class Root(nn.Module):
    """NaN where an entry is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(7, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.sqrt())


def made(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "resnet":
        layers = [nn.Conv2d(3, 4, 3), Residual(), Residual(), nn.Flatten(), nn.Linear(64, 5)]
        return nn.Sequential(*layers).double()
    if kind == "root":
        return Root().double()
    block = Attention if kind == "gpt" else Experts
    return nn.Sequential(nn.Linear(7, 6), block(6), block(6), nn.Linear(6, 5)).double()


def batch(kind: str, step: int, how: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(100 + step)
    shape = {"resnet": (BATCH, 3, 6, 6), "root": (BATCH, 7)}.get(kind, (BATCH, 4, 7))
    x = torch.randn(shape, generator=draw, dtype=torch.float64)
    x = x.abs() if kind == "root" else x
    if "nan" in how and step == STEPS - 1:
        x[-1, 0] = -1.0
    width = (BATCH, 5) if len(shape) != 3 else (*shape[:2], 5)
    return x, torch.randn(width, generator=draw, dtype=torch.float64)


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (net(x).double() - y).square().mean()


def parallel(net: nn.Module, how: list[str], world: int) -> tuple[nn.Module, int, int]:
    """The network as the script trains it, how many parts a batch has, and which is this rank's."""
    rank = dist.get_rank()
    if "ddp" in how:
        return nn.parallel.DistributedDataParallel(net), world, rank
    if how == ["tp"]:
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        return tensor_parallel(net, mesh), 1, 0
    if "accumulate" in how:
        net[1] = checkpoint_wrapper(net[1])
    options = {"reshard_after_forward": "keep" not in how}
    if "mixed" in how:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if how == ["fsdp", "tp"]:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        tensor_parallel(net, mesh["tp"])
        options["mesh"], parts, own = mesh["dp"], 2, mesh["dp"].get_local_rank()
    elif how == ["hsdp"]:
        options["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
        parts, own = world, rank
    else:
        options["mesh"] = init_device_mesh("cpu", (world,))
        parts, own = world, rank
    if isinstance(net, nn.Sequential):
        fully_shard(net[1], **options)
    return fully_shard(net, **options), parts, own


def tensor_parallel(net: nn.Module, mesh: object) -> nn.Module:
    for block in (net[1], net[2]):
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
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
    """What `clip_grad_norm_` multiplies gradients with."""
    return min(1.0, CLIP / (total + 1e-6))


def norms(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: full(tensor).double().norm().item() for name, tensor in tensors.items()}


def named(net: nn.Module) -> dict[str, nn.Parameter]:
    def plain(name: str) -> str:
        return name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")

    return {plain(name): parameter for name, parameter in net.named_parameters()}


def alone(net: nn.Module, kind: str, how: list[str], parts: int) -> list[dict[str, object]]:
    """What one process finds that is given the parts of the batch one after the other."""
    found = []
    for step in range(STEPS):
        x, y = batch(kind, step, how)
        losses = [loss_of(net, *part) for part in zip(x.chunk(parts), y.chunk(parts), strict=True)]
        loss = torch.stack(losses).mean()
        # Not `backward`, which would be a step of the script.
        gradients = dict(
            zip(named(net), torch.autograd.grad(loss, [*named(net).values()]), strict=True)
        )
        entry = {"loss": loss.item(), "gradients": norms(gradients)}
        total = sum(norm**2 for norm in entry["gradients"].values()) ** 0.5
        before = {name: p.detach().clone() for name, p in named(net).items()}
        with torch.no_grad():
            for name, p in named(net).items():
                p -= RATE * share_of(total) * gradients[name]
        moved = {name: p - before[name] for name, p in named(net).items()}
        found.append({**entry, "total": total, "values": norms(before), "moved": norms(moved)})
    return found


def observed(net: nn.Module, kind: str, how: list[str]) -> dict[str, object]:
    world = dist.get_world_size()
    micro = 2 if "accumulate" in how else 1
    net, parts, own = parallel(net, how, world)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    steps = []
    for step in range(STEPS):
        x, y = (t.chunk(parts * micro)[own::parts] for t in batch(kind, step, how))
        optimizer.zero_grad()
        for number in range(micro):
            last = number == micro - 1
            waiting = net.no_sync() if "ddp" in how and not last else nullcontext()
            if "fsdp" in how and micro > 1:
                net.set_requires_gradient_sync(last)
            with waiting:
                (loss_of(net, x[number], y[number]) / micro).backward()
        arrived = norms({name: p.grad for name, p in named(net).items() if p.grad is not None})
        total = sum(norm**2 for norm in arrived.values()) ** 0.5
        if "tp" in how:  # PyTorch's own takes no parameters of several meshes
            with torch.no_grad():
                for p in net.parameters():
                    p.grad.mul_(share_of(total))
        else:
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        before = {name: full(p).clone() for name, p in named(net).items()}
        optimizer.step()
        moved = {name: full(p) - before[name] for name, p in named(net).items()}
        steps.append(
            {
                "gradients": arrived,
                "total": total,
                "values": norms(before),
                "moved": norms(moved),
            }
        )
    digest = hashlib.sha256()
    for parameter in named(net).values():
        digest.update(full(parameter).numpy().tobytes())
    return {"steps": steps, "weights": digest.hexdigest()}


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    truth = []
    for case in CASES[world]:
        kind, *how = case.split()
        net = made(kind)
        parts = {"tp": 1, "fsdp tp": 2}.get(" ".join(how), world)
        parts *= 2 if "accumulate" in how else 1
        one = alone(copy.deepcopy(net), kind, how, parts)
        with Collectives() as collectives:
            entry = observed(net, kind, how)
        truth.append({"case": case, "alone": one, "collectives": collectives.counts, **entry})
        del net
    Path(f"truth-{rank}.json").write_text(json.dumps(truth), encoding="utf-8")
    dist.barrier()
    if rank == world - 1 and "--kill" in sys.argv:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    if "--kill" in sys.argv:
        time.sleep(60)
    dist.destroy_process_group()


main()
