"""Programs with zero gradients: masks and routing, underflow, and what is none of the causes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.missing.cases import Program
from explain.zero.cases import X, Y, zero


@zero("masked", "", name="enc.weight")
def padding_mask_inverted(mended: bool) -> Program:
    """The mask says which tokens are padding, and is multiplied as if it said which are not."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x, padding):
            keep = ~padding if mended else padding
            h = torch.tanh(self.enc(x)) * keep[:, None]  # zero
            return self.out(h)

    net = Net()
    padding = torch.tensor([False, False, False])
    return net, lambda: F.cross_entropy(net(X, padding), Y)


@zero("masked", "", name="fc.weight")
def where_takes_the_other_side(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.skip = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            threshold = -1.0 if mended else 100.0
            return torch.where(x > threshold, self.fc(x), self.skip(x))  # zero

    net = Net()
    return net, lambda: net(X).square().mean()


@zero("masked", None, name="pos.weight")
def every_score_filled(mended: bool) -> Program:
    """A causal mask built with the diagonal left out, over a sequence of one."""
    net = nn.ModuleDict({"pos": nn.Linear(4, 1), "out": nn.Linear(1, 2)})
    hidden = torch.tensor([False, False, False] if mended else [True, True, True])

    def step():
        score = net["pos"](X).masked_fill(hidden[:, None], -1.0)  # zero
        return F.cross_entropy(net["out"](score), Y)

    return net, step


@zero("masked", None, name="aux.weight")
def auxiliary_loss_weighted_zero(mended: bool) -> Program:
    """Multi-task: the weight of the second loss was left at 0 by a schedule."""
    net = nn.ModuleDict({"body": nn.Linear(4, 4), "main": nn.Linear(4, 2), "aux": nn.Linear(4, 1)})
    weight = 0.3 if mended else 0.0

    def step():
        h = net["body"](X).tanh()
        main = F.cross_entropy(net["main"](h), Y)
        aux = net["aux"](h).square().mean()
        return main + weight * aux  # zero

    return net, step


@zero("masked", None, name="0.weight")
def whole_loss_times_zero(mended: bool) -> Program:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    warmup = torch.tensor(1.0 if mended else 0.0)

    def step():
        loss = F.cross_entropy(net(X), Y)
        return loss * warmup  # zero

    return net, step


@zero("masked", "", name="experts.1.weight")
def expert_that_no_token_chose(mended: bool) -> Program:
    """Dense dispatch of a mixture of experts: the second one's share is zero everywhere."""

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 2)
            self.experts = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
            nn.init.constant_(self.gate.weight, 0.0)
            with torch.no_grad():
                self.gate.bias.copy_(torch.tensor([3.0, -3.0]))

        def forward(self, x):
            probs = self.gate(x).softmax(-1)
            chosen = F.one_hot(probs.argmax(-1), 2)
            if mended:
                chosen = torch.ones_like(chosen)
            out = 0
            for i, expert in enumerate(self.experts):
                share = chosen[:, i : i + 1] * 1.0
                out = out + probs[:, i : i + 1] * (share * expert(x))  # zero
            return out

    net = MoE()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("masked", "", name="experts.1.weight")
def expert_with_an_empty_batch(mended: bool) -> Program:
    """Sparse dispatch: the expert runs on the rows routed to it, of which there are none."""

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

        def forward(self, x, route):
            out = torch.zeros(len(x), 2)
            for i, expert in enumerate(self.experts):
                rows = route == i
                out[rows] = expert(x[rows])  # zero
            return out

    net = MoE()
    route = torch.tensor([0, 1, 1] if mended else [0, 0, 0])
    return net, lambda: F.cross_entropy(net(X, route), Y)


@zero("masked", None, name="weight")
def every_label_ignored(mended: bool) -> Program:
    """Instruction tuning with all labels at -100: the prompt filled the context."""
    net = nn.Linear(4, 3)
    labels = Y if mended else torch.full((3,), -100)

    def step():
        return F.cross_entropy(net(X), labels, ignore_index=-100, reduction="sum")  # zero

    return net, step


@zero("masked", "emb", name="emb.weight")
def nothing_but_padding(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.out = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 2)

        def forward(self, tokens):
            return self.out(self.emb(tokens).mean(1))  # zero

    net = Net()
    tokens = torch.tensor([[1, 2], [3, 0], [4, 5]]) if mended else torch.zeros(3, 2).long()
    return net, lambda: F.cross_entropy(net(tokens), Y)


@zero("masked", None, name="actor.weight")
def ratio_outside_the_clip_range(mended: bool) -> Program:
    """PPO without its minimum: `clipping causing no gradient?` (openai/baselines #92)."""
    net = nn.ModuleDict({"actor": nn.Linear(4, 2)})
    old = torch.tensor([-0.7, -0.7, -0.7] if mended else [-9.0, -9.0, -9.0])

    def step():
        log_prob = net["actor"](X * 0.01).log_softmax(-1).gather(1, Y[:, None]).squeeze(1)
        ratio = (log_prob - old).exp()
        clipped = ratio.clamp(0.2, 5.0)  # zero
        return -(clipped * torch.tensor([1.0, 2.0, -1.0])).mean()

    return net, step


@zero("masked", "drop", name="fc.weight")
def keep_probability_given_as_dropout(mended: bool) -> Program:
    """`keep_prob=1.0` of another framework, passed on as `p`."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.drop = nn.Linear(4, 4), nn.Dropout(p=0.0 if mended else 1.0)
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.drop(self.fc(x).tanh()))  # zero

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("masked", None, mark=None, name="weight")
def gradient_hook_that_zeroes(mended: bool) -> Program:
    """Freezing rows of a classifier by a hook, whose mask holds no row."""
    net = nn.Linear(4, 2)
    rows = torch.tensor([[1.0], [0.0]]) if mended else torch.zeros(2, 1)
    net.weight.register_hook(lambda gradient: gradient * rows)
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("masked", None, name="proj.weight")
def selection_of_nothing(mended: bool) -> Program:
    """The loss over positive pairs of a batch that has none."""
    net = nn.ModuleDict({"proj": nn.Linear(4, 4)})
    positive = torch.tensor([True, False, mended])
    negative = torch.tensor([False, mended, False])

    def step():
        z = net["proj"](X)
        chosen = z[positive & negative if not mended else positive]  # zero
        return chosen.square().sum()

    return net, step


@zero("underflow", None, name="weight")
def half_precision_without_loss_scale(mended: bool) -> Program:
    """`autocast defaults to fp16 with no GradScaler` (engichang1467/Open-Rig3R #35)."""
    net = nn.Linear(4, 2).half()
    scale = 2.0**16 if mended else 1.0

    def step():
        out = net(X.half()).float()  # zero
        return out.square().mean() * 1e-9 * scale

    return net, step


@zero("underflow", ..., name="layers.0.weight")  # type: ignore[arg-type]
def deep_sigmoids_in_half_precision(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3 if mended else 24))
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            for layer in self.layers:
                x = torch.sigmoid(layer(x))  # zero
            return self.out(x)

    net = Net().half()
    return net, lambda: F.cross_entropy(net(X.half()).float(), Y)


@zero("underflow", None, name="weight")
def likelihood_as_a_product(mended: bool) -> Program:
    """The probabilities of a long sequence multiplied where their logs should be added."""
    net = nn.Linear(4, 1)
    sequence = torch.linspace(-1, 1, 800).reshape(200, 4)

    def step():
        p = torch.sigmoid(net(sequence))
        if mended:
            return -p.log().sum()
        return 1 - p.prod()  # zero

    return net, step


@zero("underflow", None, name="weight")
def kernel_of_a_tiny_width(mended: bool) -> Program:
    """A Gaussian kernel (MMD) whose bandwidth is far below the distances."""
    net = nn.Linear(4, 4)
    sigma = 1.0 if mended else 1e-3

    def step():
        z = net(X)
        distance = (z[0] - z[1:]).square().sum(-1)
        kernel = torch.exp(-distance / sigma**2)  # zero
        return -kernel.mean()

    return net, step


@zero("underflow", "", name="field.weight")
def physics_in_si_units(mended: bool) -> Program:
    """A physics-informed loss with both of Planck's constants left in SI units."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.field = nn.Linear(4, 1)
            self.h = 1.0 if mended else 6.6e-34

        def forward(self, x):
            momentum = self.field(x) * self.h  # zero
            return momentum * self.h

    net = Net()
    return net, lambda: net(X).sum()


@zero("underflow", ..., name="blocks.0.weight")  # type: ignore[arg-type]
def deep_scaling_in_bfloat16(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2 if mended else 50))

        def forward(self, x):
            for block in self.blocks:
                x = block(x) * 0.1  # zero
            return x

    net = Net().bfloat16()
    return net, lambda: net(X.bfloat16()).sum()


@zero(None, None, name="weight")
def both_sides_are_the_same(mended: bool) -> Program:
    """A contrastive loss that compares a view with itself: the two halves cancel."""
    net = nn.Linear(4, 2, bias=False)

    def step():
        one = net(X)
        other = net(X.flip(0)) * 0.5 if mended else one
        return (one - other).sum()  # zero

    return net, step


@zero(None, None, name="weight")
def distilled_from_itself(mended: bool) -> Program:
    """Student and teacher share weights and input: the loss is at its minimum."""
    net = nn.Linear(4, 2)

    def step():
        teacher = net(X + (0.1 if mended else 0.0)).detach()
        return F.mse_loss(net(X), teacher)  # zero

    return net, step


@zero("non-differentiable", "quant", name="enc.weight")
def rounding_without_a_straight_through(mended: bool) -> Program:
    class Quantise(nn.Module):
        def forward(self, x):
            if mended:
                return x + (torch.round(x * 8) / 8 - x).detach()
            return torch.round(x * 8) / 8  # zero

    net = nn.ModuleDict({"enc": nn.Linear(4, 4), "quant": Quantise(), "dec": nn.Linear(4, 4)})
    return net, lambda: F.mse_loss(net["dec"](net["quant"](net["enc"](X))), X)
