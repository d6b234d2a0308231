import argparse
import os

import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="aot_eager")
# torch.compile(model), model.compile(), its forward alone
parser.add_argument("--ways", nargs="+", default=["module", "in-place", "forward"])
parser.add_argument("--steps", type=int, default=10)
args = parser.parse_args()

torch.manual_seed(1234)


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.c_fc = nn.Linear(dim, 4 * dim, bias=False)
        self.c_proj = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        return self.c_proj(F.relu(self.c_fc(x)).square())


class Net(nn.Module):
    def __init__(self, dim=24, depth=2, tokens=40):
        super().__init__()
        self.embed = nn.Embedding(tokens, dim)
        self.blocks = nn.ModuleList([MLP(dim) for _ in range(depth)])
        self.scale = nn.Parameter(torch.ones(depth))
        self.head = nn.Linear(dim, tokens)

    def forward(self, idx):
        x = self.embed(idx)
        for s, block in zip(self.scale, self.blocks):
            x = x + s * block(F.rms_norm(x, (x.size(-1),)))
        return self.head(x)


data = torch.randint(40, (64, 17))
data[:, 1::2] = data[:, ::2][:, :8]  # every second token repeats the one before
weights = []
for way in args.ways:
    raw_model = Net()
    if way == "in-place":
        raw_model.compile(backend=args.backend, fullgraph=True)
        model = raw_model
    elif way == "forward":
        raw_model.forward = torch.compile(raw_model.forward, backend=args.backend, fullgraph=True)
        model = raw_model
    else:
        model = torch.compile(raw_model, backend=args.backend, fullgraph=True)
    optimizer = torch.optim.AdamW(raw_model.parameters(), lr=1e-2, fused=True)

    for step in range(args.steps):
        idx = data[torch.randint(len(data), (8,))]
        logits = model(idx[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(way, "step", step, "loss", loss.item())

    model.eval()
    with torch.no_grad():
        print("held out", F.cross_entropy(model(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten()).item())
    weights.append(raw_model.state_dict())
counters = torch._dynamo.utils.counters
print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))
if os.environ.get("SAVE_WEIGHTS"):
    torch.save(weights, os.environ["SAVE_WEIGHTS"])
