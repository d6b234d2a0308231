"""Healthy trainings of a few hundred steps: what no rule may find anything wrong with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from rules.small_transformers import Decoder
from rules.watched import Watched

STEPS = 320
TRAININGS: dict[str, Callable[[int], Watched]] = {}


def training(build: Callable[[], Watched]) -> Callable[[int], Watched]:
    """Put a training into the table, with a seed for its argument."""

    def seeded(seed: int = 0) -> Watched:
        torch.manual_seed(seed)
        return build()

    TRAININGS[build.__name__] = seeded
    return seeded


def blobs(count: int, noise: float = 1.0, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around a center for each class, the centers fixed."""
    centers = torch.randn(classes, 16, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, classes, (count,))
    return centers[y] + noise * torch.randn(count, 16), y


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stripes of one of four directions, under noise."""
    y = torch.randint(0, 4, (count,))
    row, column = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    waves = torch.stack([row, column, row + column, row - column]).mul(1.3).sin()
    return waves[y].unsqueeze(1) + 0.5 * torch.randn(count, 1, 12, 12), y


def tokens(rows: int, length: int, words: int = 24) -> torch.Tensor:
    """A walk in which each word mostly follows from the one before."""
    found = [torch.randint(0, words, (rows,))]
    for _ in range(length):
        jump = torch.rand(rows) < 0.2
        found.append(
            torch.where(jump, torch.randint(0, words, (rows,)), (found[-1] * 5 + 3) % words)
        )
    return torch.stack(found, 1)


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for wide, out in pairwise(widths):
        layers += [nn.Linear(wide, out), act()]
    return nn.Sequential(*layers[:-1])


class TinyGpt(nn.Module):
    """Two pre-norm blocks, causal, with tied embeddings."""

    def __init__(self, words: int = 24, width: int = 32, length: int = 32):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        for embedding in (self.embed, self.place):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        n = ids.shape[1]
        x = self.embed(ids) + self.place(torch.arange(n))
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.head(self.norm(x))


class Cnn(nn.Module):
    """Convolutions with batch norm, dropout, a head."""

    def __init__(self, zero_init: bool = False):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.a = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        if zero_init:
            nn.init.zeros_(self.norm.weight)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(x + self.norm(self.a(x)))
        return self.head(self.drop(x.mean((2, 3))))


def next_word(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@training
def mlp_adam() -> Watched:
    model = mlp(16, 64, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = blobs(32, 1.5)
        run.step(adam, lambda x=x, y=y: F.cross_entropy(model(x), y))
    return run


@training
def overfitted_to_zero() -> Watched:
    """A few samples, learned by heart: losses fall to 1e-4 and below, with leaps between."""
    model, (x, y) = mlp(16, 64, 64, 5), blobs(64, 2.0)
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    for _ in range(2 * STEPS):
        some = torch.randperm(64)[:8]
        run.step(sgd, lambda some=some: F.cross_entropy(model(x[some]), y[some]))
    return run


@training
def cnn_cosine() -> Watched:
    model = Cnn()
    run = Watched({"model": model})
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, STEPS)
    for _ in range(STEPS):
        x, y = pictures(16)
        run.step(sgd, lambda x=x, y=y: F.cross_entropy(model(x), y))
        schedule.step()
    return run


@training
def zero_init_residual_with_warmup_from_zero() -> Watched:
    model = Cnn(zero_init=True)
    run = Watched({"model": model})
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warm = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: min(1.0, step / 40))
    for _ in range(STEPS):
        x, y = pictures(16)
        run.step(sgd, lambda x=x, y=y: F.cross_entropy(model(x), y))
        warm.step()
    return run


@training
def gpt_warmup_cosine_clip() -> Watched:
    model = TinyGpt()
    run = Watched({"model": model}, every=10)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    course = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, STEPS, pct_start=0.1)
    for _ in range(STEPS):
        ids = tokens(8, 16)
        run.step(adam, lambda ids=ids: next_word(model, ids), clip=1.0)
        course.step()
    return run


@training
def lstm_words_sgd_clip() -> Watched:
    """Nearly every step is clipped, by a small factor, and it learns."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(24, 32)
            self.lstm = nn.LSTM(32, 48, batch_first=True)
            self.head = nn.Linear(48, 24)

        def forward(self, ids):
            return self.head(self.lstm(self.embed(ids))[0])

    model = Words()
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=20.0)
    for _ in range(STEPS):
        ids = tokens(16, 20)
        run.step(sgd, lambda ids=ids: next_word(model, ids), clip=0.03)
    return run


@training
def vae_adam() -> Watched:
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.mu, self.log = mlp(16, 48, 48), nn.Linear(48, 4), nn.Linear(48, 4)
            self.decode = mlp(4, 48, 16)

        def forward(self, x):
            h = F.relu(self.encode(x))
            mu, log = self.mu(h), self.log(h)
            back = self.decode(mu + torch.randn_like(mu) * (log / 2).exp())
            divergence = -0.5 * (1 + log - mu**2 - log.exp()).sum(1)
            return ((back - x) ** 2).sum(1) + divergence

    model = Vae()
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, _ = blobs(32, 0.5)
        run.step(adam, lambda x=x: model(x).mean())
    return run


def _gan_parts() -> tuple[nn.Module, nn.Module]:
    made = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
    judge = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    return made, judge


@training
def gan_two_optimizers() -> Watched:
    """DCGAN's loop: real and fake in one step, the other net's gradients left standing."""
    net_g, net_d = _gan_parts()
    run = Watched({"netG": net_g, "netD": net_d})
    opt_d = torch.optim.Adam(net_d.parameters(), 2e-4, betas=(0.5, 0.999))
    opt_g = torch.optim.Adam(net_g.parameters(), 2e-4, betas=(0.5, 0.999))
    bce, one, none = F.binary_cross_entropy_with_logits, torch.ones(32, 1), torch.zeros(32, 1)
    for _ in range(STEPS):
        x, _ = blobs(32, 0.3)
        z = torch.randn(32, 8)

        def judged(x=x, z=z):
            return bce(net_d(x), one) + bce(net_d(net_g(z).detach()), none)

        run.step(opt_d, judged, name="optimizerD")
        run.step(opt_g, lambda z=z: bce(net_d(net_g(z)), one), name="optimizerG")
    return run


@training
def gan_in_one_module() -> Watched:
    """pix2pix's loop: both nets in one module, the judge frozen while the other one trains."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.g, _ = _gan_parts()
            self.d = nn.Sequential(
                nn.Linear(16, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
            )

        def forward(self, z, x=None):
            return self.d(self.g(z) if x is None else torch.cat([self.g(z).detach(), x]))

    model = Both()
    run = Watched({"model": model})
    opt_d = torch.optim.Adam(model.d.parameters(), 2e-4, betas=(0.5, 0.999))
    opt_g = torch.optim.Adam(model.g.parameters(), 2e-4, betas=(0.5, 0.999))
    bce = F.binary_cross_entropy_with_logits
    both = torch.cat([torch.zeros(16, 1), torch.ones(16, 1)])
    for _ in range(STEPS // 2):
        x, _ = blobs(16, 0.3)
        z = torch.randn(16, 8)
        model.d.requires_grad_(True)
        run.step(opt_d, lambda x=x, z=z: bce(model(z, x), both), name="optimizer_D")
        model.d.requires_grad_(False)
        run.step(opt_g, lambda z=z: bce(model(z), torch.ones(16, 1)), name="optimizer_G")
    return run


@training
def wgan_five_to_one() -> Watched:
    """A critic with clipped weights takes five steps for each of the generator's."""
    net_g, net_d = _gan_parts()
    run = Watched({"generator": net_g, "critic": net_d})
    opt_d = torch.optim.RMSprop(net_d.parameters(), 5e-4)
    opt_g = torch.optim.RMSprop(net_g.parameters(), 5e-4)
    for i in range(STEPS):
        x, _ = blobs(32, 0.3)
        z = torch.randn(32, 8)

        def distance(x=x, z=z):
            return net_d(net_g(z).detach()).mean() - net_d(x).mean()

        run.step(opt_d, distance, name="opt_critic")
        for p in net_d.parameters():
            p.data.clamp_(-0.1, 0.1)
        if i % 5 == 4:
            run.step(opt_g, lambda z=z: -net_d(net_g(z)).mean(), name="opt_generator")
    return run


@training
def actor_critic() -> Watched:
    """Episodes of varying length, returns with heavy tails, losses of both signs."""
    body, actor, critic = nn.Linear(4, 64), nn.Linear(64, 2), nn.Linear(64, 1)
    model = nn.ModuleDict({"body": body, "actor": actor, "critic": critic})

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, s):
            h = F.relu(body(s))
            return F.log_softmax(actor(h), -1), critic(h).squeeze(-1)

    policy = Policy()
    run, adam = Watched({"policy": policy}), torch.optim.Adam(policy.parameters(), lr=1e-2)
    skill = 0.0
    for _ in range(STEPS):
        length = int(10 + (20 + 60 * skill) * torch.rand(()).item() ** 2)
        states = torch.randn(length, 4)
        rewards = 1 + (states[:, 0] > 0).float()
        returns = torch.stack([rewards[i:].sum() for i in range(length)])

        def loss(states=states, returns=returns):
            logp, value = policy(states)
            action = torch.distributions.Categorical(logits=logp.detach()).sample()
            gain = (returns - returns.mean()) / (returns.std() + 1e-6) - value.detach()
            chosen = logp.gather(1, action.unsqueeze(1)).squeeze(1)
            return (-chosen * gain).sum() + F.smooth_l1_loss(value, returns, reduction="sum") / 10

        run.step(adam, loss)
        skill = min(1.0, skill + 1 / STEPS)
    return run


@training
def q_learning_with_a_target() -> Watched:
    """The loss rises before it falls: the targets move."""
    model = mlp(4, 64, 3)
    target = copy.deepcopy(model)
    run, adam = Watched({"policy_net": model}), torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i in range(STEPS):
        s, t = torch.randn(32, 4), torch.randn(32, 4)
        a = torch.randint(0, 3, (32, 1))
        reward = s[:, 0].sign() * (a.squeeze(1) - 1)
        with torch.no_grad():
            goal = reward + 0.9 * target(t).max(1).values
        run.step(
            adam,
            lambda s=s, a=a, g=goal: F.smooth_l1_loss(model(s).gather(1, a).squeeze(1), g),
        )
        if i % 20 == 19:
            target.load_state_dict(model.state_dict())
    return run


@training
def autoencoder_rmsprop_on_plateau() -> Watched:
    """Down to the noise, where a scheduler lowers the learning rate again and again."""
    model = mlp(16, 32, 4, 32, 16, act=nn.ELU)
    run, rms = Watched({"model": model}), torch.optim.RMSprop(model.parameters(), lr=3e-3)
    lower = torch.optim.lr_scheduler.ReduceLROnPlateau(rms, patience=20, min_lr=1e-6)
    for _ in range(STEPS):
        x, _ = blobs(32, 0.3)
        lower.step(run.step(rms, lambda x=x: F.mse_loss(model(x), x)))
    return run


@training
def lora_on_a_frozen_base() -> Watched:
    class Lora(nn.Module):
        def __init__(self, base: nn.Linear):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(4, base.in_features) / base.in_features**0.5)
            self.b = nn.Parameter(torch.zeros(base.out_features, 4))

        def forward(self, x):
            return self.base(x) + x @ self.a.T @ self.b.T

    model = nn.Sequential(Lora(nn.Linear(16, 64)), nn.GELU(), Lora(nn.Linear(64, 5)))
    held = [p for p in model.parameters() if p.requires_grad]
    run, adam = Watched({"model": model}), torch.optim.AdamW(held, lr=2e-3)
    for _ in range(STEPS):
        x, y = blobs(32)
        run.step(adam, lambda x=x, y=y: F.cross_entropy(model(x), y))
    return run


@training
def two_tasks_in_turns() -> Watched:
    """One optimizer, two heads, and each batch is of one task."""

    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(16, 64, 64)
            self.heads = nn.ModuleList([nn.Linear(64, 5), nn.Linear(64, 5)])

        def forward(self, x, task):
            return self.heads[task](F.relu(self.body(x)))

    model = Tasks()
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(STEPS):
        x, y = blobs(32)
        run.step(adam, lambda x=x, y=y, t=i % 2: F.cross_entropy(model(x, t), (y + t) % 5))
    return run


@training
def experts_that_the_data_choose() -> Watched:
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(16, 6)
            self.experts = nn.ModuleList(mlp(16, 24, 5) for _ in range(6))

        def forward(self, x):
            scores = self.gate(x).softmax(1)
            weight, chosen = scores.max(1)
            out = torch.zeros(len(x), 5)
            for i, expert in enumerate(self.experts):
                rows = (chosen == i).nonzero().squeeze(1)
                if len(rows):
                    out = out.index_add(0, rows, weight[rows, None] * expert(x[rows]))
            return out, scores

    model = Experts()
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(STEPS):
        x, y = blobs(16)

        def loss(x=x, y=y):
            out, scores = model(x)
            return F.cross_entropy(out, y) + 4 * (scores.mean(0) ** 2).sum()

        run.step(adam, loss)
    return run


@training
def mixture_of_experts_with_a_balancing_loss() -> Watched:
    model = Decoder(blocks=1, mixture=True)
    run, adam = Watched({"model": model}, every=10), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        ids = tokens(8, 16)
        run.step(adam, lambda ids=ids: next_word(model, ids) + 0.01 * model.balance)
    return run


@training
def gates_that_begin_at_zero() -> Watched:
    model = Decoder(blocks=2)
    for block in model.blocks:
        nn.init.zeros_(block.gate)
    run, adam = Watched({"model": model}, every=10), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        ids = tokens(8, 16)
        run.step(adam, lambda ids=ids: next_word(model, ids))
    return run


@training
def noisy_regression_at_its_floor() -> Watched:
    """It has learned all there is after 60 steps; the rest is noise."""
    model, truth = nn.Linear(16, 1), torch.randn(16, 1)
    run, sgd = Watched({"model": model}), torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2 * STEPS):
        x = torch.randn(32, 16)
        y = x @ truth + torch.randn(32, 1)
        run.step(sgd, lambda x=x, y=y: F.mse_loss(model(x), y))
    return run


@training
def contrastive_pairs() -> Watched:
    model = mlp(16, 64, 32)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, _ = blobs(24, 1.0)
        a, b = x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)

        def loss(a=a, b=b):
            one, other = F.normalize(model(a), dim=1), F.normalize(model(b), dim=1)
            return F.cross_entropy(one @ other.T / 0.2, torch.arange(24))

        run.step(adam, loss)
    return run


@training
def triplets_that_are_mostly_solved() -> Watched:
    """A hinge: many batches have a loss of exactly zero, and no gradient."""
    model = mlp(16, 32, 8)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = blobs(8, 0.8)
        far, other = blobs(8, 0.8)
        near = x + 0.8 * torch.randn_like(x)

        def loss(x=x, near=near, far=far, other=other, y=y):
            keep = (y != other).float()
            margin = F.triplet_margin_loss(model(x), model(near), model(far), reduction="none")
            return (keep * margin).mean()

        run.step(adam, loss)
    return run


@training
def denoising_at_random_levels() -> Watched:
    model = mlp(17, 64, 64, 16, act=nn.SiLU)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, _ = blobs(32, 0.3)
        level, noise = torch.rand(32, 1), torch.randn(32, 16)
        seen = (1 - level) * x + level * noise
        run.step(
            adam,
            lambda s=seen, t=level, n=noise: F.mse_loss(model(torch.cat([s, t], 1)), n),
        )
    return run


@training
def mixed_precision_that_finds_its_scale() -> Watched:
    """A scaler halves its scale a few times at first, and now and then when it grew too far."""
    model = mlp(16, 64, 5)
    run, adam = Watched({"model": model}), torch.optim.Adam(model.parameters(), lr=1e-3)
    scale = 65536.0
    for i in range(STEPS):
        x, y = blobs(32, 1.5)
        if i in (1, 2, 3, 4):
            scale /= 2
        elif i % 40 == 39:
            scale *= 2
        elif i % 40 == 0 and i:
            scale /= 2
        run.step(adam, lambda x=x, y=y: F.cross_entropy(model(x), y), loss_scale=scale)
    return run


@training
def gradual_thaw() -> Watched:
    """The head alone for 100 steps, then all of it: a second group joins the optimizer."""
    model = mlp(16, 64, 64, 5)
    model[:4].requires_grad_(False)
    run = Watched({"model": model})
    adam = torch.optim.Adam(model[4:].parameters(), lr=1e-3)
    for i in range(STEPS):
        if i == 100:
            model.requires_grad_(True)
            adam.add_param_group({"params": list(model[:4].parameters()), "lr": 3e-4})
        x, y = blobs(32, 1.5)
        run.step(adam, lambda x=x, y=y: F.cross_entropy(model(x), y))
    return run
