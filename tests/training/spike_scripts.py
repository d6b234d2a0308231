"""Small trainings in which one late step spikes: by a bad sample, or without one.

Words: a kind of training, a fault, and a seed. It prints the index of the bad sample, and then
whatever observing could change.
"""

from __future__ import annotations

#: Trainings of different kinds, each with two of the faults of one sample: each fault meets four to
#: six kinds. (Where targets are numbers, a scaled sample and a wrong label are the same.)
KINDS = {
    "classifier": ("nan", "label"),  # "scale" is in the quick tests
    "cnn": ("nan", "label"),
    "batchnorm": ("scale", "duplicated"),
    "lstm": ("scale", "nan"),
    "transformer": ("label", "duplicated"),
    "regression": ("scale", "nan"),
    "accumulation": ("label", "duplicated"),
    "workers": ("scale", "nan"),
    "autocast": ("label", "duplicated"),
    "own-loss": ("scale", "nan"),
}
#: Spikes that no sample made, with the cause that is named.
INNOCENT = {
    "rate": "learning-rate",
    "warm-up": "learning-rate",
    "resume": "optimizer",
    "scaled-weights": "weights",
    "loaded-weights": "weights",
}

SCRIPT = """
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

kind, fault, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(seed)
COUNT, BATCH, STEPS, AT = 1280, 16, 80, 60
classes = 4


def generator():
    return torch.Generator().manual_seed(seed)


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(8, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.block(self.patches(x)))


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, classes))

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def mlp(outputs):
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, outputs))


def cnn(norm):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 36, classes),
    )


order = torch.randperm(COUNT, generator=generator()).tolist()
bad = order[BATCH * (AT - 1) + 5]
if kind == "lstm":
    net, x = LSTM(), torch.randn(COUNT, 6, 8)
    y = (x.sum(1) @ torch.randn(8, 1)).tanh()
elif kind == "transformer":
    net, x = Transformer(), torch.randn(COUNT, 6, 8)
    y = (x @ torch.randn(8, 1)).tanh()
elif kind in ("cnn", "batchnorm"):
    net = cnn(nn.BatchNorm2d if kind == "batchnorm" else lambda n: nn.Identity())
    x = torch.randn(COUNT, 1, 8, 8)
    y = (x.flatten(1) @ torch.randn(64, classes)).argmax(1)
elif kind == "regression":
    net, x = mlp(1), torch.randn(COUNT, 8)
    y = (x @ torch.randn(8, 1)).tanh()
elif kind == "own-loss":
    net, x = OwnLoss(), torch.randn(COUNT, 8)
    y = (x @ torch.randn(8, classes)).argmax(1)
else:
    net, x = mlp(classes), torch.randn(COUNT, 8)
    y = (x @ torch.randn(8, classes)).argmax(1)

if fault in ("scale", "nan", "label", "duplicated"):
    bads = order[BATCH * (AT - 1) + 5 : BATCH * (AT - 1) + 7] if fault == "duplicated" else [bad]
    for one in bads:
        if fault == "nan":
            x[one].view(-1)[2] = float("nan")
        elif y.is_floating_point():  # an input may saturate: the target is far off
            y[one] = 300.0
        elif fault == "label":  # of another class, and far from the boundary
            x[one] *= 30
            y[one] = (y[one] + 1) % classes
        else:
            x[one] *= -1000
    print("bad", bad)

loader = DataLoader(
    TensorDataset(x, y), BATCH, sampler=order, generator=generator(),
    num_workers=2 if kind == "workers" else 0,
    multiprocessing_context="fork" if kind == "workers" else None,
)
rate = 1e-4 if fault == "warm-up" else 3e-3
if kind in ("regression", "cnn"):
    optimizer = torch.optim.SGD(net.parameters(), 3e-2)
else:
    optimizer = torch.optim.Adam(net.parameters(), rate)
initial = {name: value.clone() for name, value in net.state_dict().items()}


def loss_of(inputs, targets):
    if kind == "own-loss":
        return net(inputs, targets)["loss"]
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        output = net(inputs)
    if targets.is_floating_point():
        return F.mse_loss(output, targets)
    return F.cross_entropy(output.float(), targets)


for step, (inputs, targets) in enumerate(loader, 1):
    if step == AT:
        if fault == "rate":
            optimizer.param_groups[0]["lr"] *= 300
        elif fault == "scaled-weights":
            with torch.no_grad():
                for p in net.parameters():
                    p.mul_(8)
        elif fault == "loaded-weights":
            net.load_state_dict({name: value * 12 for name, value in initial.items()})
        elif fault == "resume":
            optimizer = torch.optim.Adam(net.parameters(), 0.3)
    if fault == "warm-up":
        optimizer.param_groups[0]["lr"] = rate * 1.13**step
    optimizer.zero_grad()
    if kind == "accumulation":
        for half in (slice(0, 8), slice(8, 16)):
            (loss_of(inputs[half], targets[half]) / 2).backward()
    else:
        loss_of(inputs, targets).backward()
    if kind == "regression":
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()

print(sum(p.detach().double().sum().item() for p in net.parameters()), torch.rand(()).item())
"""

#: Two processes, each with half of every batch. Rank 1 has the bad sample, the last of step 60.
RANKS = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(1280, 8)
y = (x @ torch.randn(8, 4)).argmax(1)
bad = 60 * 16 - 1
x[bad] *= -1000
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), 3e-2)
data = TensorDataset(x, y)
for inputs, targets in DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False)):
    optimizer.zero_grad()
    F.cross_entropy(net(inputs), targets).backward()
    optimizer.step()
dist.destroy_process_group()
"""

#: The same with a sharded model, which no rank can replay.
SHARDED = RANKS.replace(
    "net = nn.parallel.DistributedDataParallel(net)",
    "from torch.distributed.fsdp import fully_shard\n"
    "fully_shard(net, mesh=dist.device_mesh.init_device_mesh('cpu', (2,)))",
)
