"""Converts its model between any two parts of a step, by swapping the content of its tensors.

``torch.utils.swap_tensors`` refuses a tensor that has a weak reference or is part of a graph.
"""

import gc
import os
import weakref
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import swap_tensors

torch.manual_seed(0)
torch.__future__.set_swap_module_params_on_conversion(True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4)

    def forward(self, x, words):
        return self.frozen(self.last(F.relu(self.norm(self.first(x + self.embed(words))))))


def optimizers():
    trained = [p for p in net.parameters() if p.requires_grad and p is not net.last.bias]
    slow = torch.optim.SGD([net.last.bias, scale], lr=0.01)
    return torch.optim.AdamW(trained, lr=0.01), slow


def convert(where):
    held = [*net.parameters(), *net.buffers(), *(p.grad for p in net.parameters())]
    # Parameters of an optimizer that is gone are known by a weak reference.
    counts = Counter(weakref.getweakrefcount(t) for t in held if t is not None and not later)
    try:
        net.double()
        net.load_state_dict({name: t.clone() for name, t in net.state_dict().items()})
        net.float()
    except RuntimeError as error:
        print(where, dict(counts), error, error.__cause__)
    else:
        print(where, dict(counts))


def by_hand(*tensors):
    for one in tensors:
        swap_tensors(one, one.detach().clone().requires_grad_(one.requires_grad))


later = False
net, scale = Net(), nn.Parameter(torch.ones(4))
optimizer, slow = optimizers()
convert("before the first step")
for step in range(9):
    x, words, target = torch.randn(6, 8), torch.arange(6), torch.arange(6) % 4
    net.eval()
    with torch.no_grad():
        net(x, words)
    convert(f"{step} after an evaluation")
    net(x, words)
    convert(f"{step} after an evaluation with a graph")
    net.train()
    F.cross_entropy(net(x, words), target)
    by_hand(x, scale)
    convert(f"{step} after a forward without a backward")
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    slow.zero_grad()
    loss = F.cross_entropy(net(x, words) * scale, target)
    loss.backward()
    print(step, loss.item())
    del loss
    net.double().float()
    by_hand(x, target)
    optimizer.step()
    convert(f"{step} between two optimizers")
    slow.step()
    convert(f"{step} after the step")
    if step == 5:
        state = optimizer.state_dict(), slow.state_dict()
        del optimizer, slow
        gc.collect()
        later = True
        net.double().float()
        optimizer, slow = optimizers()
        optimizer.load_state_dict(state[0])
        slow.load_state_dict(state[1])
net.double()
print({name: value.sum().item() for name, value in net.state_dict().items()})
if "SAVE_WEIGHTS" in os.environ:
    states = [net.state_dict(), optimizer.state_dict(), slow.state_dict()]
    torch.save(states, os.environ["SAVE_WEIGHTS"])
