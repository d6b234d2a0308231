"""Broken programs for GS201–GS203: dead units, saturated units, activations that drift."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from rules.rule_programs import Program, program

X = torch.randn(64, 16, generator=torch.Generator().manual_seed(2))
Y = torch.arange(64) % 4
PICTURES = torch.randint(0, 256, (32, 1, 12, 12), generator=torch.Generator().manual_seed(3))


def classes(model, x=X, y=Y):
    return Program(model, x, F.cross_entropy, y[: len(x)])


@program("GS201", "1", "0", severity="warning")
def biases_after_a_bad_step(mended):
    """Three quarters of the hidden units lie so low that no sample of the batch wakes them."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    with torch.no_grad():
        model[0].bias[: 0 if mended else 48] = -50.0
    return classes(model)


@program("GS201", "features*", severity="warning")
def inputs_far_below_zero(mended):
    """Subtracting the mean of 0..255 pixels from pixels that are already in 0..1."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3))
            self.head = nn.Linear(8, 4)
            with torch.no_grad():
                self.features[0].weight.abs_()  # filters of brightness

        def forward(self, x):
            x = x.float() / 255 - (0.5 if mended else 127.5)
            return self.head(F.relu(self.features(x)).mean((2, 3)))

    return classes(Net(), PICTURES)


@program("GS201", "blocks.1*", severity="warning")
def functional_relu_in_a_residual(mended):
    """The second block's first layer has died; functional ReLU leaves no module to look at."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x):
            return x + self.b(F.relu(self.a(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(16, 4)
            with torch.no_grad():
                self.blocks[1].a.bias[: 0 if mended else 30] = -40.0

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return classes(Net())


@program("GS202", "act", "fc1", "", severity="warning")
def pixels_into_a_sigmoid(mended):
    """Pixels of 0..255 that nobody scaled: every sigmoid lies at an end."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.act, self.fc2 = nn.Linear(144, 32), nn.Sigmoid(), nn.Linear(32, 4)

        def forward(self, x):
            return self.fc2(self.act(self.fc1(x.flatten(1))))

    x = PICTURES.float()
    return classes(Net(), (x / 255 - 0.5) if mended else x)


@program("GS202", "tanh", "hidden", "", severity="warning")
def tanh_after_weights_of_one(mended):
    """Weights of standard deviation 1 over 256 inputs: tanh at ±1, as in makemore part 3."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = nn.Linear(256, 128), nn.Linear(128, 4)
            nn.init.normal_(self.hidden.weight, std=(1 / 16) if mended else 1.0)

        def forward(self, x):
            return self.out(torch.tanh(self.hidden(x)))

    return classes(Net(), torch.randn(64, 256))


@program("GS202", "attention", "", severity="warning")
def attention_without_its_scale(mended):
    """Scores that nobody divides by √d, with keys of some size: softmax picks one token."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))
            for layer in (self.q, self.k):
                nn.init.normal_(layer.weight, std=0.15 if mended else 1.0)

        def forward(self, x):
            scores = self.q(x) @ self.k(x).transpose(1, 2)
            if mended:
                scores = scores / 8
            return scores.softmax(-1) @ self.v(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = Attention(), nn.Linear(64, 4)

        def forward(self, x):
            return self.head(self.attention(x).mean(1))

    return classes(Net(), torch.randn(8, 10, 64))


@program("GS203", "*", severity="warning")
def activations_that_shrink(mended):
    """Weights of 0.01 in a deep tanh stack: the signal is gone before the head."""
    layers = []
    for _ in range(10):
        layer = nn.Linear(32, 32)
        if mended:
            nn.init.xavier_normal_(layer.weight, gain=5 / 3)
        else:
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return classes(nn.Sequential(nn.Linear(16, 32), *layers, nn.Linear(32, 4)))


@program("GS203", "blocks.*", severity="warning")
def residual_that_doubles(mended):
    """Twenty residual blocks without a norm or a scale: each adds as much as it gets."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(20))
            self.head = nn.Linear(32, 4)
            for block in self.blocks:
                nn.init.orthogonal_(block.weight, 0.05 if mended else 2.0)

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    return classes(Net(), torch.randn(32, 32))


@program("GS201", "1", "3", "", severity="warning")
def units_killed_in_training(mended):
    """Two hundred steps of SGD at a learning rate far too high: nothing was written by hand."""
    layers = [nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if mended else 1.5, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
    return classes(model)


@program("GS202", "act", "fc1", "", severity="warning")
def pixels_into_a_tanh(mended):
    """The same pixels into a tanh before which nothing is scaled."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(144, 32), nn.Linear(32, 4)

        def forward(self, x):
            return self.fc2(torch.tanh(self.fc1(x.flatten(1))))

    x = PICTURES.float()
    return classes(Net(), (x / 255 - 0.5) if mended else x)


@program("GS203", "4", severity="warning")
def one_layer_a_hundred_times_too_large(mended):
    """A scale that was put into one layer's weight and never taken out again."""
    layers = [nn.Linear(16, 32), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    with torch.no_grad():
        model[4].weight.mul_(1 if mended else 200)
    return classes(model)


@program("GS203", "proj", severity="warning")
def projection_of_a_wide_embedding(mended):
    """`nn.init.normal_` on a projection of 4096 features: each output is 64 times its input."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.head = nn.Linear(4096, 32), nn.Linear(32, 4)
            nn.init.normal_(self.proj.weight, std=(1 / 64) if mended else 1.0)

        def forward(self, x):
            return self.head(F.gelu(self.proj(x)))

    return classes(Net(), torch.randn(64, 4096))
