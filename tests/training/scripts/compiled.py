import argparse
import os

import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="aot_eager")
parser.add_argument("--in-place", action="store_true", help="model.compile() instead of torch.compile(model)")
parser.add_argument("--forward", action="store_true", help="its forward alone")
parser.add_argument("--fullgraph", action="store_true")
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


raw_model = Net()
if args.in_place:
    raw_model.compile(backend=args.backend)
    model = raw_model
elif args.forward:
    raw_model.forward = torch.compile(raw_model.forward, backend=args.backend)
    model = raw_model
else:
    model = torch.compile(raw_model, backend=args.backend, fullgraph=args.fullgraph)
optimizer = torch.optim.AdamW(raw_model.parameters(), lr=1e-2, fused=True)

data = torch.randint(40, (64, 17))
data[:, 1::2] = data[:, ::2][:, :8]  # every second token repeats the one before
for step in range(args.steps):
    idx = data[torch.randint(len(data), (8,))]
    logits = model(idx[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print("step", step, "loss", loss.item())

model.eval()
with torch.no_grad():
    print("held out", F.cross_entropy(model(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten()).item())
counters = torch._dynamo.utils.counters
print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))
if os.environ.get("SAVE_WEIGHTS"):
    torch.save(raw_model.state_dict(), os.environ["SAVE_WEIGHTS"])
