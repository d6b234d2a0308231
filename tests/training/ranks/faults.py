"""Trainings under DistributedDataParallel, each with a fault; with the argument `mended` without.

Each has its own model, by whose name in ``models`` a run knows it, and makes four steps; the
last makes two more.
"""

import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MENDED = "mended" in sys.argv
warnings.simplefilter("ignore", FutureWarning)  # `broadcast_buffers` has another name since 2.14
dist.init_process_group("gloo")
RANK = dist.get_rank()
models = {}


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def batch(step, rank=RANK, size=8):
    return torch.randn(size, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def train(name, model, draw=batch, steps=4, before=lambda step: None, backward=None):
    models[name] = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        before(step)
        optimizer.zero_grad()
        if backward is not None:
            backward(model, step)
        else:
            x = draw(step)
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


# Steps 1 to 4: no wrapper, and a seed for each rank. Mended: the wrapper sends rank 0's weights.
alone = net(RANK)
train("alone", DistributedDataParallel(alone) if MENDED else alone)


# Steps 5 to 8: rank 1 changes its last layer before the third. Mended: all ranks do.
def change(step):
    if step == 3 and (MENDED or RANK == 1):
        with torch.no_grad():
            models["changed"].module[3].bias.add_(1.0)


train("changed", DistributedDataParallel(net(0)), before=change)


# Steps 9 to 12: two batches a step, from the second step on both within `no_sync`.
def accumulate(model, step):
    with model.no_sync():
        model(batch(step)).square().mean().backward()
        if step > 1 and not MENDED:
            model(batch(step + 50)).square().mean().backward()
    if step == 1 or MENDED:
        model(batch(step + 50)).square().mean().backward()


train("local", DistributedDataParallel(net(1)), backward=accumulate)

# Steps 13 to 16: each rank its own running statistics. Mended: rank 0's, before each forward.
train("statistics", DistributedDataParallel(net(2), broadcast_buffers=MENDED))

# Steps 17 to 20: the same batches on both ranks.
same = (lambda step: batch(step)) if MENDED else (lambda step: batch(step, rank=0))
train("sampler", DistributedDataParallel(net(3)), same)


# Steps 21 to 26: in the last one rank 1 has three samples, which are all that were left.
def last(step):
    return batch(step, size=3 if step == 6 and RANK == 1 and not MENDED else 8)


train("last", DistributedDataParallel(net(4)), last, steps=6)
dist.destroy_process_group()
