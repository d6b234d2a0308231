"""Broken programs for GS501–GS507: what stands between the last layer and the loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from rules.rule_programs import Program, program

X = torch.randn(32, 16, generator=torch.Generator().manual_seed(7))
Y = torch.arange(32) % 4
PICTURES = torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(8))


@program("GS501", "2", severity="error")
def softmax_as_the_last_module(mended):
    """The most copied of all: nn.Softmax at the end, nn.CrossEntropyLoss outside."""
    layers = [nn.Linear(16, 16), nn.Linear(16, 4), nn.Softmax(dim=1)]
    model = nn.Sequential(*layers[: 2 if mended else 3])
    return Program(model, X, nn.CrossEntropyLoss(), Y)


@program("GS501", "", severity="error")
def softmax_in_forward(mended):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 4)

        def forward(self, x):
            x = self.fc(x)
            return x if mended else F.softmax(x, dim=1)

    return Program(Net(), X, F.cross_entropy, Y)


@program("GS501", "", severity="error")
def softmax_before_nll(mended):
    """`nll_loss` of probabilities: it wants their logarithm."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 4)

        def forward(self, x):
            x = self.fc(x)
            return F.log_softmax(x, -1) if mended else F.softmax(x, -1)

    return Program(Net(), X, F.nll_loss, Y)


@program("GS501", "", severity="warning")
def log_softmax_twice(mended):
    """log_softmax of log_softmax changes nothing; somebody thought that it would."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 4)

        def forward(self, x):
            return F.log_softmax(self.fc(x), dim=1)

    return Program(Net(), X, F.nll_loss if mended else F.cross_entropy, Y)


@program("GS502", "3", severity="error")
def relu_after_the_last_layer(mended):
    """A block of Linear and ReLU repeated once too often: no logit below zero."""
    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4), nn.ReLU()]
    return Program(nn.Sequential(*layers[: 3 if mended else 4]), X, F.cross_entropy, Y)


@program("GS502", "", severity="error")
def clamped_logits(mended):
    """`clamp(min=0)` against negative scores, and with it against their gradient."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x):
            x = self.fc2(F.relu(self.fc1(x)))
            return x if mended else x.clamp(min=0)

    return Program(Net(), X, F.cross_entropy, Y)


@program("GS502", "", severity="error")
def functional_relu_on_the_logits(mended):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

        def forward(self, x):
            x = self.fc(F.relu(self.conv(x)).mean((2, 3)))
            return x if mended else F.relu(x)

    return Program(Net(), PICTURES, F.cross_entropy, Y[:8])


@program("GS503", "net.3", "net", severity="error")
def discriminator_with_a_sigmoid(mended):
    """A DCGAN discriminator that ends in nn.Sigmoid, and BCEWithLogitsLoss."""

    class Discriminator(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)]
            self.net = nn.Sequential(*layers, *([] if mended else [nn.Sigmoid()]))

        def forward(self, x):
            return self.net(x).squeeze(1)

    return Program(Discriminator(), X, nn.BCEWithLogitsLoss(), (Y % 2).float())


@program("GS503", "", severity="error")
def sigmoid_in_forward_of_many_labels(mended):
    """Lightning-AI/pytorch-lightning#18272: no probability under a half."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 5)

        def forward(self, x):
            x = self.fc(x)
            return x if mended else torch.sigmoid(x)

    y = (torch.arange(160).reshape(32, 5) % 2).float()
    return Program(Net(), X, F.binary_cross_entropy_with_logits, y)


@program("GS504", "1", severity="error")
def last_batch_of_one(mended):
    """pytorch/pytorch#4534: a last batch of one sample raises in BatchNorm1d."""
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    n = 4 if mended else 1
    return Program(model, X[:n], F.cross_entropy, Y[:n])


@program("GS504", "bn", severity="error")
def one_picture_per_step(mended):
    """A batch of one picture: train-mode statistics of that picture alone."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(F.relu(self.bn(self.conv(x))).mean((2, 3)))

    n = 8 if mended else 1
    return Program(Net(), PICTURES[:n], F.cross_entropy, Y[:n])


@program("GS504", "pool.2", severity="error")
def norm_after_a_global_pool(mended):
    """pspnet's pooling branch with a batch of one: 1×1 after the pool.

    meetps/pytorch-semseg#214.
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8)
            )
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.pool(x).flatten(1))

    model = Net()
    if mended:
        model.pool.eval()
    return Program(model, PICTURES[:1], F.cross_entropy, Y[:1])


@program("GS505", "conv", "conv.bias", severity="info")
def convolution_with_a_bias_for_nothing(mended):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 8, 3, bias=not mended), nn.BatchNorm2d(8)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(F.relu(self.bn(self.conv(x))).mean((2, 3)))

    return Program(Net(), PICTURES, F.cross_entropy, Y[:8])


@program("GS505", "0", "0.bias", severity="info")
def linear_with_a_bias_for_nothing(mended):
    model = nn.Sequential(
        nn.Linear(16, 8, bias=not mended), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)
    )
    return Program(model, X, F.cross_entropy, Y)


@program("GS506", "*", severity="info")
def head_of_standard_normals(mended):
    """makemore part 3: output weights of 1 make a first loss of 27 where 3.3 is due."""
    model = nn.Sequential(nn.Linear(16, 200), nn.Tanh(), nn.Linear(200, 27))
    nn.init.normal_(model[2].weight, std=0.01 if mended else 2.0)
    return Program(model, X, F.cross_entropy, torch.arange(32) % 27)


@program("GS506", "*", severity="info")
def features_of_a_thousand(mended):
    """Inputs that nobody normalised reach the logits: sure of nothing true at step 0."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return Program(model, X * (1 if mended else 1000), F.cross_entropy, Y)


class Counted(nn.Module):
    """A model that computes its loss itself, as nanoGPT does."""

    def __init__(self, keep):
        super().__init__()
        self.fc, self.keep = nn.Linear(16, 4), keep

    def forward(self, x):
        scores = self.fc(x)
        return self.keep(scores, F.cross_entropy(scores, torch.arange(len(x)) % 4))


@program("GS507", severity="warning")
def own_loss_detached(mended):
    """The scores have a graph, so that their cross entropy trains; the loss has none."""
    return Program(Counted(lambda scores, loss: (scores, loss if mended else loss.detach())), X)


@program("GS507", severity="warning")
def own_loss_as_a_plain_number(mended):
    return Program(
        Counted(
            lambda scores, loss: {"scores": scores, "ce_loss": loss if mended else loss.item()}
        ),
        X,
    )


@program("GS507", severity="warning")
def part_of_a_loss_detached(mended):
    """A mapping of losses is summed; the part without a graph adds nothing to any gradient."""

    def returned(scores, loss):
        part = scores.square().mean()
        return {"ce": loss, "penalty": part if mended else part.detach()}

    return Program(Counted(returned), X)
