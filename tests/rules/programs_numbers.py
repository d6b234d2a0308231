"""Broken programs for GS301–GS303: where numbers stop being numbers, or would in half precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from rules.rule_programs import Program, program, sgd

X = torch.randn(32, 16, generator=torch.Generator().manual_seed(4))
Y = torch.arange(32) % 4


@program("GS301", "embed", "", severity="error")
def distance_of_equal_points(mended):
    """sqrt of a sum of squares that is zero: the derivative is 0 · inf.

    pytorch/pytorch#6394: the chain rule at sqrt(0).
    """

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(16, 8)

        def forward(self, a, b):
            square = (self.embed(a) - self.embed(b)).pow(2).sum(1)
            return torch.sqrt(square + (1e-8 if mended else 0))

    other = X.clone()
    other[1:] += 1
    return Program(Siamese(), (X, other), lambda distance: distance.mean())


@program("GS301", "", severity="error")
def log_of_a_softmax(mended):
    """`torch.log(torch.softmax(x))` with a logit far below the rest: log 0."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 4)
            with torch.no_grad():
                self.fc.bias[0] = -200.0

        def forward(self, x):
            x = self.fc(x)
            return F.log_softmax(x, -1) if mended else torch.log(torch.softmax(x, -1))

    return Program(Net(), X, F.nll_loss, Y)


@program("GS301", "attention", severity="error")
def row_that_is_all_masked(mended):
    """A padding mask that leaves a sample without a token: softmax over a row of -inf.

    pytorch/pytorch#41508 and #26098.
    """

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x, mask):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ k.transpose(1, 2) / 4
            scores = scores.masked_fill(mask[:, None], -torch.inf)
            return scores.softmax(-1) @ v

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = Attention(), nn.Linear(16, 4)

        def forward(self, x, mask):
            return self.head(self.attention(x, mask)[:, 0])

    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[0, (1 if mended else 0) :] = True
    return Program(Net(), (X.reshape(4, 8, 16), mask), F.cross_entropy, Y[:4])


@program("GS301", "fc2.weight", "fc2", severity="error")
def checkpoint_with_a_nan(mended):
    """Weights saved after a run had diverged: one NaN is enough."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 4)
            if not mended:
                with torch.no_grad():
                    self.fc2.weight[1, 3] = torch.nan

        def forward(self, x):
            return self.fc2(F.relu(self.fc1(x)))

    return Program(Net(), X, F.cross_entropy, Y)


@program("GS301", "*", severity="error")
def finite_loss_gradient_of_nan(mended):
    """`torch.where` keeps the loss finite, not the gradient of the branch that it left out.

    pytorch/pytorch#4132.
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 4, bias=False)

        def forward(self, x):
            x = self.fc(x)
            safe = torch.where(x > 0, x, torch.ones_like(x)) if mended else x
            return torch.where(x > 0, safe.log(), torch.zeros_like(x))

    padded = torch.cat([torch.zeros(4, 16), X])
    return Program(Net(), padded, lambda out: out.mean())


@program("GS302", "*", severity="warning")
def loss_of_a_millionth(mended):
    """A term that was weighted by 1e-7 and averaged: no fp16 gradient is left of it."""
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    weight = 1.0 if mended else 1e-10
    return Program(model, X, lambda out, y: F.cross_entropy(out, y) * weight, Y)


@program("GS302", "*", severity="warning")
def half_precision_without_a_scaler(mended):
    """`model.half()` and no GradScaler: what lies under 6e-8 is zero."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return self.head(x)

    def loss(out, y):
        each = F.cross_entropy(out.float(), y)
        return each if mended else each * 1e-4

    return Program(Net().half(), torch.randn(32, 32).half(), loss, Y)


@program("GS303", "wi", "wo", "act", "", severity="warning")
def feed_forward_beyond_65504(mended):
    """T5's feed-forward part: fine in bfloat16 and float32, infinite in fp16.

    huggingface/transformers#5651: 66246 in `wo`.
    """

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.wi, self.act, self.wo = nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16)
            self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 4)
            nn.init.normal_(self.wo.weight, std=0.06 if mended else 60.0)
            nn.init.normal_(self.wi.weight, std=0.25 if mended else 30.0)

        def forward(self, x):
            return self.head(self.norm(x + self.wo(self.act(self.wi(x)))))

    return Program(FeedForward(), X, F.cross_entropy, Y)


@program("GS303", "features*", "0", "", "norm", severity="warning")
def sensor_values_as_they_come(mended):
    """Time stamps in seconds as a feature: the first layer's output is far over 65504."""
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    x = X.clone()
    x[:, 3] = 1.7e9 + torch.arange(32) * 60.0
    if mended:
        x[:, 3] = (x[:, 3] - x[:, 3].mean()) / x[:, 3].std()
    return Program(model, x, F.cross_entropy, Y)


@program("GS301", "*", severity="error")
def optimizer_step_that_overflows(mended):
    """A learning rate of 1e30: gradients are finite, and what the step leaves is not."""
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    options = {"optimizer": sgd(0.1 if mended else 1e30), "steps": 3}
    return Program(model, X * 3, lambda out, y: F.mse_loss(out, F.one_hot(y, 4) * 1.0), Y, options)
