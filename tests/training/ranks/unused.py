"""The batches of rank 1 skip a layer in step 2; with `mended`, DDP looks for what was not used."""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Linear(8, 8)
        self.gate = nn.Linear(8, 8)

    def forward(self, x, gated):
        x = self.plain(x)
        if gated:
            x = torch.sigmoid(self.gate(x)) * x
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(8, 1)

    def forward(self, x, gated):
        return self.head(self.block(x, gated))


torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(Net(), find_unused_parameters="mended" in sys.argv)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 5):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
    optimizer.zero_grad()
    model(x, gated=not (step == 2 and rank == 1)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
