"""One backward, two optimizers: Muon for the hidden matrices, AdamW for the rest (after
https://kellerjordan.github.io/posts/muon/). The embedding has sparse gradients and an optimizer of
its own kind, written in this file."""

import os

import torch
import torch.nn.functional as F
from torch import nn


class SignSGD(torch.optim.Optimizer):
    """An optimizer of our own: only the sign of the gradient counts."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.coalesce().to_dense() if p.grad.is_sparse else p.grad
                p.sub_(grad.sign(), alpha=group["lr"])


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                x = buf / (buf.norm() + 1e-7)
                for _ in range(5):  # Newton-Schulz
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                p.add_(x, alpha=-group["lr"])


class Bag(nn.Module):
    def __init__(self, vocab=200, dim=32, classes=5):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim, sparse=True, mode="mean")
        self.fc1 = nn.Linear(dim, 64)
        self.fc2 = nn.Linear(64, 64)
        self.gain = nn.Parameter(torch.zeros(64))
        self.out = nn.Linear(64, classes)

    def forward(self, text, offsets):
        x = F.gelu(self.fc1(self.emb(text, offsets)))
        x = x + torch.tanh(self.gain) * F.gelu(self.fc2(x))
        return self.out(x)


def batch(n=16):
    labels = torch.randint(5, (n,))
    lengths = torch.randint(3, 9, (n,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
    text = torch.cat([torch.randint(40 * c, 40 * c + 60, (k,)) % 200
                      for c, k in zip(labels.tolist(), lengths.tolist())])
    return text, offsets, labels


torch.manual_seed(5)
net = Bag()
hidden = [net.fc1.weight, net.fc2.weight]
rest = [p for n, p in net.named_parameters() if not n.startswith("emb") and all(p is not h for h in hidden)]
optimizers = [Muon(hidden), torch.optim.AdamW(rest, lr=3e-3), SignSGD(net.emb.parameters(), lr=1e-2)]

for it in range(12):
    text, offsets, labels = batch()
    loss = F.cross_entropy(net(text, offsets), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_([*hidden, *rest], 0.5)
    for opt in optimizers:
        opt.step()
    net.zero_grad(set_to_none=True)
    print(it, loss.item())

if path := os.environ.get("SAVE_WEIGHTS"):
    torch.save(net.state_dict(), path)
