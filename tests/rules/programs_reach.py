"""Broken programs for GS401, GS402, GS404 and GS405: what training does not reach."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from rules.rule_programs import Program, program

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(5))
Y = torch.arange(16) % 3


@program("GS401", "encoder.*", "encoder", cause="detached")
def features_through_numpy(mended):
    """Features that make a detour over numpy come back without a history."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.encoder(x)
            if not mended:
                h = torch.from_numpy(h.detach().numpy())
            return self.head(h)

    return Program(Net(), X, F.cross_entropy, Y)


@program("GS401", "regression.*", "regression", cause="not-in-loss")
def second_task_left_out_of_the_loss(mended):
    """Two heads, and the loss takes one: the other learns nothing."""

    class MultiTask(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Linear(8, 8)
            self.classes, self.regression = nn.Linear(8, 3), nn.Linear(8, 1)

        def forward(self, x):
            h = F.relu(self.trunk(x))
            return self.classes(h), self.regression(h)

    def loss(out, y):
        total = F.cross_entropy(out[0], y)
        return total + F.mse_loss(out[1].squeeze(1), y.float()) if mended else total

    return Program(MultiTask(), X, loss, Y)


@program("GS401", "router.*", "router", cause="non-differentiable")
def router_by_argmax(mended):
    """A mixture of experts whose router only picks: the choice has no derivative."""

    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(8, 2)
            self.experts = nn.ModuleList(nn.Linear(8, 3) for _ in range(2))

        def forward(self, x):
            scores = self.router(x).softmax(-1)
            pick = F.one_hot(scores.argmax(-1), 2).float()
            weight = pick * scores if mended else pick
            outputs = torch.stack([expert(x) for expert in self.experts], 1)
            return (outputs * weight[..., None]).sum(1)

    return Program(Moe(), X, F.cross_entropy, Y)


@program("GS402", "skip")
def layer_that_forward_forgot(mended):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.skip, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = F.relu(self.a(x))
            return self.head(h + self.skip(x) if mended else h)

    return Program(Net(), X, F.cross_entropy, Y)


@program("GS402", "experts.3", severity="warning")
def expert_that_nobody_routes_to(mended):
    """A range that ends one short: the last expert is never asked."""

    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(4)
            )

        def forward(self, x):
            weight = self.gate(x).softmax(-1)
            asked = range(len(self.experts) - (0 if mended else 1))
            return sum(weight[:, i : i + 1] * self.experts[i](x) for i in asked)

    return Program(Moe(), X, F.cross_entropy, Y)


@program("GS402", "decoder")
def weights_used_without_their_module(mended):
    """A tied decoder was made and then the encoder's own weight was used instead."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)

        def forward(self, x):
            h = torch.tanh(self.encoder(x))
            return self.decoder(h) if mended else F.linear(h, self.encoder.weight.t())

    return Program(Tied(), X, F.mse_loss, X)


class Pretrained(nn.Module):
    """A body and a head, as fine-tuning meets them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        return self.fc(self.body(x))


@program("GS404", "fc", "fc.*")
def optimizer_older_than_the_head(mended):
    """The optimizer was made before `model.fc = nn.Linear(…)`: it holds the old head."""
    model = Pretrained()
    old = list(model.parameters())
    model.fc = nn.Linear(8, 3)
    parameters = list(model.parameters()) if mended else old
    optimizer = lambda _: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    return Program(model, X, F.cross_entropy, Y, {"optimizer": optimizer})


@program("GS404", "body", "body.*")
def only_the_head_in_the_optimizer(mended):
    """`SGD(model.fc.parameters())` while the body still takes gradients: freeze it, or give it."""
    model = Pretrained()
    if mended:
        model.body.requires_grad_(False)
    make = lambda _: torch.optim.SGD(model.fc.parameters(), lr=0.1)  # noqa: E731
    return Program(model, X, F.cross_entropy, Y % 3, {"optimizer": make})


@program("GS404", "body.0.bias")
def filter_of_weights_forgets_the_bias(mended):
    """No weight decay on biases: one of the two groups took `0.bias` by the wrong name."""
    model = Pretrained()

    def make(_):
        decay = [p for n, p in model.named_parameters() if n.endswith("weight")]
        plain = [
            p
            for n, p in model.named_parameters()
            if (n.endswith("bias") if mended else n == "fc.bias")
        ]
        return torch.optim.AdamW([{"params": decay}, {"params": plain, "weight_decay": 0.0}])

    return Program(model, X, F.cross_entropy, Y, {"optimizer": make})


@program("GS405", "body.*", "body")
def require_grad_without_its_s(mended):
    """udacity/deep-learning-v2-pytorch#12: `param.require_grad = False` freezes nothing."""
    model = Pretrained()
    for parameter in model.body.parameters():
        if mended:
            parameter.requires_grad = False
        else:
            parameter.require_grad = False
    return Program(model, X, F.cross_entropy, Y)


@program("GS405", "body")
def requires_grad_of_a_module(mended):
    """A module has no `requires_grad`: setting it makes an attribute that nobody reads."""
    model = Pretrained()
    if mended:
        model.body.requires_grad_(False)
    else:
        model.body.requires_grad = False
    return Program(model, X, F.cross_entropy, Y)


@program("GS405", "body.0.weight")
def required_grad_of_one(mended):
    model = Pretrained()
    if mended:
        model.body[0].weight.requires_grad = False
    else:
        model.body[0].weight.required_grad = False
    return Program(model, X, F.cross_entropy, Y)
