"""Models over meshes of two processes: what must not be compared, and replicas that must be equal.

With the argument `mended` nothing is changed on one rank alone, and each rank has data of its own.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

MENDED = "mended" in sys.argv
dist.init_process_group("gloo")
RANK = dist.get_rank()
models = []


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def batch(step, rank=RANK):
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def train(model, draw=batch, before=lambda step: None):
    models.append(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 5):
        before(step)
        optimizer.zero_grad()
        x = draw(step)
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


# Steps 1 to 4: each rank has its own half of each parameter.
sharded = net()
fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
train(sharded)

# Steps 5 to 8: halves of two layers, a norm that both have, and the same data for both.
split = parallelize_module(
    net(),
    init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)),
    {"1": ColwiseParallel(), "3": RowwiseParallel()},
)
train(split, lambda step: batch(step, rank=0))

# Steps 9 to 12: replicas of shards, on a mesh of two dimensions. Rank 1 changes its own, and both
# ranks get the data of the first.
replicas = net()
fully_shard(replicas, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))


def change(step):
    if step == 3 and (MENDED or RANK == 1):
        with torch.no_grad():
            replicas[3].bias.to_local().add_(1.0)


train(replicas, batch if MENDED else lambda step: batch(step, rank=0), change)
dist.destroy_process_group()
