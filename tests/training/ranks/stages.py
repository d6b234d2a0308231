"""A network in two pipeline stages, whose layers have the same names in both, by either schedule.

Each schedule makes two steps. Rank 0 leaves what one process finds on the full batch in
`alone.json`, and each rank its weights in `weights-RANK.pt`.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

MICRO, CLIP = 4, 0.05
dist.init_process_group("gloo")
RANK = dist.get_rank()


def half(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).double()


def batch(step):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=draw, dtype=torch.float64)


def alone(step, halves):
    """The norms of the gradients at one process, and their total as they are clipped."""
    x = batch(step)
    net = nn.Sequential(*halves)
    gradients = torch.autograd.grad((net(x) - x).square().mean(), [*net.parameters()])
    norms = dict(zip([name for name, _ in net.named_parameters()], gradients, strict=True))
    total = sum(g.square().sum() for g in gradients).sqrt()
    share = (CLIP / (total + 1e-6)).clamp(max=1.0)
    with torch.no_grad():
        for p, gradient in zip(net.parameters(), gradients, strict=True):
            p -= 0.1 * share * gradient
    return {
        "total": total.item(),
        "norms": {f"stage{name}": g.norm().item() for name, g in norms.items()},
    }


found = []
weights = []
for kind in (ScheduleGPipe, Schedule1F1B):
    whole = [half(0), half(1)]
    layers = half(RANK)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    stage = PipelineStage(layers, RANK, 2, torch.device("cpu"))
    schedule = kind(stage, MICRO, loss_fn=lambda out, x: (out - x).square().mean())
    for step in (1, 2):
        x = batch(step)
        optimizer.zero_grad()
        if RANK == 0:
            schedule.step(x)
        else:
            schedule.step(target=x)
        total = sum(p.grad.square().sum() for p in layers.parameters())
        dist.all_reduce(total)
        for p in layers.parameters():
            p.grad.mul_((CLIP / (total.sqrt() + 1e-6)).clamp(max=1.0))
        optimizer.step()
        found.append(alone(step, whole))
    weights += [p.detach() for p in layers.parameters()]
    del optimizer, stage, schedule, layers, whole
torch.save(weights, f"weights-{RANK}.pt")
if RANK == 0:
    Path("alone.json").write_text(json.dumps(found), encoding="utf-8")
dist.destroy_process_group()
