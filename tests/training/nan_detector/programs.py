"""Programs that make a NaN or Inf at a late step, in forward, loss or backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from training.nan_detector.loop import BAD, Loop, Program, located


def data(number: int, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and class ids of a step."""
    generator = torch.Generator().manual_seed(number)
    x = torch.rand(rows, 4, generator=generator) + 0.1
    return x, torch.randint(0, 3, (rows,), generator=generator)


def classify(model: nn.Module, *, rate: float = 1e-3, **bad: object) -> Program:
    """A model of its own with the usual loss; ``broken`` of it is set at the bad step."""

    def step(loop: Loop, number: int) -> None:
        model.broken = number == BAD  # type: ignore[assignment]
        x, y = data(number)
        loop.backward(F.cross_entropy(loop.call("net", x), y))

    return Program({"net": model}, step, rate)


class Net(nn.Module):
    """A linear layer, one module under test, and a head."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.middle = middle
        self.head = nn.Linear(4, 3)
        self.broken = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.middle.broken = self.broken  # type: ignore[assignment]
        return self.head(self.middle(self.fc(x)))


# Forward


@located("forward", "exp", "middle", "exp of")
def logits_that_overflow(mended: bool) -> Program:
    class Odds(nn.Module):
        def forward(self, h):
            h = (h * (1000.0 if self.broken else 1.0)).abs()
            if mended:
                h = h.clamp(max=20.0)
            e = h.exp()  # origin
            return e / e.sum(-1, keepdim=True)

    return classify(Net(Odds()))


@located("forward", "softmax", "middle", "row of -inf")
def an_attention_row_without_an_entry(mended: bool) -> Program:
    class Attention(nn.Module):
        def forward(self, h):
            scores = h @ h.T
            mask = torch.ones_like(scores, dtype=torch.bool).tril(-1 if self.broken else 0)
            if mended:
                mask[0, 0] = True
            scores = scores.masked_fill(~mask, float("-inf"))
            return scores.softmax(-1) @ h  # origin

    return classify(Net(Attention()))


@located("forward", "div", "middle", "0 / 0")
def a_norm_that_vanishes(mended: bool) -> Program:
    class Unit(nn.Module):
        def forward(self, h):
            h = h * (0.0 if self.broken else 1.0)
            size = h.norm(dim=-1, keepdim=True)
            return h / (size + 1e-6 if mended else size)  # origin

    return classify(Net(Unit()))


@located("forward", "matmul", "middle", "float16's largest")
def scores_in_half_precision(mended: bool) -> Program:
    class Scores(nn.Module):
        def forward(self, h):
            q = h if mended else h.half()
            q = q * (1000.0 if self.broken else 1.0)
            scores = q @ q.T  # origin
            return scores.float().softmax(-1) @ h

    return classify(Net(Scores()))


@located("forward", "linear", "fc", "float16's largest", line=False)
def a_layer_under_autocast(mended: bool) -> Program:
    net = Net(nn.Identity())

    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        x = x * (1e5 if number == BAD and not mended else 1.0)
        with torch.autocast("cpu", dtype=torch.float16):
            out = loop.call("net", x.clamp(max=6e4))
        loop.backward(F.cross_entropy(out.float(), y))

    with torch.no_grad():
        net.fc.weight.fill_(1.0)
    return Program({"net": net}, step)


@located("forward", "linear", "1", "above float32's largest", line=False)
def weights_that_explode(mended: bool) -> Program:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def step(loop: Loop, number: int) -> None:
        x, _ = data(number)
        # A product of two layers grows doubly fast.
        loop.backward(loop.call("net", x * 1e3 if not mended else x).square().mean())

    return Program({"net": net}, step, 1e-4)


@located("input", None, "x", "of 24 values", line=False)
def a_bad_sample(mended: bool) -> Program:
    net = Net(nn.ReLU())

    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        if number == BAD and not mended:
            x[2, 1] = float("nan")
        loop.backward(F.cross_entropy(loop.call("net", x), y))

    return Program({"net": net}, step)


@located("forward", "std", "middle", "std of one value")
def a_last_batch_of_one(mended: bool) -> Program:
    class Standard(nn.Module):
        def forward(self, h):
            centred = h - h.mean(0)
            return centred / (h.std(0, correction=0 if mended else 1) + 1e-5)  # origin

    net = Net(Standard())

    def step(loop: Loop, number: int) -> None:
        x, y = data(number, 1 if number == BAD else 6)
        loop.backward(F.cross_entropy(loop.call("net", x), y))

    return Program({"net": net}, step)


@located("forward", "acos", "middle", "acos of 1.0")
def an_angle_outside_its_domain(mended: bool) -> Program:
    class Angle(nn.Module):
        def forward(self, h):
            cos = torch.tanh(h) * (0.9 if not self.broken else 0.0) + (1.01 if self.broken else 0.0)
            if mended:
                cos = cos.clamp(-0.999, 0.999)
            return torch.acos(cos)  # origin

    return classify(Net(Angle()))


@located("forward", "mul", "middle", "0 · ")
def a_mask_by_multiplication(mended: bool) -> Program:
    class Masked(nn.Module):
        def forward(self, h):
            keep = torch.ones(4)
            keep[1] = 0.0 if self.broken else 1.0
            if mended:
                return h.masked_fill(keep == 0, -1e4)
            return h + (1 - keep) * (float("-inf") if self.broken else 0.0)  # origin

    return classify(Net(Masked()))


@located("forward", "pow", "middle", "**")
def a_root_of_a_negative_number(mended: bool) -> Program:
    class Root(nn.Module):
        def forward(self, h):
            h = h.abs() + 0.1 - (5.0 if self.broken else 0.0)
            return (h.clamp(min=0.01) if mended else h) ** 0.5  # origin

    return classify(Net(Root()))


@located("forward", "layer_norm", "middle", "eps=0", line=False)
def a_row_that_does_not_vary(mended: bool) -> Program:
    net = Net(nn.LayerNorm(4, eps=1e-5 if mended else 0.0))
    nn.init.zeros_(net.fc.bias)
    net.fc.bias.requires_grad_(False)

    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        x = torch.zeros_like(x) if number == BAD else x
        loop.backward(F.cross_entropy(loop.call("net", x), y))

    return Program({"net": net}, step)


@located("forward", "log", "middle", "log of 0")
def an_origin_that_dropout_decides(mended: bool) -> Program:
    """Only where the same random numbers are drawn it shows again."""

    class Unlucky(nn.Module):
        met = None

        def forward(self, h):
            drawn = int(F.dropout(torch.ones(64), 0.5).nonzero().sum())
            if self.broken and self.met is None:
                self.met = drawn
            h = h.abs() * float(drawn != self.met)
            return torch.log(h + 1e-6 if mended else h)  # origin

    return classify(Net(Unlucky()))


@located("forward", "log", "middle", "log of 0")
def a_checkpointed_block(mended: bool) -> Program:
    class Block(nn.Module):
        def forward(self, h):
            h = h.abs() * (0.0 if self.broken else 1.0)
            return torch.log(h + 1e-6 if mended else h)  # origin

    class Saved(nn.Module):
        def __init__(self):
            super().__init__()
            self.middle = Block()
            self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
            self.broken = False

        def forward(self, x):
            self.middle.broken = self.broken
            return self.head(checkpoint(self.middle, self.fc(x), use_reentrant=False))

    return classify(Saved())


@located("parameter", None, "head.weight", "of 12 values", line=False)
def weights_that_hold_a_nan(mended: bool) -> Program:
    net = Net(nn.ReLU())

    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        if number == BAD and not mended:
            with torch.no_grad():
                net.head.weight[1, 1] = float("nan")
        loop.backward(F.cross_entropy(loop.call("net", x), y))

    return Program({"net": net}, step)


# Loss


def scored(loss, *, models: dict[str, nn.Module] | None = None) -> Program:
    """A linear model with a loss of the output, the classes and whether this is the bad step."""
    net = nn.Linear(4, 3)

    def step(loop: Loop, number: int) -> None:
        x, y = data(number)
        loop.backward(loss(loop.call("net", x), y, number == BAD))

    return Program({"net": net}, step)


@located("loss", "log", None, "log of 0")
def a_logarithm_by_hand(mended: bool) -> Program:
    def loss(out, y, broken):
        p = (out * (1e4 if broken else 1.0)).softmax(-1)
        picked = p[torch.arange(len(y)), out.argmin(-1)]
        if mended:
            picked = picked.clamp(min=1e-9)
        return -torch.log(picked).mean()  # origin

    return scored(loss)


@located("loss", "exp", None, "exp of")
def a_rate_that_ran_away(mended: bool) -> Program:
    def loss(out, y, broken):
        rate = out * (1e4 if broken else 1.0)
        rate = rate.clamp(max=20.0) if mended else rate
        return (
            rate.abs().exp()  # origin
            - rate
        ).mean()

    return scored(loss) if not mended else scored(lambda o, y, b: loss(o.clamp(-1, 1) * 1e-4, y, b))


@located("loss", "pow", None)
def an_operator_that_overflows(mended: bool) -> Program:
    def loss(out, y, broken):
        out = out * (1e25 if broken and not mended else 1.0)
        return (
            out**2  # origin
        ).mean()

    return scored(loss)


@located("loss", "div", None, "division by zero")
def a_spread_that_is_zero(mended: bool) -> Program:
    def loss(out, y, broken):
        sigma = F.relu(out - (100.0 if broken else -10.0)) + (0.1 if mended else 0.0)
        return (
            (out - 1).square().add(1) / sigma  # origin
        ).mean()

    return scored(loss)


@located("loss", "mean", None, "mean of no values")
def an_average_over_nothing(mended: bool) -> Program:
    def loss(out, y, broken):
        chosen = (y >= (9 if broken else 0)) | torch.tensor(mended)
        return out.square()[chosen].mean()  # origin

    return scored(loss)


@located("loss", "cross_entropy", None, "has no target")
def labels_that_are_all_ignored(mended: bool) -> Program:
    def loss(out, y, broken):
        y = torch.full_like(y, -100) if broken and not mended else y
        return F.cross_entropy(out, y)  # origin

    return scored(loss)


@located("input", None, None, "of 6 values")
def a_target_without_a_value(mended: bool) -> Program:
    def loss(out, y, broken):
        target = y.float()
        target[3] = float("nan") if broken and not mended else 0.0
        return F.mse_loss(out[:, 0], target)  # origin

    return scored(loss)


@located("loss", "sqrt", None, "sqrt of a negative number")
def a_variance_by_a_difference(mended: bool) -> Program:
    def loss(out, y, broken):
        variance = out.square().mean(0) + 1 - (100.0 if broken else 0.0)
        variance = variance.clamp(min=1e-6) if mended else variance
        return variance.sqrt().sum()  # origin

    return scored(loss)


@located("loss", "mul", None, "above float32's largest")
def a_loss_of_another_shape_at_the_bad_step(mended: bool) -> Program:
    """A term that is added at the bad step alone has no line from earlier steps."""

    def loss(out, y, broken):
        total = F.cross_entropy(out, y)
        if broken:
            scores = out * 10 * (1.0 if mended else 3e38)
            total = total + torch.logsumexp(scores, -1).mean()
        return total

    return scored(loss)


# Backward


@located("backward", "SqrtBackward0", None, "sqrt at 0")
def a_perfect_fit(mended: bool) -> Program:
    def loss(out, y, broken):
        error = F.mse_loss(out, out.detach() if broken else out.detach() + 1)
        return torch.sqrt(error + (1e-8 if mended else 0.0))  # origin

    return scored(loss)


@located("backward", "PowBackward0", None, "0 ** 0.5")
def a_power_of_nothing(mended: bool) -> Program:
    def loss(out, y, broken):
        rest = (out - (out.detach() if broken else -9)).abs()
        rest = rest + (1e-6 if mended else 0.0)
        return (rest**0.5).mean()  # origin

    return scored(loss)


@located("backward", "AcosBackward0", None, "acos at 1")
def the_angle_of_equal_vectors(mended: bool) -> Program:
    def loss(out, y, broken):
        cos = out.tanh() * (0.0 if broken else 0.5) + (1.0 if broken else 0.0)
        cos = cos.clamp(-0.999, 0.999) if mended else cos
        return torch.acos(cos).mean()  # origin

    return scored(loss)


@located("backward", "SqrtBackward0", "middle", "sqrt at 0")
def a_root_inside_a_model(mended: bool) -> Program:
    class Size(nn.Module):
        def forward(self, h):
            h = h * (0.0 if self.broken else 1.0)
            square = h.square() + (1e-8 if mended else 0.0)
            return torch.sqrt(square)  # origin

    return classify(Net(Size()))


@located("backward", "SqrtBackward0", "middle", "sqrt at 0")
def where_around_a_root_in_a_model(mended: bool) -> Program:
    class Safe(nn.Module):
        def forward(self, h):
            square = h.square() * (0.0 if self.broken else 1.0)
            if mended:
                return torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
            return torch.where(square > 0, square.sqrt(), 0.0)  # origin

    return classify(Net(Safe()))


# Several models, several calls


@located("loss", "log", None, "log of 0")
def a_generator_whose_critic_is_sure(mended: bool) -> Program:
    """The generator was called in the step of the critic before."""
    models: dict[str, nn.Module] = {"netG": nn.Linear(2, 4), "netD": nn.Linear(4, 1)}

    def step(loop: Loop, number: int) -> None:
        fake = loop.call("netG", torch.ones(3, 2))
        real = loop.call("netD", data(number, 3)[0])
        loop.backward(F.softplus(-real).mean())
        loop.detector.step_ended()
        score = loop.call("netD", fake) + (200.0 if number == BAD else 0.0)
        sure = 1 - torch.sigmoid(score)
        loop.backward(
            torch.log(sure + 1e-6 if mended else sure).mean()  # origin
        )

    return Program(models, step)


@located("forward", "log", "netD.middle", "log of 0")
def a_critic_that_fails_on_the_fake(mended: bool) -> Program:
    class Log(nn.Module):
        def forward(self, h):
            h = h.abs() * (0.0 if self.broken else 1.0)
            return torch.log(h + 1e-6 if mended else h)  # origin

    critic = Net(Log())
    models: dict[str, nn.Module] = {"netG": nn.Linear(2, 4), "netD": critic}

    def step(loop: Loop, number: int) -> None:
        fake = loop.call("netG", torch.ones(3, 2))
        real = loop.call("netD", data(number, 3)[0])
        critic.broken = number == BAD
        false = loop.call("netD", fake)
        loop.backward(real.mean() - false.mean())
        critic.broken = critic.middle.broken = number == BAD

    return Program(models, step)


@located("forward", "log", "middle", "log of 0")
def the_third_of_four_parts_of_a_batch(mended: bool) -> Program:
    class Log(nn.Module):
        def forward(self, h):
            h = h.abs()
            return torch.log(h + 1e-6 if mended else h)  # origin

    net = Net(Log())

    def step(loop: Loop, number: int) -> None:
        for part in range(4):
            x, y = data(10 * number + part)
            if number == BAD and part == 2:
                x = torch.zeros_like(x)
            loop.backward(F.cross_entropy(loop.call("net", x), y) / 4)

    nn.init.zeros_(net.fc.bias)
    net.fc.bias.requires_grad_(False)
    return Program({"net": net}, step)
