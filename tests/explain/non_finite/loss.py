"""Programs whose loss makes a NaN or Inf from finite numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.non_finite.cases import Program, origin

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])
INF = float("inf")


@origin("nan", "loss", "log", None, "log of -")
def logarithmic_error_of_a_negative_prediction(mended: bool) -> Program:
    """RMSLE on a regression head that nothing keeps positive."""
    net = nn.Linear(4, 1)
    nn.init.constant_(net.weight, 1.0)
    nn.init.constant_(net.bias, 1.0 if mended else 0.0)

    def forward():
        pred = net(X[1:] if mended else X)
        target = torch.ones_like(pred)
        return F.mse_loss(
            torch.log(pred + 1),  # origin
            torch.log(target + 1),
        )

    return Program(net, forward)


@origin("nan", "loss", "cross_entropy", None, "has no target")
def every_label_is_ignored(mended: bool) -> Program:
    """pytorch issue 116349: the mean over no label."""
    net = nn.Linear(4, 3)
    y = torch.tensor([-100, -100, 1 if mended else -100])
    return Program(net, lambda: F.cross_entropy(net(X), y))  # origin


@origin("nan", "loss", "cross_entropy", None, "weight")
def only_classes_of_weight_zero(mended: bool) -> Program:
    net = nn.Linear(4, 3)
    weight = torch.tensor([0.5 if mended else 0.0, 1.0, 1.0])
    y = torch.zeros(3, dtype=torch.long)
    return Program(net, lambda: F.cross_entropy(net(X), y, weight=weight))  # origin


@origin("nan", "loss", "mean", None, "mean of no values")
def mean_over_positives_of_a_batch_without_any(mended: bool) -> Program:
    """Detection: the box loss over matched anchors, in an image that has none."""
    net = nn.Linear(4, 4)
    matched = torch.tensor([mended, False, False])

    def forward():
        error = (net(X) - X).abs()
        return error[matched].mean() + 0.1 * error.sum()  # origin

    return Program(net, forward)


@origin("inf", "loss", "log", None, "log of 0")
def cross_entropy_of_probabilities_by_hand(mended: bool) -> Program:
    """Binary cross entropy written out, with a sigmoid that reached 1."""
    net = nn.Linear(4, 1)
    nn.init.constant_(net.bias, 100.0)
    y = torch.tensor([[1.0], [0.0], [1.0]])

    def forward():
        if mended:
            return F.binary_cross_entropy_with_logits(net(X), y)
        p = torch.sigmoid(net(X))
        return -(
            y * p.log() + (1 - y) * (1 - p).log()  # origin
        ).mean()

    return Program(net, forward)


@origin("inf", "loss", "log", None, "log of 0")
def divergence_from_a_distribution_with_zeros(mended: bool) -> Program:
    """Distillation: `kl_div(q.log(), p)` with a student that gives a class probability 0."""
    net = nn.Linear(4, 3)
    nn.init.constant_(net.bias, 0.0)
    with torch.no_grad():
        net.bias[2] = -1000
    p = torch.full((3, 3), 1 / 3)

    def forward():
        q = net(X).log_softmax(-1) if mended else net(X).softmax(-1).log()  # origin
        return F.kl_div(q, p, reduction="batchmean")

    return Program(net, forward)


@origin("inf", "loss", "sum", None, "float16's largest 65504")
def sum_of_a_picture_in_half_precision(mended: bool) -> Program:
    net = nn.Linear(4, 4).half()
    nn.init.constant_(net.bias, 20.0)
    x = torch.zeros(1000, 4, dtype=torch.float16)

    def forward():
        out = net(x)
        if mended:
            out = out.float()
        return out.sum() / 4000  # origin

    return Program(net, forward)


@origin("inf", "loss", "mse_loss", None, "float16's largest 65504")
def squared_error_in_half_precision(mended: bool) -> Program:
    """pytorch issue 8860: regression targets in metres, the loss in float16."""
    net = nn.Linear(4, 1).half()
    y = torch.full((3, 1), 300.0, dtype=torch.float16)

    def forward():
        out = net(X.half())
        return F.mse_loss(out.float(), y.float()) if mended else F.mse_loss(out, y)  # origin

    return Program(net, forward)


@origin("inf", "loss", "masked_fill", None, "-inf")
def contrast_without_positives(mended: bool) -> Program:
    """Supervised contrast: logsumexp over the positives of an anchor that has none."""
    net = nn.Linear(4, 4)
    same = torch.eye(3, dtype=torch.bool)
    same[1] = mended

    def forward():
        z = F.normalize(net(X), dim=-1)
        scores = z @ z.T
        positive = torch.logsumexp(
            scores.masked_fill(~same, -INF),  # origin
            dim=-1,
        )
        return (torch.logsumexp(scores, dim=-1) - positive).mean()

    return Program(net, forward)


@origin("inf", "loss", "div", None, "division by zero")
def gaussian_likelihood_with_a_dead_sigma(mended: bool) -> Program:
    """Regression with a predicted spread: ReLU makes it exactly 0."""
    net = nn.Linear(4, 2)
    nn.init.constant_(net.weight, 0.0)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.5, -1.0]))

    def forward():
        mu, sigma = net(X).unbind(-1)
        sigma = F.softplus(sigma) if mended else F.relu(sigma)
        return (
            (mu - 1) ** 2 / (2 * sigma**2)  # origin
        ).mean()

    return Program(net, forward)


@origin("inf", "loss", "ctc_loss", None, "too long for its input")
def a_transcript_longer_than_its_audio(mended: bool) -> Program:
    net = nn.Linear(4, 3)
    text = torch.tensor([[1, 2, 1, 2]])
    size = 2 if mended else 4

    def forward():
        scores = net(X).log_softmax(-1)[:, None]
        return F.ctc_loss(scores, text[:, :size], [3], [size])  # origin

    return Program(net, forward)


@origin("inf", "loss", "log", None, "log of 0")
def focal_loss_by_hand(mended: bool) -> Program:
    net = nn.Linear(4, 2)
    nn.init.constant_(net.weight, 0.0)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.0, 200.0]))

    def forward():
        logits = net(X)
        p = logits.softmax(-1)[:, 0]
        logp = logits.log_softmax(-1)[:, 0] if mended else torch.log(p)  # origin
        return -((1 - p) ** 2 * logp).mean()

    return Program(net, forward)


@origin("inf", "loss", "log", None, "log of 0")
def generator_loss_that_saturates(mended: bool) -> Program:
    """GAN: log(1 - D(G(z))) once the discriminator is sure of itself the wrong way."""
    net = nn.ModuleDict({"g": nn.Linear(2, 4), "d": nn.Linear(4, 1)})
    nn.init.constant_(net["d"].bias, 60.0)
    z = torch.ones(3, 2)

    def forward():
        score = net["d"](net["g"](z))
        if mended:
            return F.softplus(-score).mean()
        return torch.log(1 - torch.sigmoid(score)).mean()  # origin

    return Program(net, forward)


@origin("nan", "loss", "div", None, "0 / 0")
def overlap_of_two_empty_masks(mended: bool) -> Program:
    """Segmentation: the Dice of a class that is neither there nor predicted."""
    net = nn.Linear(4, 4)
    nn.init.constant_(net.bias, -200.0)
    truth = torch.zeros(3, 4)

    def forward():
        p = net(X).sigmoid()
        both = 2 * (p * truth).sum()
        total = p.pow(2).sum() + truth.sum()
        smooth = 1.0 if mended else 0.0
        return 1 - (both + smooth) / (total + smooth)  # origin

    return Program(net, forward)


@origin("inf", "loss", "exp", None, "exp of ")
def weights_of_tasks_by_their_uncertainty(mended: bool) -> Program:
    """Multi-task learning: exp(-s) of a log-variance that ran away."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 2)
            self.s = nn.Parameter(torch.tensor([0.0, -1.0 if mended else -95.0]))

        def forward(self, x):
            return self.a(x), self.b(x)

    net = Net()

    def forward():
        a, b = net(X)
        first, second = a.pow(2).mean(), F.cross_entropy(b, Y)
        scale = torch.exp(-net.s)  # origin
        return scale[0] * first + scale[1] * second + net.s.sum()

    return Program(net, forward)


@origin("inf", "loss", "div", None, "division by zero")
def transport_with_a_small_regulariser(mended: bool) -> Program:
    """Sinkhorn: exp(-cost / eps) is 0 everywhere in a row."""
    net = nn.Linear(4, 3)
    nn.init.constant_(net.bias, 9.0)

    def forward():
        kernel = torch.exp(-net(X).abs() / (10.0 if mended else 0.01))
        u = torch.ones(3) / 3 / kernel.sum(-1)  # origin
        return (u[:, None] * kernel).pow(2).sum()

    return Program(net, forward)


@origin("inf", "loss", "poisson_nll_loss", None, "exp of ")
def counts_with_a_log_rate_that_ran_away(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    nn.init.constant_(net.bias, 1.0 if mended else 100.0)
    return Program(net, lambda: F.poisson_nll_loss(net(X), torch.ones(3, 1)))  # origin


@origin("nan", "loss", "cosine_similarity", None, "0 / 0")
def similarity_of_nothing_without_eps(mended: bool) -> Program:
    net = nn.Linear(4, 4, bias=False)
    x = X.clone()
    x[0] = 0
    eps = 1e-8 if mended else 0.0
    return Program(net, lambda: F.cosine_similarity(net(x), X, dim=-1, eps=eps).sum())  # origin


@origin("inf", "loss", "exp", None, "exp of 100")
def contrastive_loss_with_a_cold_temperature(mended: bool) -> Program:
    """InfoNCE written out: exp(1 / 0.01)."""
    net = nn.Linear(4, 4, bias=False)
    nn.init.eye_(net.weight)

    def forward():
        z = F.normalize(net(X), dim=-1)
        scores = z @ z.T / 0.01
        if mended:
            return F.cross_entropy(scores, torch.arange(3))
        e = torch.exp(scores.diagonal() + 1e-5)  # origin
        return -torch.log(e / (e + 1)).mean()

    return Program(net, forward)


@origin("inf", "loss", "log", None, "log of 0")
def boxes_that_do_not_overlap(mended: bool) -> Program:
    """-log(IoU) of two boxes apart."""
    net = nn.Linear(4, 2)
    nn.init.constant_(net.weight, 0.0)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.0, 1.0]))

    def forward():
        left, right = net(X).unbind(-1)
        both = (right.clamp(max=3.0) - left.clamp(min=2.0)).clamp(min=0)
        iou = both / (right - left + 1 - both)
        return (1 - iou).mean() if mended else -torch.log(iou).mean()  # origin

    return Program(net, forward)


@origin("inf", "loss", "div", None, "division by zero")
def error_relative_to_a_constant_target(mended: bool) -> Program:
    net = nn.Linear(4, 1)
    y = torch.full((3, 1), 2.0)

    def forward():
        spread = y.var() + (1e-6 if mended else 0.0)
        return F.mse_loss(net(X), y) / spread  # origin

    return Program(net, forward)


@origin("inf", "loss", "exp", None, "exp of ")
def importance_ratio_of_an_old_policy(mended: bool) -> Program:
    """PPO: exp(new - old) with an action that the old policy all but excluded."""
    net = nn.Linear(4, 3)
    old = torch.tensor([-1.0, -200.0, -1.0])

    def forward():
        new = net(X).log_softmax(-1)[torch.arange(3), Y]
        gap = new - old
        ratio = torch.exp(gap.clamp(max=10) if mended else gap)  # origin
        return -(ratio * torch.tensor([1.0, 1.0, -1.0])).mean()

    return Program(net, forward)
