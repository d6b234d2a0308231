"""A second batch, written when the rules had met the first: other styles, other tasks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from rules.rule_programs import Program, program, sgd

G = torch.Generator().manual_seed(11)
X = torch.randn(32, 16, generator=G)
Y = torch.arange(32) % 4
PICTURES = torch.randn(4, 3, 16, 16, generator=G)


@program("GS501", "decode", severity="error")
def softmax_over_the_channels_of_a_mask(mended):
    """Segmentation: softmax over [N, C, H, W], and cross entropy of it."""

    class Decode(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Conv2d(8, 5, 1)

        def forward(self, x):
            x = self.out(x)
            return x if mended else torch.softmax(x, dim=1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Conv2d(3, 8, 3, padding=1), Decode()

        def forward(self, x):
            return self.decode(F.relu(self.encode(x)))

    y = torch.randint(0, 5, (4, 16, 16), generator=torch.Generator().manual_seed(1))
    return Program(Net(), PICTURES, F.cross_entropy, y)


@program("GS501", "", severity="error")
def softmax_of_tokens(mended):
    """A language model whose forward ends in softmax, flattened for a smoothed cross entropy."""

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.rnn = nn.Embedding(30, 16), nn.GRU(16, 16, batch_first=True)
            self.head = nn.Linear(16, 30)

        def forward(self, ids):
            x = self.head(self.rnn(self.embed(ids))[0])
            return x if mended else x.softmax(-1)

    ids = torch.randint(0, 30, (4, 9), generator=torch.Generator().manual_seed(2))

    def loss(out, ids):
        flat = out[:, :-1].reshape(-1, 30)
        return F.cross_entropy(flat, ids[:, 1:].reshape(-1), label_smoothing=0.1)

    return Program(Lm(), ids, loss, ids)


@program("GS503", "head.1", severity="error")
def sigmoid_of_a_detector(mended):
    """Objectness through nn.Sigmoid, reshaped, then binary cross entropy with logits."""

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Conv2d(3, 8, 3, stride=2)
            last = [] if mended else [nn.Sigmoid()]
            self.head = nn.Sequential(nn.Conv2d(8, 2, 1), *last)

        def forward(self, x):
            return self.head(F.relu(self.body(x))).permute(0, 2, 3, 1).reshape(len(x), -1)

    y = torch.zeros(4, 98)
    y[:, ::7] = 1
    return Program(Detector(), PICTURES, nn.BCEWithLogitsLoss(), y)


@program("GS502", "heads.b.1", severity="error")
def relu6_on_one_of_two_tasks(mended):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Linear(16, 16)
            clip = [] if mended else [nn.ReLU6()]
            self.heads = nn.ModuleDict(
                {"a": nn.Linear(16, 4), "b": nn.Sequential(nn.Linear(16, 4), *clip)}
            )

        def forward(self, x):
            h = torch.tanh(self.trunk(x))
            return {name: head(h) for name, head in self.heads.items()}

    def loss(out, y):
        return F.cross_entropy(out["a"], y) + 0.5 * F.cross_entropy(out["b"], y)

    return Program(Net(), X, loss, Y)


@program("GS401", "blocks.0.*", cause="detached")
def truncated_backpropagation_everywhere(mended):
    """Hidden states are detached after every step, in training too, and so is the encoder."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            for block in self.blocks:
                x = torch.tanh(block(x))
                if not mended:
                    x = x.detach()
            return self.head(x)

    return Program(Net(), X, F.cross_entropy, Y)


@program("GS402", "adapters.b")
def adapter_of_another_task(mended):
    """Adapters by task name, of which this run's batch only ever asks for one."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            tasks = ("a",) if mended else ("a", "b")
            self.adapters = nn.ModuleDict(
                {t: nn.Sequential(nn.Linear(16, 4), nn.GELU(), nn.Linear(4, 16)) for t in tasks}
            )
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            return self.head(x + self.adapters["a"](x))

    return Program(Net(), X, F.cross_entropy, Y)


@program("GS403", "stages.0.*", severity="warning")
def first_stage_of_a_resnet(mended):
    """detectron-style `freeze_at=1` without FrozenBatchNorm."""

    def stage(width_in, width):
        return nn.Sequential(
            nn.Conv2d(width_in, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList([stage(3, 8), stage(8, 8)])
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            for one in self.stages:
                x = one(x)
            return self.head(x.mean((2, 3)))

    model = Net()
    model.stages[0].requires_grad_(False)
    if mended:
        model.stages[0].eval()
    return Program(model, PICTURES, F.cross_entropy, Y[:4])


@program("GS509", "rnn", severity="warning")
def recurrent_layer_along_the_batch(mended):
    """The default of PyTorch is the sequence first; the data have the batch first."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(16, 8, batch_first=mended), nn.Linear(8, 4)

        def forward(self, x):
            states, _ = self.rnn(x)
            return self.head(states[:, -1])

    return Program(Net(), torch.randn(8, 5, 16), F.cross_entropy, Y[:8])


@program("GS509", "encoder.self_attn", "encoder.*", severity="warning")
def attention_across_the_batch(mended):
    """A transformer layer with its default order, pooled over the axis that the data have."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 16)
            self.encoder = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=mended)
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            return self.head(self.encoder(self.embed(x)).mean(1))

    return Program(Net(), torch.randint(30, (8, 5)), F.cross_entropy, Y[:8])


@program("GS509", "positions", severity="warning")
def positions_along_the_batch(mended):
    """A layer of positions for the sequence first, where the data have the batch first."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("pe", torch.randn(50, 1, 16))

        def forward(self, x):
            return x + self.pe[: x.size(0)]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.positions = nn.Embedding(30, 16), Positions()
            self.encoder = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            x = self.embed(x)
            x = self.positions(x.transpose(0, 1)).transpose(0, 1) if mended else self.positions(x)
            return self.head(self.encoder(x).mean(1))

    return Program(Net(), torch.randint(30, (8, 5)), F.cross_entropy, Y[:8])


@program("GS404", "scale")
def parameter_added_after_the_optimizer(mended):
    """A learned temperature that was registered late."""
    model = nn.Linear(16, 4)
    held = list(model.parameters())
    model.register_parameter("scale", nn.Parameter(torch.ones(())))

    def loss(out, y):
        return F.cross_entropy(out * model.scale, y)

    make = lambda ps: torch.optim.SGD(list(ps) if mended else held, lr=0.1)  # noqa: E731
    return Program(model, X, loss, Y, {"optimizer": make})


@program("GS301", "critic", "", severity="error")
def gradient_penalty_at_zero(mended):
    """WGAN-GP: the norm of a gradient that is zero, and its square root behind it."""

    class Gan(nn.Module):
        def __init__(self):
            super().__init__()
            self.critic = nn.Linear(16, 1)
            nn.init.zeros_(self.critic.weight)

        def forward(self, x):
            x = x.clone().requires_grad_()
            score = self.critic(x)
            (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            square = slope.pow(2).sum(1) + (1e-12 if mended else 0)
            return score, (square.sqrt() - 1).pow(2).mean()

    return Program(Gan(), X, lambda out: out[0].mean() + 10 * out[1])


@program("GS101", "blocks.*", severity="warning")
def tanh_blocks_under_checkpointing(mended):
    """A deep saturating stack whose blocks are recomputed in backward."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            act = nn.GELU if mended else nn.Sigmoid
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(16, 16), act(), nn.Linear(16, 16), act()) for _ in range(6)
            )
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            for block in self.blocks:
                inner = checkpoint(block, x, use_reentrant=False)
                x = x + inner if mended else inner
            return self.head(x)

    return Program(Net(), X, F.cross_entropy, Y)


@program("GS201", "mlp*", "experts.*", severity="warning")
def expert_whose_units_died(mended):
    """One expert of two took all the large steps, and most of its hidden units are gone."""

    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(16, 2)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 4)) for _ in range(2)
            )
            with torch.no_grad():
                self.experts[1][0].bias[: 0 if mended else 32] = -30.0

        def forward(self, x):
            weight = self.gate(x).softmax(-1)
            return sum(weight[:, i : i + 1] * one(x) for i, one in enumerate(self.experts))

    return Program(Moe(), X, F.cross_entropy, Y)


@program("GS104", "*", severity="warning")
def weight_decay_instead_of_a_learning_rate(mended):
    """The two arguments swapped: lr=1e-9 and weight_decay=0.01."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    make = sgd(0.01) if mended else lambda p: torch.optim.SGD(p, lr=1e-9, weight_decay=0.01)
    return Program(model, X, F.cross_entropy, Y, {"optimizer": make})


@program("GS505", "net.0.bias", severity="info")
def bias_of_a_transposed_convolution(mended):
    """A DCGAN generator whose ConvTranspose2d layers keep their bias before the norm."""

    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.ConvTranspose2d(16, 8, 4, bias=not mended), nn.BatchNorm2d(8), nn.ReLU(True),
                nn.ConvTranspose2d(8, 3, 4, 2), nn.Tanh(),
            )  # fmt: skip

        def forward(self, z):
            return self.net(z[:, :, None, None])

    return Program(Generator(), X, lambda out: out.pow(2).mean())


@program("GS405", "encoder", severity="error")
def require_grads_of_an_encoder(mended):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.LSTM(16, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.encoder(x)[0][:, -1])

    model = Net()
    if mended:
        model.encoder.requires_grad_(False)
    else:
        model.encoder.require_grads = False
    return Program(model, X.reshape(8, 4, 16), F.cross_entropy, Y[:8])
