"""Warnings of PyTorch at lines of the script, by default, always, or recorded."""

import os
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn

if "--always" in sys.argv:
    warnings.simplefilter("always")
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = self.body(x)
        # "Implicit dimension choice"; the head gets no gradient, so that a step is traced.
        return F.log_softmax(x) + self.head(x).detach()


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(14):
    optimizer.zero_grad()
    with warnings.catch_warnings(record="--recorded" in sys.argv) as recorded:
        out = net(torch.randn(8, 4))
        loss = F.mse_loss(out, torch.randn(8, 1))  # "different to the input size"
        loss = loss + F.kl_div(out, torch.rand(8, 3))  # "divides the total loss"
        loss = loss + F.kl_div(out, torch.rand(8, 3))
    for one in recorded or ():
        print(step, os.path.basename(one.filename), one.lineno, str(one.message)[:30])
    loss.backward()
    optimizer.step()
    torch.arange(6.0).reshape(1, 2, 3).T
    print(step, loss.item())
if "SAVE_WEIGHTS" in os.environ:
    torch.save(net.state_dict(), os.environ["SAVE_WEIGHTS"])
