"""Programs with zero gradients: dead activations, saturated functions, zero partners."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.missing.cases import Program
from explain.zero.cases import X, Y, zero


@zero("dead-activation", "", name="fc1.weight")
def relu_on_the_logits(mended: bool) -> Program:
    """`ReLU on the output layer caused zero gradients` (chelsea0x3b/dfdx #486)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 2)
            nn.init.constant_(self.fc2.bias, -5.0)

        def forward(self, x):
            x = self.fc2(torch.tanh(self.fc1(x)))
            if not mended:
                x = F.relu(x)  # zero
            return x

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("dead-activation", "1", name="0.weight")
def hidden_layer_died_after_a_large_step(mended: bool) -> Program:
    """`the gradient was zero from start to end … relu` (shidi1985/L2RPN #6)."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.constant_(net[0].bias, 0.1 if mended else -10.0)

    def step():
        return F.cross_entropy(net(X), Y)  # zero

    return net, step


@zero("dead-activation", "gate.act", name="gate.proj.weight")
def zero_init_before_relu(mended: bool) -> Program:
    """A zero-initialised Linear without a bias, then ReLU (lucidrains/deep-cross-attention #2)."""

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.act = nn.Linear(4, 4, bias=False), nn.ReLU()
            if not mended:
                nn.init.zeros_(self.proj.weight)

        def forward(self, x):
            return self.act(self.proj(x))  # zero

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.out = Gate(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(x * (1 + self.gate(x)))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("dead-activation", "", name="enc.weight")
def relu_written_as_clamp(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec = nn.Linear(4, 3), nn.Linear(3, 4)

        def forward(self, x):
            h = self.enc(x) - (0 if mended else 20)
            h = h.clamp(min=0)  # zero
            return self.dec(h)

    net = Net()
    with torch.no_grad():
        net.enc.bias.fill_(0.7)
    return net, lambda: F.mse_loss(net(X), X)


@zero("dead-activation", "act", name="conv.weight")
def relu6_on_raw_pixels(mended: bool) -> Program:
    """A mobile network fed with 0…255 instead of 0…1: every unit lies above 6."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU6()
            self.fc = nn.Linear(4, 2)
            with torch.no_grad():
                self.conv.weight.abs_()

        def forward(self, x):
            x = self.act(self.conv(x))  # zero
            return self.fc(x.mean((2, 3)))

    net = Net()
    pixels = torch.linspace(40, 255, 96).reshape(2, 3, 4, 4)
    x = pixels / 255 if mended else pixels
    return net, lambda: F.cross_entropy(net(x), Y[:2])


@zero("dead-activation", "body.1", name="body.0.weight")
def hard_swish_far_below(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 6), nn.Hardswish())
            self.head = nn.Linear(6, 2)
            nn.init.constant_(self.body[0].bias, 0.0 if mended else -8.0)

        def forward(self, x):
            return self.head(self.body(x))  # zero

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero(None, None, name="G.0.weight")
def hinge_is_satisfied(mended: bool) -> Program:
    """A hinge loss in a GAN's step whose margin the scores have left far behind."""
    nets = nn.ModuleDict({"G": nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "D": nn.Linear(4, 1)})
    nn.init.constant_(nets["D"].bias, 0.0 if mended else -9.0)

    def step():
        score = nets["D"](nets["G"](X))
        return F.relu(1.0 + score).mean()  # zero

    return nets, step


@zero("saturated", "act", name="fc1.weight")
def sigmoid_on_raw_pixels(mended: bool) -> Program:
    """`After joining Lora, the first few layers show a gradient of 0` (microsoft/LoRA #167)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.act, self.fc2 = nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2)
            with torch.no_grad():
                self.fc1.weight.abs_().add_(0.2)

        def forward(self, x):
            h = self.act(self.fc1(x))  # zero
            return self.fc2(h)

    net = Net()
    pixels = torch.linspace(60, 255, 12).reshape(3, 4)
    x = pixels / 255 if mended else pixels
    return net, lambda: F.cross_entropy(net(x), Y)


@zero("saturated", "cell", name="cell.ih.weight")
def tanh_cell_with_large_weights(mended: bool) -> Program:
    """A recurrent cell initialised with std=100 where std=0.1 was meant."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.ih, self.hh = nn.Linear(4, 5), nn.Linear(5, 5)
            nn.init.constant_(self.ih.weight, 0.1 if mended else 100.0)

        def forward(self, x, h):
            return torch.tanh(self.ih(x) + self.hh(h))  # zero

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = Cell(), nn.Linear(5, 2)

        def forward(self, x):
            h = torch.ones(3, 5)
            for _ in range(2):
                h = self.cell(x + 2, h)
            return self.out(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("saturated", "attn", name="attn.q.weight")
def attention_with_huge_scores(mended: bool) -> Program:
    """Scores multiplied, where they should be divided, by the temperature."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(4, 4, bias=False) for _ in range(3))

        def forward(self, x):
            scores = self.q(x) @ self.k(x).transpose(-2, -1)
            scores = scores / 2 if mended else scores * 1e6
            weights = scores.softmax(-1)  # zero
            return weights @ self.v(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.out = Attention(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.attn(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X + 0.3), Y)


@zero("saturated", "", name="gate.weight")
def gate_normalised_over_one_expert(mended: bool) -> Program:
    """Softmax over the top-1 logit alone is always 1 (davidmrau/mixture-of-experts #27)."""

    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 2)
            self.experts = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

        def forward(self, x):
            logits = self.gate(x)
            if mended:
                weights, index = logits.softmax(-1).topk(1, dim=-1)
            else:
                top, index = logits.topk(1, dim=-1)
                weights = F.softmax(top, dim=-1)  # zero
            both = torch.stack([expert(x) for expert in self.experts], 1)
            chosen = both.gather(1, index[..., None].expand(-1, -1, 2)).squeeze(1)
            return chosen * weights

    net = MoE()
    with torch.no_grad():
        net.gate.weight.copy_(torch.tensor([[1.0, 1, 1, 1], [-1, -1, -1, -1]]))
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("saturated", None, name="weight")
def logits_divided_by_a_tiny_temperature(mended: bool) -> Program:
    """Contrastive learning with a temperature of 1e-6: every right answer is certain."""
    net = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.eye(4))
    views = torch.eye(4) + 0.1

    def step():
        scores = net(views) @ views.T
        temperature = 0.5 if mended else 1e-6
        return F.cross_entropy(scores / temperature, torch.arange(4))  # zero

    return net, step


@zero("saturated", "se", name="se.fc.weight")
def squeeze_gate_wide_open(mended: bool) -> Program:
    class Squeeze(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            nn.init.constant_(self.fc.bias, 0.0 if mended else 12.0)

        def forward(self, x):
            scale = F.hardsigmoid(self.fc(x.mean((2, 3))))  # zero
            return x * scale[:, :, None, None]

    net = nn.ModuleDict({"conv": nn.Conv2d(1, 4, 3), "se": Squeeze(), "fc": nn.Linear(4, 2)})
    image = torch.linspace(0, 1, 50).reshape(2, 1, 5, 5)

    def step():
        h = net["se"](net["conv"](image))
        return F.cross_entropy(net["fc"](h.mean((2, 3))), Y[:2])

    return net, step


@zero("saturated", None, name="weight")
def sigmoid_before_bce_far_out(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    nn.init.constant_(net.bias, 90.0)

    def step():
        score = net(X).squeeze(1)
        if mended:
            return F.binary_cross_entropy_with_logits(score, torch.zeros(3))
        p = torch.sigmoid(score)  # zero
        return F.binary_cross_entropy(p, torch.zeros(3))

    return net, step


@zero("zero-weight", "lora_B", name="lora_A.weight", recovers=True)
def lora_at_its_first_step(mended: bool) -> Program:
    """B starts at zero, so A gets nothing in the first step (microsoft/LoRA #59, #98)."""

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 2).requires_grad_(False)
            self.lora_A = nn.Linear(4, 2, bias=False)
            self.lora_B = nn.Linear(2, 2, bias=False)
            if not mended:
                nn.init.zeros_(self.lora_B.weight)

        def forward(self, x):
            return self.base(x) + self.lora_B(self.lora_A(x))  # zero

    net = Adapted()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("zero-weight", "lora_B", name="lora_A.weight", recovers=False)
@zero("zero-weight", "lora_A", name="lora_B.weight", recovers=False)
def lora_with_both_at_zero(mended: bool) -> Program:
    """`your gradients for A and B would be zero all time` (Guitaricet/relora #18)."""

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 2)
            self.lora_A = nn.Linear(4, 2, bias=False)
            self.lora_B = nn.Linear(2, 2, bias=False)
            for one in (self.lora_A, self.lora_B):
                if not mended:
                    nn.init.zeros_(one.weight)

        def forward(self, x):
            return self.base(x) + self.lora_B(self.lora_A(x))  # zero

    net = Adapted()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("zero-weight", "block", name="block.fc.weight", recovers=True)
def rezero_residual(mended: bool) -> Program:
    """`x + alpha * F(x)` with alpha = 0 (ReZero; majumderb/rezero)."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.alpha = nn.Parameter(torch.full((1,), 0.1 if mended else 0.0))

        def forward(self, x):
            return x + self.alpha * torch.tanh(self.fc(x))  # zero

    net = nn.ModuleDict({"block": Block(), "head": nn.Linear(4, 2)})
    return net, lambda: F.cross_entropy(net["head"](net["block"](X)), Y)


@zero("zero-weight", "head", name="body.0.weight", recovers=True)
def zero_initialised_head(mended: bool) -> Program:
    """`gradients before the last layer will be zero` (…speaker_recognition #4)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.GELU())
            self.head = nn.Linear(6, 2)
            if not mended:
                nn.init.zeros_(self.head.weight)

        def forward(self, x):
            h = self.body(x)
            return self.head(h)  # zero

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@zero("zero-weight", "bn2", name="conv1.weight", recovers=True)
def last_gamma_of_a_residual_block(mended: bool) -> Program:
    """`scale of the last batch norm … initialized as zero` (google-deepmind/sonnet #185)."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 3, 3, padding=1)
            self.conv1 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(3)
            self.conv2 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(3)
            if not mended:
                nn.init.zeros_(self.bn2.weight)
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            x = self.stem(x)
            h = F.relu(self.bn1(self.conv1(x)))
            h = self.bn2(self.conv2(h))  # zero
            return self.fc(F.relu(x + h).mean((2, 3)))

    net = Block()
    image = torch.linspace(-1, 1, 50).sin().reshape(2, 1, 5, 5)
    return net, lambda: F.cross_entropy(net(image), Y[:2])


@zero("zero-weight", "second", name="first.weight", recovers=False)
@zero("zero-weight", "first", mark="# zero b", name="second.weight", recovers=False)
def two_zero_convolutions_in_a_row(mended: bool) -> Program:
    """`About the grad=0, which have 2 continuous zero convolution` (ControlNet #510)."""

    class Control(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1)
            self.head = nn.Linear(2, 2)
            for conv in () if mended else (self.first, self.second):
                nn.init.zeros_(conv.weight)
                nn.init.zeros_(conv.bias)

        def forward(self, x):
            hint = self.first(x)  # zero b
            hint = self.second(hint)  # zero
            return self.head(hint.mean((2, 3)) + 0.5)

    net = Control()
    image = torch.linspace(0, 1, 32).reshape(2, 1, 4, 4)
    return net, lambda: F.cross_entropy(net(image), Y[:2])


@zero("zero-weight", "film", name="fc.weight", recovers=True)
def modulation_that_starts_at_zero(mended: bool) -> Program:
    """adaLN-Zero: the scale is another layer's output, and that layer starts at zero."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.film, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            if not mended:
                nn.init.zeros_(self.film.weight)
                nn.init.zeros_(self.film.bias)

        def forward(self, x, condition):
            scale = self.film(condition)  # zero
            return self.head(x + scale * torch.tanh(self.fc(x)))

    net = Net()
    return net, lambda: F.cross_entropy(net(X, X.flip(0)), Y)


@zero("zero-weight", "", name="fc.weight", recovers=False)
def frozen_layer_scale_of_zero(mended: bool) -> Program:
    """A layer scale that was frozen together with the backbone before it ever moved."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
            self.gamma = nn.Parameter(torch.zeros(4), requires_grad=False)
            if mended:
                nn.init.constant_(self.gamma, 1e-5)

        def forward(self, x):
            return self.head(x + self.gamma * F.gelu(self.fc(x)))  # zero

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)
