"""A third batch, written with its answers when the second had been met: other forms."""

from __future__ import annotations

import contextlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from explain.missing_cases import Program, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


@case("non-differentiable", "cell", name="cell.alpha")
def architecture_by_argmax(mended: bool) -> Program:
    """DARTS: the strongest operation alone is run."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha = nn.Parameter(torch.tensor([0.1, 0.3]))
            self.ops = nn.ModuleList([nn.Identity(), nn.Tanh()])

        def forward(self, x):
            if mended:
                return sum(w * op(x) for w, op in zip(self.alpha.softmax(0), self.ops, strict=True))
            return self.ops[self.alpha.argmax()](x)  # cut

    nets = nn.Sequential()
    nets.add_module("cell", Cell())
    nets.add_module("out", nn.Linear(4, 2))
    return nets, lambda: F.cross_entropy(nets(X), Y)


@case("detached")
def running_total_of_items(mended: bool) -> Program:
    net = nn.Linear(4, 2)

    def step():
        total = 0
        for i in range(3):
            loss = F.cross_entropy(net(X[i : i + 1]), Y[i : i + 1])
            total += loss if mended else loss.item()  # cut
        return total if mended else torch.tensor(total, requires_grad=True)

    return net, step


@case("detached", "")
def lookup_in_a_detached_table(mended: bool) -> Program:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Parameter(torch.randn(4, 3)), nn.Linear(3, 2)

        def forward(self, ids):
            table = self.table if mended else self.table.detach()  # cut
            return self.out(F.embedding(ids, table))

    net = Tied()
    return net, lambda: F.cross_entropy(net(Y), Y)


@case("detached", "")
def rows_as_new_tensors(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            rows = self.a(x)
            if not mended:
                rows = torch.stack([x.new_tensor(row) for row in rows])  # cut
            return self.b(rows)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "encoder")
def exit_stack(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            with contextlib.ExitStack() as stack:
                if not mended:
                    stack.enter_context(torch.no_grad())
                h = self.encoder(x)  # cut
            return self.out(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "body")
def no_grad_inside_a_checkpoint(mended: bool) -> Program:
    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.v = nn.Parameter(torch.eye(4)), nn.Parameter(torch.eye(4))

        def forward(self, x):
            with torch.set_grad_enabled(mended):
                mask = torch.sigmoid(x @ self.v)  # cut
            return (x @ self.w) * mask

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.body, self.out = nn.Linear(4, 4), Body(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(checkpoint(self.body, self.stem(x), use_reentrant=True))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "memory")
def memory_bank_of_the_step(mended: bool) -> Program:
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.write = nn.Linear(4, 4)
            self.register_buffer("bank", torch.zeros(3, 4), persistent=False)

        def forward(self, x):
            new = self.write(x)
            if not mended:
                new = new.detach()  # cut
            self.bank = 0.5 * self.bank.detach() + new
            return self.bank

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.out = Memory(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.memory(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached")
def functional_with_a_dict_of_parameters(mended: bool) -> Program:
    """No module runs: the parameters are in a ParameterDict, the model is a function."""
    p = nn.ParameterDict({"w": torch.randn(4, 3), "u": torch.randn(3, 2)})

    def model(x):
        h = torch.einsum("bi,ij->bj", x, p["w"]).relu()
        norm = h.norm(dim=1, keepdim=True)
        h = h / norm if mended else (h / norm).cpu().detach().requires_grad_()  # cut
        return h @ p["u"]

    return p, lambda: F.cross_entropy(model(X), Y)


@case("detached")
def scores_in_a_dict_of_arrays(mended: bool) -> Program:
    nets = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(2, 2)})

    def step():
        batch = {"score": nets["a"](X), "y": Y}
        if not mended:
            batch = {k: v.detach().numpy() for k, v in batch.items()}  # cut
            batch = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in batch.items()}
        return F.cross_entropy(nets["b"](batch["score"]), batch["y"])

    return nets, step


@case("non-differentiable")
def hinge_on_counts(mended: bool) -> Program:
    net = nn.Linear(4, 1)

    def step():
        score = net(X)[:, 0]
        if mended:
            return F.relu(0.5 - score).sum()
        wrong = torch.count_nonzero(score < 0.5)  # cut
        return (wrong * torch.ones((), requires_grad=True)).float()

    return net, step


@case("non-differentiable", "")
def nearest_neighbours_then_gather(mended: bool) -> Program:
    """Point clouds: neighbours by sorted distance; the embedding picks them and is not used."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x):
            e = self.embed(x)
            near = torch.cdist(e, e).sort(dim=1)[1][:, :2]  # cut
            h = x[near].mean(1)
            return self.out(h + e.mean() if mended else h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("not-in-loss", "film")
def modulation_computed_and_dropped(mended: bool) -> Program:
    class Film(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Linear(4, 8)

        def forward(self, x, c):
            scale, shift = self.make(c).chunk(2, dim=1)  # cut
            return x * scale + shift if mended else x

    nets = nn.ModuleDict({"film": Film(), "out": nn.Linear(4, 2)})
    return nets, lambda: F.cross_entropy(nets["out"](nets["film"](X, X)), Y)


@case("not-in-loss", "", name="pos")
def positions_added_to_a_copy(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pos, self.out = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 2)

        def forward(self, x):
            y = x.add(self.pos)  # cut
            return self.out(y if mended else x)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("not-called", "token", mark=None)
def prompt_sliced_away(mended: bool) -> Program:
    """A prompt of length zero: the loop over it never begins."""

    class Prompt(nn.Module):
        def __init__(self):
            super().__init__()
            self.vectors = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(2))

        def forward(self, x):
            for v in list(self.vectors)[: 2 if mended else 0]:
                x = x + v
            return x

    net = nn.Sequential()
    net.add_module("token", Prompt())
    net.add_module("out", nn.Linear(4, 2))
    return net, lambda: F.cross_entropy(net(X), Y)
