"""Trainings in which something goes wrong on the way, each with its mended twin.

The finding that each must get: code, place, and the steps in which it begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import nn

from gradscope.records.training import TrainingFinding
from rules.healthy_trainings import Cnn, TinyGpt, blobs, mlp, next_word, pictures, tokens
from rules.small_transformers import Decoder
from rules.watched import Watched

STEPS, LONG = 250, 1040


@dataclass(frozen=True)
class Trouble:
    """A broken training, and what must be found in it."""

    build: Callable[[bool], Watched]
    code: str
    names: tuple[str, ...]
    severity: str
    #: In which steps the finding begins.
    begins: tuple[int, int]

    def found_in(self, findings: tuple[TrainingFinding, ...]) -> bool:
        low, high = self.begins
        return any(
            one.finding.code == self.code
            and one.finding.severity == self.severity
            and any(fnmatchcase(one.finding.name, name) for name in self.names)
            and low <= one.steps[0][0] <= high
            for one in findings
        )


TROUBLES: dict[str, Trouble] = {}


def trouble(
    code: str, *names: str, begins: tuple[int, int], severity: str = "warning"
) -> Callable[[Callable[[bool], Watched]], Callable[[bool], Watched]]:
    """Put a training into the table; ``names`` are patterns, none stands for the optimizer."""

    def keep(build: Callable[[bool], Watched]) -> Callable[[bool], Watched]:
        @functools.wraps(build)
        def seeded(mended: bool) -> Watched:
            torch.manual_seed(0)
            return build(mended)

        key = build.__name__
        assert key not in TROUBLES, f"two trainings are called {key}"
        TROUBLES[key] = Trouble(seeded, code, names or ("optimizer",), severity, begins)
        return seeded

    return keep


def classified(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: F.cross_entropy(model(x), y)


# ------------------------------------------------------------------ GS615 to GS617: updates


@trouble("GS615", begins=(121, 121))
def an_optimizer_made_anew(mended: bool) -> Watched:
    """After an evaluation the script makes Adam once more: its moments are gone."""
    model = TinyGpt()
    run = Watched({"model": model}, every=10)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for i in range(140):
        if i == 120 and not mended:
            adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
        run.step(adam, lambda: next_word(model, tokens(8, 16)))
    return run


@trouble("GS615", begins=(241, 241))
def moments_that_a_checkpoint_left_out(mended: bool) -> Watched:
    """The weights are set back to a checkpoint, and the state is cleared for it."""
    model = mlp(16, 64, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(STEPS):
        if i == 240 and not mended:
            adam.state.clear()
        run.step(adam, classified(model, *blobs(32, 1.5)))
    return run


@trouble("GS616", begins=(110, 120))
def a_factor_above_one_after_the_warm_up(mended: bool) -> Watched:
    """The loss doubles at step 199."""
    model = TinyGpt()
    run = Watched({"model": model}, every=10)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i in range(205):
        adam.param_groups[0]["lr"] = 1e-3 * (0.996 if mended else 1.04) ** max(0, i - 60)
        run.step(adam, lambda: next_word(model, tokens(16, 24)))
    return run


@trouble("GS616", begins=(105, 106))
def an_exponential_that_grows(mended: bool) -> Watched:
    """ExponentialLR with a gamma above 1, stepped by batches."""
    model = mlp(16, 64, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, gamma=0.99 if mended else 1.05)
    for _ in range(125):
        run.step(adam, classified(model, *blobs(32, 1.5)))
        schedule.step()
    return run


@trouble("GS617", begins=(111, 160))
def a_second_moment_of_one_wild_batch(mended: bool) -> Watched:
    """One batch has a gradient a thousand times as large, and is not clipped."""
    model = mlp(16, 64, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-4)
    for i in range(170):
        x, y = blobs(32, 1.5)
        wild = 1e3 if i == 110 and not mended else 1.0
        run.step(adam, lambda x=x, y=y, wild=wild: F.cross_entropy(model(x), y) * wild)
    return run


@trouble("GS617", begins=(111, 160))
def a_second_moment_of_one_summed_batch(mended: bool) -> Watched:
    """One batch is summed and not averaged, without a norm of its inputs."""
    model = mlp(16, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.AdamW(model.parameters(), lr=1e-4)
    for i in range(170):
        x, y = blobs(32, 1.5)
        wild = 3e3 if i == 110 and not mended else 1.0
        run.step(adam, lambda x=x, y=y, wild=wild: F.cross_entropy(model(x), y) * wild)
    return run


# ------------------------------------------------------------------ GS621: divergence


def _regression(rate: float) -> Watched:
    """A linear target of inputs of deviation 3, by SGD."""
    net, truth = mlp(10, 50, 1), torch.randn(10, 1)
    run, sgd = Watched({"model": net}), torch.optim.SGD(net.parameters(), lr=rate)
    for _ in range(60):
        x = 3 * torch.randn(50, 10)
        run.step(sgd, lambda x=x: F.mse_loss(net(x), x @ truth))
    return run


@trouble("GS621", begins=(4, 5), severity="error")
def a_rate_that_diverges(mended: bool) -> Watched:
    """Loss and gradient grow at each step, and are Inf in the fourth."""
    return _regression(1e-3 if mended else 0.5)


@trouble("GS621", begins=(4, 6), severity="error")
def an_autoencoder_that_diverges(mended: bool) -> Watched:
    """Two linear layers with momentum; all steps have the same batch."""
    net = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 20))
    rate = 1e-2 if mended else 3.0
    run = Watched({"model": net})
    sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    x = 3 * torch.randn(64, 20)
    for _ in range(60):
        run.step(sgd, lambda: F.mse_loss(net(x), x))
    return run


# ------------------------------------------------------------------ GS620: the first update


def warmed(optimizer: torch.optim.Optimizer, rate: float, i: int, mended: bool) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, (i + 1) / 40) if mended else rate


@trouble("GS620", "blocks.*", begins=(1, 1))
def a_decoder_without_a_warm_up(mended: bool) -> Watched:
    """With one it learns at this rate; without, its loss has doubled at step 3."""
    model = Decoder(width=128, blocks=4, norm=True)
    run, adam = Watched({"model": model}), torch.optim.AdamW(model.parameters())
    for i in range(45 if mended else 10):
        warmed(adam, 0.1, i, mended)
        run.step(adam, lambda: next_word(model, tokens(8, 16)))
    return run


@trouble("GS620", "*.weight", begins=(1, 1))
def rmsprop_without_a_warm_up(mended: bool) -> Watched:
    """Its first step is ten times the learning rate: the loss has doubled at step 2."""
    model = mlp(16, 512, 512, 5)
    run, rms = Watched({"model": model}), torch.optim.RMSprop(model.parameters())
    for i in range(60 if mended else 10):
        warmed(rms, 3e-3, i, mended)
        run.step(rms, classified(model, *blobs(32, 1.5)))
    return run


# ------------------------------------------------------------------ GS601, GS602: spikes


@trouble("GS601", begins=(200, 200))
def a_batch_without_normalisation(mended: bool) -> Watched:
    """One file of the data set was never scaled."""
    model = mlp(16, 64, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(215):
        x, y = blobs(32, 1.5)
        run.step(adam, classified(model, x * 255 if i == 199 and not mended else x, y))
    return run


@trouble("GS601", begins=(200, 200))
def a_shard_of_shuffled_labels(mended: bool) -> Watched:
    """A character model that knows its text gets ten batches of noise."""
    model = TinyGpt()
    run = Watched({"model": model}, every=10)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for i in range(215):
        ids = tokens(8, 16)
        if 199 <= i < 209 and not mended:
            ids = torch.randint(0, 24, ids.shape)
        run.step(adam, lambda ids=ids: next_word(model, ids), clip=1.0)
    return run


@trouble("GS601", begins=(111, 116))
def a_schedule_with_a_wild_step(mended: bool) -> Watched:
    """The learning rate is a thousand times too high for four steps, and training recovers."""
    model = mlp(16, 64, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(150):
        adam.param_groups[0]["lr"] = 1.0 if 110 <= i < 114 and not mended else 1e-3
        run.step(adam, classified(model, *blobs(32, 1.5)))
    return run


@trouble("GS602", begins=(120, 120))
def an_error_of_nearly_zero_under_a_root(mended: bool) -> Watched:
    """The loss of that step is as ever, and the slope of its root is not."""
    model = mlp(16, 32, 1)
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=1e-3)
    for i in range(130):
        x, y = torch.randn(8, 16), torch.randn(8, 1)
        if i == 119:
            y[0] = model(x).detach()[0] + 1e-6

        def loss(x=x, y=y):
            return ((model(x) - y).abs() + (1e-2 if mended else 0)).sqrt().mean()

        run.step(sgd, loss)
    return run


@trouble("GS602", begins=(110, 120))
def a_batch_that_is_summed(mended: bool) -> Watched:
    """After 110 steps the loss is the sum over the batch, no longer its mean."""
    model = mlp(16, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(150):
        x, y = blobs(64, 1.5)
        how = "sum" if i >= 110 and not mended else "mean"
        run.step(adam, lambda x=x, y=y, how=how: F.cross_entropy(model(x), y, reduction=how))
    return run


@trouble("GS602", "0.weight", begins=(140, 140))
def an_input_that_broke(mended: bool) -> Watched:
    """One feature of one batch is wild; behind it everything is bounded, and only the first layer
    sees it."""
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), *mlp(32, 32, 5))
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    layer = model[0]
    for i in range(160):
        x, y = blobs(32, 1.5)

        def loss(x=x, y=y, wild=i == 139 and not mended):
            weight = layer.weight * 1.0
            if wild:
                weight.register_hook(lambda g: g * 1e4)
            h = F.linear(x, weight, layer.bias)
            return F.cross_entropy(model[1:](h), y)

        run.step(adam, loss)
    return run


# ------------------------------------------------------------------ GS603: plateaus


@trouble("GS603", severity="info", begins=(900, 1040))
def targets_that_belong_to_other_inputs(mended: bool) -> Watched:
    model = mlp(16, 64, 5)
    run, sgd = Watched({"model": model}, every=20), torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(LONG):
        x, y = blobs(32)
        run.step(sgd, classified(model, x, y if mended else y[torch.randperm(32)]))
    return run


@trouble("GS603", severity="info", begins=(900, 1040))
def a_learning_rate_far_too_small(mended: bool) -> Watched:
    model = mlp(16, 64, 64, 5)
    run, lr = Watched({"model": model}, every=20), 0.05 if mended else 1e-8
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(LONG):
        run.step(sgd, classified(model, *blobs(32)))
    return run


@trouble("GS603", severity="info", begins=(900, 1040))
def too_fast_to_learn(mended: bool) -> Watched:
    """The first steps throw the network to where every unit is dead, and it guesses from then."""
    model, (x, y) = mlp(16, 64, 64, 5), blobs(64, 2.0)
    run, lr = Watched({"model": model}, every=20), 0.02 if mended else 0.1
    sgd = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    for _ in range(LONG):
        some = torch.randperm(64)[:8]
        run.step(sgd, classified(model, x[some], y[some]))
    return run


# ------------------------------------------------------------------ GS604: drift


@trouble("GS604", "0.weight", "2.weight", begins=(1, 180))
def a_loss_without_a_bound(mended: bool) -> Watched:
    """It rewards large outputs as such; weights only grow."""
    model = mlp(16, 32, 4)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(180):
        x, _ = blobs(32)

        def loss(x=x):
            out = model(x)
            return -(F.normalize(out, dim=1) if mended else out).pow(2).mean() + out[0, 0] * 0

        run.step(adam, loss)
    return run


@trouble("GS604", "*.weight", begins=(1, 180))
def a_penalty_with_the_wrong_sign(mended: bool) -> Watched:
    """The weights' size is subtracted from the loss, where it was meant to be added."""
    model, sign = mlp(16, 32, 5), 1 if mended else -1
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(180):
        x, y = blobs(32)

        def loss(x=x, y=y):
            size = sum(p.pow(2).sum() for p in model.parameters())
            return F.cross_entropy(model(x), y) + sign * 0.2 * size

        run.step(sgd, loss)
    return run


# ------------------------------------------------------------------ GS605: stalled layers


@trouble("GS605", "2.weight", begins=(150, 200))
def a_path_that_is_cut_later(mended: bool) -> Watched:
    """A second phase of the script detaches the body's last layer by mistake."""
    model = mlp(16, 64, 64, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(STEPS):
        x, y = blobs(32, 1.5)

        def loss(x=x, y=y, cut=i >= 150 and not mended):
            h = model[:2](x)
            w, b = model[2].weight, model[2].bias
            h = F.linear(h, w.detach() if cut else w, b)
            return F.cross_entropy(model[3:](h), y)

        run.step(adam, loss)
    return run


@trouble("GS605", "head.weight", begins=(150, 200))
def a_group_that_lost_its_learning_rate(mended: bool) -> Watched:
    """A custom scheduler sets the second group's learning rate to zero."""
    model = Cnn()
    run = Watched({"model": model})
    body = [p for name, p in model.named_parameters() if "head" not in name]
    sgd = torch.optim.SGD(body, lr=0.02, momentum=0.9)
    sgd.add_param_group({"params": list(model.head.parameters()), "lr": 0.05})
    for i in range(STEPS):
        if i == 150 and not mended:
            sgd.param_groups[1]["lr"] = 0.0
        run.step(sgd, classified(model, *pictures(16)))
    return run


# ------------------------------------------------------------------ GS606: epsilon


@trouble("GS606", "*", begins=(1, 60))
def a_loss_divided_by_too_much(mended: bool) -> Watched:
    """Divided by the size of the data set as well: gradients of 1e-7 meet an epsilon of 1e-3."""
    model = mlp(16, 64, 64, 5)
    run = Watched({"model": model})
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8 if mended else 1e-3)
    for _ in range(100):
        x, y = blobs(32, 1.5)
        run.step(adam, lambda x=x, y=y: F.cross_entropy(model(x), y) / 60_000)
    return run


@trouble("GS606", "*", begins=(1, 60))
def epsilon_of_another_framework(mended: bool) -> Watched:
    """RMSprop with the epsilon of 1 that a recipe for another one has."""
    model = Cnn()
    run = Watched({"model": model})
    rms = torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=1e-8 if mended else 1.0)
    for _ in range(100):
        run.step(rms, classified(model, *pictures(16)))
    return run


# ------------------------------------------------------------------ GS607: clipping


@trouble("GS607", severity="info", begins=(1, 1))
def clipping_to_a_thousandth(mended: bool) -> Watched:
    model = TinyGpt()
    run = Watched({"model": model}, every=10)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(70):
        ids = tokens(8, 16)
        run.step(adam, lambda ids=ids: next_word(model, ids), clip=1.0 if mended else 1e-3)
    return run


@trouble("GS607", begins=(1, 1))
def a_sum_clipped_as_a_mean(mended: bool) -> Watched:
    """A loss summed over the batch, with the bound of one that is averaged."""
    model = mlp(16, 64, 5)
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(100):
        x, y = blobs(128, 2.0)
        how = "mean" if mended else "sum"
        run.step(
            sgd, lambda x=x, y=y, how=how: F.cross_entropy(model(x), y, reduction=how), clip=1.0
        )
    return run


# ------------------------------------------------------------------ GS608: learning rate


@trouble("GS608", begins=(60, 70))
def a_linear_decay_for_a_shorter_run(mended: bool) -> Watched:
    model, total = mlp(16, 64, 5), 125 if mended else 60
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    down = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: max(0.0, 1 - step / total))
    for _ in range(125):
        run.step(adam, classified(model, *blobs(32, 1.5)))
        down.step()
    return run


@trouble("GS608", begins=(100, 160))
def an_exponential_stepped_by_batches(mended: bool) -> Watched:
    """Gamma 0.9 was meant for epochs."""
    model = mlp(16, 64, 5)
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=0.1)
    down = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)
    for i in range(STEPS):
        run.step(sgd, classified(model, *blobs(32, 1.5)))
        if not mended or i % 40 == 39:
            down.step()
    return run


# ------------------------------------------------------------------ GS609: loss scale


@trouble("GS609", begins=(17, 60))
def a_scale_that_never_fits(mended: bool) -> Watched:
    """Every second step overflows, and the scale ends below one."""
    model = mlp(16, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    scale = 65536.0
    for i in range(100):
        if i % 2 and (not mended or i < 8):
            scale /= 2
        run.step(adam, classified(model, *blobs(32, 1.5)), loss_scale=scale)
    return run


@trouble("GS609", begins=(70, 180))
def skips_that_come_back(mended: bool) -> Watched:
    """Late in training a tenth of all steps overflows; a short growth interval hides it."""
    model = mlp(16, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    scale = 1024.0
    for i in range(180):
        if i >= 40 and not mended and i % 8 == 0:
            scale /= 2
        elif i >= 40 and not mended and i % 8 == 4:
            scale *= 2
        run.step(adam, classified(model, *blobs(32, 1.5)), loss_scale=scale)
    return run


# ------------------------------------------------------------------ GS610: vanishing, standing


@trouble("GS610", "0", "2", begins=(1, 1))
def five_layers_of_sigmoids(mended: bool) -> Watched:
    """The loss stays at the logarithm of the number of classes."""
    model = mlp(16, 32, 32, 32, 32, 5, act=nn.ReLU if mended else nn.Sigmoid)
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        run.step(sgd, classified(model, *blobs(32, 1.5)))
    return run


@trouble("GS610", "*", begins=(1, 1))
def convolutions_with_weights_that_are_too_small(mended: bool) -> Watched:
    layers = [nn.Conv2d(1 if i == 0 else 8, 8, 3, padding=1) for i in range(6)]
    for layer in layers:
        if not mended:
            nn.init.normal_(layer.weight, std=0.02)
        else:
            nn.init.kaiming_normal_(layer.weight)
    body = [part for layer in layers for part in (layer, nn.ReLU())]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        run.step(sgd, classified(model, *pictures(16)))
    return run


# ------------------------------------------------------------------ rules of one step, in a run


@trouble("GS103", "*", begins=(70, 100))
def a_layer_that_dies_midway(mended: bool) -> Watched:
    """A wild step throws the biases of a ReLU layer far below zero: no unit of it wakes again."""
    model = mlp(16, 64, 64, 5)
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=0.05)
    for i in range(170):
        if i == 70 and not mended:
            with torch.no_grad():
                model[2].bias -= 100
        run.step(sgd, classified(model, *blobs(32, 1.5)))
    return run


@trouble("GS201", "0", begins=(100, 130))
def most_units_die_midway(mended: bool) -> Watched:
    """The same for three quarters of the units."""
    model = mlp(16, 64, 64, 5)
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=0.05)
    for i in range(210):
        if i == 100 and not mended:
            with torch.no_grad():
                model[0].bias[:48] -= 100
        run.step(sgd, classified(model, *blobs(32, 1.5)))
    return run


@trouble("GS101", "*", begins=(20, 120))
def decay_that_is_far_too_strong(mended: bool) -> Watched:
    """Weights shrink by a twentieth at each step, and with them what reaches the first layers."""
    model = mlp(16, 32, 32, 32, 32, 5, act=nn.Tanh)
    run, decay = Watched({"model": model}), 1e-4 if mended else 1.0
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=decay)
    for _ in range(120):
        run.step(sgd, classified(model, *blobs(32, 1.5)))
    return run


@trouble("GS301", "", severity="error", begins=(60, 60))
def a_logarithm_of_zero(mended: bool) -> Watched:
    model = mlp(16, 32, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(70):
        x, y = blobs(32)
        if i == 59:
            x = x * 1e4

        def loss(x=x, y=y):
            p = model(x).softmax(1)
            return -(p + (1e-8 if mended else 0)).log()[torch.arange(32), y].mean()

        run.step(adam, loss)
    return run


@trouble("GS104", "*", begins=(1, 1))
def steps_larger_than_the_weights(mended: bool) -> Watched:
    model = mlp(16, 64, 64, 5)
    run, lr = Watched({"model": model}), 0.01 if mended else 20.0
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(60):
        run.step(sgd, classified(model, *blobs(32, 1.5)))
    return run


@trouble("GS403", "stem.1", begins=(1, 1))
def frozen_statistics_that_move(mended: bool) -> Watched:
    model = Cnn()
    model.stem.requires_grad_(False)
    if mended:
        model.stem.eval()
    held = [p for p in model.parameters() if p.requires_grad]
    run, sgd = Watched({"model": model}), torch.optim.SGD(held, lr=0.05)
    for _ in range(60):
        run.step(sgd, classified(model, *pictures(16)))
    return run


@trouble("GS501", "*", severity="error", begins=(1, 1))
def a_softmax_before_the_cross_entropy(mended: bool) -> Watched:
    model = nn.Sequential(mlp(16, 32, 5), nn.Identity() if mended else nn.Softmax(1))
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(60):
        run.step(adam, classified(model, *blobs(32)))
    return run


# ------------------------------------------------------------------ GS304: steps that are rounded


@trouble("GS304", "*", begins=(1, 1))
def fine_tuning_in_bfloat16(mended: bool) -> Watched:
    """Steps of 1e-5 on weights around 0.1, whose numbers lie 0.0005 apart."""
    model = mlp(16, 64, 5)
    run = Watched({"model": model})
    adam = torch.optim.Adam((model if mended else model.bfloat16()).parameters(), lr=1e-5)
    for _ in range(STEPS):
        x, y = blobs(32, 1.5)
        run.step(adam, classified(model, x if mended else x.bfloat16(), y))
    return run


@trouble("GS304", "*", begins=(1, 1))
def a_small_rate_in_bfloat16(mended: bool) -> Watched:
    """The same with SGD, whose steps are as large as the gradient."""
    model = mlp(16, 64, 5)
    run = Watched({"model": model})
    sgd = torch.optim.SGD((model if mended else model.bfloat16()).parameters(), lr=1e-4)
    for _ in range(STEPS):
        x, y = blobs(32, 1.5)
        run.step(sgd, classified(model, x if mended else x.bfloat16(), y))
    return run


# ------------------------------------------------------------------ GS205 to GS209: transformers


#: Steps in which a finding of every tenth is there: of 4 samples, of 9, of 17.
FEW, MORE, MOST = 60, 140, 180


def decoded(
    model: Decoder, rate: Callable[[int], float], steps: int, balance: float = 0.0
) -> Watched:
    run = Watched({"model": model}, every=10)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i in range(steps):
        adam.param_groups[0]["lr"] = rate(i)
        ids = tokens(8, 16)

        def loss(ids: torch.Tensor = ids) -> torch.Tensor:
            found = next_word(model, ids)
            return found + balance * model.balance if balance else found

        run.step(adam, loss)
    return run


def steady(i: int) -> float:
    return 3e-3


@trouble("GS205", "blocks.*.attention", begins=(5, 60))
def queries_without_a_norm_at_a_high_rate(mended: bool) -> Watched:
    return decoded(Decoder(norm=mended), lambda i: 3e-3 if mended else 0.1, MOST if mended else FEW)


@trouble("GS205", "blocks.*.attention", begins=(5, 120))
def three_blocks_at_a_high_rate(mended: bool) -> Watched:
    return decoded(Decoder(blocks=3, norm=mended), lambda i: 3e-3 if mended else 0.1, FEW)


@trouble("GS206", "blocks.*.attention", begins=(3, 60))
def a_rate_that_saturates_the_softmax(mended: bool) -> Watched:
    return decoded(Decoder(), lambda i: 3e-3 if mended else 0.3, FEW)


@trouble("GS206", "blocks.*.attention", begins=(3, 120))
def one_block_whose_softmax_saturates(mended: bool) -> Watched:
    return decoded(Decoder(blocks=1), lambda i: 3e-3 if mended else 0.3, FEW)


@trouble("GS207", "blocks.*.attention", begins=(10, 160))
def scores_that_are_scaled_twice(mended: bool) -> Watched:
    return decoded(Decoder(scale=1.0 if mended else 1e-3), steady, MOST)


@trouble("GS207", "blocks.*.attention", begins=(10, 160))
def queries_that_are_zero(mended: bool) -> Watched:
    """A checkpoint without them, whose zeros were frozen with it."""
    model = Decoder(blocks=1)
    if not mended:
        for name in ("weight", "bias"):
            parameter = getattr(model.blocks[0].attention.qkv, name)
            parameter.data[:32] = 0
            parameter.register_hook(lambda g: torch.cat([torch.zeros_like(g[:32]), g[32:]]))
    return decoded(model, steady, MOST)


@trouble("GS208", "blocks.*.mlp", begins=(1, 120))
def a_router_without_a_balancing_loss(mended: bool) -> Watched:
    """The features have a common part, as those of a trained network."""
    model = Decoder(blocks=1, mixture=True)
    for block in model.blocks:
        nn.init.constant_(block.norm2.bias, 2.0)
    return decoded(model, steady, FEW, 0.05 if mended else 0.0)


@trouble("GS209", "blocks.2", begins=(20, 120))
def a_gate_that_does_not_train(mended: bool) -> Watched:
    model = Decoder(blocks=3)
    nn.init.zeros_(model.blocks[2].gate)
    model.blocks[2].gate.requires_grad_(mended)
    return decoded(model, steady, MORE)


@trouble("GS209", "blocks.1", begins=(20, 120))
def a_gate_in_the_middle_that_does_not_train(mended: bool) -> Watched:
    model = Decoder(blocks=3)
    nn.init.constant_(model.blocks[1].gate, 1e-9)
    model.blocks[1].gate.requires_grad_(mended)
    return decoded(model, steady, MORE)
