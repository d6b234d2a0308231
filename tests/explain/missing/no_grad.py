"""Programs that run with gradients disabled."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from explain.missing.cases import Program, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


@case("no-grad", "backbone.0")
def backbone_left_in_no_grad(mended: bool) -> Program:
    """Fine-tuning: the block that froze the backbone stayed when it was to be trained."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            with torch.set_grad_enabled(mended):  # cut
                h = self.backbone(x)
            return self.head(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "features")
def decorated_feature_extractor(mended: bool) -> Program:
    def maybe(function):
        return function if mended else torch.no_grad()(function)

    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))

        @maybe
        def forward(self, x):
            return torch.tanh(x @ self.w)  # cut

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.head = Features(), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.features(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "net.0")
def whole_step_in_inference_mode(mended: bool) -> Program:
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 2))

        def forward(self, x):
            if mended:
                return self.net(x)
            with torch.inference_mode():  # cut
                return self.net(x)

    net = Wrapper()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "")
def positional_table_in_no_grad(mended: bool) -> Program:
    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.position = nn.Parameter(torch.randn(3, 4))
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            with torch.set_grad_enabled(mended):  # cut
                table = self.position / self.position.norm()
            return self.out(x + table)

    net = Embed()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "target")
def target_network_still_trainable(mended: bool) -> Program:
    """DQN: the target network runs under no_grad, but its parameters are in the optimizer."""
    nets = nn.ModuleDict({"online": nn.Linear(4, 2), "target": nn.Linear(4, 2)})
    if mended:
        nets["target"].requires_grad_(False)

    def step():
        q = nets["online"](X).gather(1, Y[:, None])
        with torch.no_grad():  # cut
            best = nets["target"](X).max(1).values
        return F.smooth_l1_loss(q[:, 0], 1 + 0.9 * best)

    return nets, step


@case("no-grad", "momentum")
def moco_momentum_encoder(mended: bool) -> Program:
    class MoCo(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.momentum = nn.Linear(4, 3), nn.Linear(4, 3)
            if mended:
                self.momentum.requires_grad_(False)

        @torch.no_grad()
        def update(self):
            for q, k in zip(self.query.parameters(), self.momentum.parameters(), strict=True):
                k.data = k.data * 0.9 + q.data * 0.1

        def forward(self, x):
            q = self.query(x)
            with torch.no_grad():  # cut
                self.update()
                k = self.momentum(x)
            return q @ k.T

    net = MoCo()
    return net, lambda: F.cross_entropy(net(X), torch.arange(3))


@case("no-grad", "blocks.1")
def moe_expert_in_no_grad(mended: bool) -> Program:
    class Block(nn.Module):
        def __init__(self, quiet):
            super().__init__()
            self.quiet = quiet
            self.fc = nn.Parameter(torch.eye(4))

        def forward(self, x):
            torch.set_grad_enabled(not self.quiet or mended)  # cut
            y = x @ self.fc
            torch.set_grad_enabled(True)
            return y

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 2)
            self.blocks = nn.ModuleList([Block(False), Block(True)])

        def forward(self, x):
            g = self.gate(x).softmax(1)
            return sum(g[:, i : i + 1] * b(x) for i, b in enumerate(self.blocks))

    net = MoE()
    return net, lambda: net(X).square().mean()


@case("no-grad", "body.0")
def reentrant_checkpoint_of_a_frozen_stem(mended: bool) -> Program:
    """transformers #21381, open_clip #573: no input of the checkpoint requires a gradient."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(4, 4).requires_grad_(False)
            self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            h = checkpoint(self.body, self.stem(x), use_reentrant=not mended)  # cut
            return self.head(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad")
def sample_without_reparametrisation(mended: bool) -> Program:
    """VAE: `sample()` in the place of `rsample()`."""
    net = nn.ModuleDict({"enc": nn.Linear(4, 4), "dec": nn.Linear(2, 4)})

    def step():
        mean, scale = net["enc"](X).chunk(2, dim=1)
        q = torch.distributions.Normal(mean, scale.exp())
        z = q.rsample() if mended else q.sample()  # cut
        return F.mse_loss(net["dec"](z), X)

    return net, step


@case("no-grad", "encoder")
def decorator_on_forward(mended: bool) -> Program:
    class Quiet(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.eye(4))

        @torch.no_grad()  # cut
        def forward(self, x):
            return x @ self.w

    class Loud(Quiet):
        def forward(self, x):
            return x @ self.w

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.out = Loud() if mended else Quiet(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.encoder(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("no-grad", "encoder.layers.0.self_attn")
def frozen_by_eval_and_no_grad(mended: bool) -> Program:
    """A Transformer encoder on its fast path: one fused operation for the full layer."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            with torch.set_grad_enabled(mended):  # cut
                h = self.encoder(x)
            return self.out(h)

    net = Net()
    return net, lambda: net(X[None]).square().mean()


@case("no-grad", "rnn")
def recurrent_warm_up_in_no_grad(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(4, 3), nn.Linear(3, 2)

        def forward(self, x):
            with torch.set_grad_enabled(mended):  # cut
                _, h = self.rnn(x)
            return self.out(h[0])

    net = Net()
    return net, lambda: net(X[:, None]).square().sum()


@case("no-grad", "proj")
def autocast_and_no_grad(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(mended):  # cut
                h = self.proj(x)
            return self.out(h.float())

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
                    stack.enter_context(torch.no_grad())  # cut
                h = self.encoder(x)
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
            with torch.set_grad_enabled(mended):  # cut
                mask = torch.sigmoid(x @ self.v)
            return (x @ self.w) * mask

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.body, self.out = nn.Linear(4, 4), Body(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(checkpoint(self.body, self.stem(x), use_reentrant=True))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)
