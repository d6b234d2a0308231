"""Programs whose forward, or whose loss, makes a NaN or an infinity out of finite numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.birth_cases import Program, birth

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])
INF = float("inf")


@birth("inf", "forward", "log", "head", "log of 0")
def entropy_of_a_saturated_policy(mended: bool) -> Program:
    """Actor-critic: the entropy bonus of a policy that has become sure, p·log p at p = 0."""

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Linear(4, 3)

        def forward(self, x):
            logits = self.scores(x) * 1000
            p = logits.softmax(-1)
            if mended:
                return -(p * logits.log_softmax(-1)).sum(-1)
            return -(p * p.log()).sum(-1)  # born

    net = nn.ModuleDict({"head": Policy()})
    return Program(net, lambda: -net["head"](X).mean())


@birth("nan", "loss", "log", None, "log of -")
def logarithmic_error_of_a_negative_prediction(mended: bool) -> Program:
    """RMSLE on a regression head that nothing keeps positive."""
    net = nn.Linear(4, 1)
    nn.init.constant_(net.weight, 1.0)
    nn.init.constant_(net.bias, 1.0 if mended else 0.0)

    def forward():
        pred = net(X[1:] if mended else X)
        target = torch.ones_like(pred)
        return F.mse_loss(
            torch.log(pred + 1),  # born
            torch.log(target + 1),
        )

    return Program(net, forward)


@birth("inf", "forward", "exp", "", "exp of 104.2 in float32 (largest 88.7)")
def log_variance_of_a_vae(mended: bool) -> Program:
    """VAE: `logvar.exp()` where nothing bounds logvar."""

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec = nn.Linear(4, 4), nn.Linear(2, 4)
            with torch.no_grad():
                self.enc.weight.zero_()
                self.enc.bias.copy_(torch.tensor([0.0, 0.0, 1.0, 104.2]))

        def forward(self, x):
            mu, logvar = self.enc(x).chunk(2, dim=-1)
            if mended:
                logvar = logvar.clamp(max=10)
            kl = -0.5 * (
                1 + logvar - mu**2 - logvar.exp()  # born
            )
            return self.dec(mu), kl.sum()

    net = Vae()

    def forward():
        out, kl = net(X)
        return F.mse_loss(out, X) + kl

    return Program(net, forward)


@birth("inf", "forward", "exp", "act", "exp of ")
def softplus_by_hand(mended: bool) -> Program:
    class Softplus(nn.Module):
        def forward(self, x):
            if mended:
                return F.softplus(x)
            return torch.log(1 + torch.exp(x))  # born

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("act", Softplus())
    nn.init.constant_(net.fc.bias, 200.0)
    return Program(net, lambda: net(X).mean())


@birth("nan", "forward", "div", "norm", "0 / 0")
def rows_that_sum_to_nothing(mended: bool) -> Program:
    """Attention weights after ReLU, divided by their sum: an all-negative row has none."""

    class Share(nn.Module):
        def forward(self, x):
            x = x.relu()
            total = x.sum(-1, keepdim=True)
            if mended:
                total = total.clamp(min=1e-6)
            return x / total  # born

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4, bias=False))
    net.add_module("norm", Share())
    nn.init.eye_(net.fc.weight)
    return Program(net, lambda: net(X)[:, 0].sum())


@birth("nan", "forward", "div", "encoder", "0 / 0")
def unit_vectors_of_an_empty_document(mended: bool) -> Program:
    """Contrastive learning: a row of zeros has no direction."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            x = self.fc(x)
            if mended:
                return F.normalize(x, dim=-1)
            return x / x.norm(dim=-1, keepdim=True)  # born

    net = nn.ModuleDict({"encoder": Encoder()})
    x = X.clone()
    x[1] = 0

    def forward():
        z = net["encoder"](x)
        return F.cross_entropy(z @ z.T / 0.1, torch.arange(3))

    return Program(net, forward)


@birth("nan", "forward", "std", "", "std of one value")
def standardised_over_a_batch_of_one(mended: bool) -> Program:
    """Advantages standardised over the batch; the last batch of the epoch has one row."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            x = self.fc(x)
            return (x - x.mean(0)) / (
                x.std(0, unbiased=not mended)  # born
                + 1e-5
            )

    net = Net()
    return Program(net, lambda: net(X[:1]).pow(2).mean())


@birth("nan", "forward", "softmax", "attn", "softmax over a row of -inf (row 2 of 3)")
def attention_of_a_fully_padded_row(mended: bool) -> Program:
    """The mask of an empty sequence takes every key away (pytorch issue 41508)."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, mask):
            scores = self.q(x) @ self.k(x).T / 2
            scores = scores.masked_fill(~mask, -INF)
            weights = F.softmax(scores, dim=-1)  # born
            return weights @ self.v(x)

    net = nn.ModuleDict({"attn": Attention()})
    mask = torch.ones(3, 3, dtype=torch.bool).tril(0 if mended else 1)
    mask[2] = mended
    return Program(net, lambda: net["attn"](X, mask).mean())


@birth("nan", "forward", "multi_head_attention_forward", "attn", "softmax over a row of -inf")
def multihead_attention_of_an_empty_sequence(mended: bool) -> Program:
    """pytorch issue 40932: one example of the batch is nothing but padding."""
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(4, 2, batch_first=True)
            self.norm = nn.LayerNorm(4)

        def forward(self, x, padding):
            y, _ = self.attn(x, x, x, key_padding_mask=padding)  # born
            return self.norm(x + y)

    net = Block()
    padding = torch.tensor([[False, False, True], [True, not mended and True, True]])
    if mended:
        padding[1, 0] = False
    x = torch.stack([X, X + 1])
    return Program(net, lambda: net(x, padding).pow(2).mean())


@birth("nan", "forward", "mul", "mask", "0 \u00b7 -inf")
def a_mask_multiplied_by_minus_infinity(mended: bool) -> Program:
    """`(1 - mask) * -inf` is NaN wherever the mask keeps."""

    class Mask(nn.Module):
        def forward(self, scores, keep):
            if mended:
                return scores.masked_fill(keep == 0, -INF)
            return scores + (1 - keep) * -INF  # born

    net = nn.ModuleDict({"fc": nn.Linear(4, 3), "mask": Mask()})
    keep = torch.tensor([1.0, 1.0, 0.0])
    return Program(net, lambda: F.cross_entropy(net["mask"](net["fc"](X), keep), Y))


@birth("inf", "forward", "div", "", "division by zero")
def logits_over_a_temperature_of_zero(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.temperature = nn.Parameter(torch.full((1,), 0.07 if mended else 0.0))

        def forward(self, x):
            return self.fc(x) / self.temperature  # born

    net = Net()
    return Program(net, lambda: F.cross_entropy(net(X), Y))


@birth("nan", "loss", "cross_entropy", None, "over no target")
def every_label_is_ignored(mended: bool) -> Program:
    """pytorch issue 116349: the mean over no label."""
    net = nn.Linear(4, 3)
    y = torch.tensor([-100, -100, 1 if mended else -100])
    return Program(net, lambda: F.cross_entropy(net(X), y))  # born


@birth("nan", "loss", "cross_entropy", None, "weight")
def only_classes_of_weight_zero(mended: bool) -> Program:
    net = nn.Linear(4, 3)
    weight = torch.tensor([0.5 if mended else 0.0, 1.0, 1.0])
    y = torch.zeros(3, dtype=torch.long)
    return Program(net, lambda: F.cross_entropy(net(X), y, weight=weight))  # born


@birth("nan", "loss", "mean", None, "mean of no values")
def mean_over_positives_of_a_batch_without_any(mended: bool) -> Program:
    """Detection: the box loss over matched anchors, in an image that has none."""
    net = nn.Linear(4, 4)
    matched = torch.tensor([mended, False, False])

    def forward():
        error = (net(X) - X).abs()
        return error[matched].mean() + 0.1 * error.sum()  # born

    return Program(net, forward)


@birth("inf", "loss", "log", None, "log of 0")
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
            y * p.log() + (1 - y) * (1 - p).log()  # born
        ).mean()

    return Program(net, forward)


@birth("inf", "forward", "div", "refine", "division by zero")
def inverse_sigmoid_of_one(mended: bool) -> Program:
    """Box refinement of a detection transformer: reference points at the border."""

    class Refine(nn.Module):
        def __init__(self):
            super().__init__()
            self.delta = nn.Linear(2, 2)

        def forward(self, points):
            if mended:
                points = points.clamp(1e-5, 1 - 1e-5)
            odds = points / (1 - points)  # born
            return torch.sigmoid(torch.log(odds) + self.delta(points)), odds

    net = nn.ModuleDict({"refine": Refine()})
    points = torch.tensor([[0.5, 1.0], [0.25, 0.75]])

    def forward():
        boxes, odds = net["refine"](points)
        return boxes.sum() + 0.01 * odds.log().sum()

    return Program(net, forward)


@birth("inf", "loss", "log", None, "log of 0")
def divergence_from_a_distribution_with_zeros(mended: bool) -> Program:
    """Distillation: `kl_div(q.log(), p)` with a student that gives a class probability 0."""
    net = nn.Linear(4, 3)
    nn.init.constant_(net.bias, 0.0)
    with torch.no_grad():
        net.bias[2] = -1000
    p = torch.full((3, 3), 1 / 3)

    def forward():
        q = net(X).log_softmax(-1) if mended else net(X).softmax(-1).log()  # born
        return F.kl_div(q, p, reduction="batchmean")

    return Program(net, forward)


@birth("nan", "forward", "pow", "gamma", "(-1) ** 1.5")
def gamma_of_a_negative_pixel(mended: bool) -> Program:
    """A learnable gamma curve, fed with pictures that were normalised before."""

    class Gamma(nn.Module):
        def __init__(self):
            super().__init__()
            self.gamma = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            if mended:
                x = x.clamp(min=1e-6)
            return x**self.gamma  # born

    net = nn.Sequential()
    net.add_module("gamma", Gamma())
    net.add_module("fc", nn.Linear(4, 2))
    return Program(net, lambda: F.cross_entropy(net(X), Y))


@birth("nan", "forward", "sqrt", "norm", "sqrt of -")
def variance_by_the_difference_of_squares(mended: bool) -> Program:
    """E[x²] - E[x]² rounds below zero where the mean dwarfs the spread."""

    class Norm(nn.Module):
        def forward(self, x):
            var = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 - 1.0
            if mended:
                var = x.var(-1, keepdim=True, correction=0) + 1e-5
            return (x - x.mean(-1, keepdim=True)) / torch.sqrt(var)  # born

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("norm", Norm())
    return Program(net, lambda: net(X).pow(3).mean())


@birth("inf", "forward", "matmul", "attn", "float16's largest 65504")
def attention_scores_in_half_precision(mended: bool) -> Program:
    """pytorch issue 40497: q·k before the division by sqrt(d) leaves float16."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(4, 12)
            nn.init.constant_(self.qkv.weight, 0.0)
            nn.init.constant_(self.qkv.bias, 200.0)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            if mended:
                q = q / 200
            scores = q @ k.transpose(-2, -1)  # born
            return scores.softmax(-1) @ v

    net = nn.ModuleDict({"attn": Attention()}).half()
    return Program(net, lambda: net["attn"](X.half()).float().mean())


@birth("inf", "loss", "sum", None, "float16's largest 65504")
def sum_of_a_picture_in_half_precision(mended: bool) -> Program:
    net = nn.Linear(4, 4).half()
    nn.init.constant_(net.bias, 20.0)
    x = torch.zeros(1000, 4, dtype=torch.float16)

    def forward():
        out = net(x)
        if mended:
            out = out.float()
        return out.sum() / 4000  # born

    return Program(net, forward)


@birth("inf", "forward", "half", "", "70000 is above float16's largest 65504")
def activations_cast_to_half(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            nn.init.constant_(self.fc.weight, 0.0)
            nn.init.constant_(self.fc.bias, 70000.0)

        def forward(self, x):
            x = self.fc(x)
            x = x.bfloat16() if mended else x.half()  # born
            return x.float()

    net = Net()
    return Program(net, lambda: net(X).mean())


@birth("inf", "loss", "mse_loss", None, "float16's largest 65504")
def squared_error_in_half_precision(mended: bool) -> Program:
    """pytorch issue 8860: regression targets in metres, the loss in float16."""
    net = nn.Linear(4, 1).half()
    y = torch.full((3, 1), 300.0, dtype=torch.float16)

    def forward():
        out = net(X.half())
        return F.mse_loss(out.float(), y.float()) if mended else F.mse_loss(out, y)  # born

    return Program(net, forward)


@birth("nan", "forward", "layer_norm", "norm", "variance 0 with eps=0")
def layer_norm_without_eps(mended: bool) -> Program:
    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("norm", nn.LayerNorm(4, eps=1e-5 if mended else 0.0))
    nn.init.constant_(net.fc.weight, 0.0)
    nn.init.constant_(net.fc.bias, 1.0)

    def forward():
        return net(X).pow(2).mean()  # born

    return Program(net, forward)


@birth("inf", "forward", "rsqrt", "norm", "rsqrt of 0")
def root_mean_square_norm_of_an_empty_token(mended: bool) -> Program:
    """RMSNorm written out without its eps, on the row of the padding token."""

    class RmsNorm(nn.Module):
        def forward(self, x):
            eps = 1e-6 if mended else 0.0
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)  # born

    net = nn.Sequential()
    net.add_module("embed", nn.Embedding(5, 4, padding_idx=0))
    net.add_module("norm", RmsNorm())
    tokens = torch.tensor([[1, 2, 0]])
    return Program(net, lambda: net(tokens).sum())


@birth("nan", "forward", "div", "norm", "0 / 0")
def batch_statistics_of_a_constant_feature(mended: bool) -> Program:
    class Norm(nn.Module):
        def forward(self, x):
            spread = x.var(0, correction=0).sqrt()
            if mended:
                spread = (x.var(0, correction=0) + 1e-5).sqrt()
            return (x - x.mean(0)) / spread  # born

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("norm", Norm())
    nn.init.constant_(net.fc.weight, 0.0)
    nn.init.constant_(net.fc.bias, 1.0)
    return Program(net, lambda: net(X).pow(2).mean())


@birth("nan", "forward", "sub", "softmax", "-inf - -inf")
def stable_softmax_of_nothing(mended: bool) -> Program:
    """Softmax by hand: the largest of a fully masked row is -inf too."""

    class Softmax(nn.Module):
        def forward(self, scores, keep):
            scores = scores.masked_fill(~keep, -INF)
            top = scores.amax(-1, keepdim=True)
            if mended:
                top = top.clamp(min=-1e9)
            e = (scores - top).exp()  # born
            return e / e.sum(-1, keepdim=True).clamp(min=1e-9)

    net = nn.ModuleDict({"fc": nn.Linear(4, 3), "softmax": Softmax()})
    keep = torch.ones(3, 3, dtype=torch.bool)
    keep[0] = False
    return Program(net, lambda: net["softmax"](net["fc"](X), keep).pow(2).sum())


@birth("inf", "loss", "masked_fill", None, "-inf")
def contrast_without_positives(mended: bool) -> Program:
    """Supervised contrast: logsumexp over the positives of an anchor that has none."""
    net = nn.Linear(4, 4)
    same = torch.eye(3, dtype=torch.bool)
    same[1] = mended

    def forward():
        z = F.normalize(net(X), dim=-1)
        scores = z @ z.T
        positive = torch.logsumexp(
            scores.masked_fill(~same, -INF),  # born
            dim=-1,
        )
        return (torch.logsumexp(scores, dim=-1) - positive).mean()

    return Program(net, forward)


@birth("inf", "forward", "mul", "cell", "above float32's largest 3.4e+38", call=5)
def a_recurrence_that_squares(mended: bool) -> Program:
    """A multiplicative recurrence: 10, 100, 1e4, … leaves float32 in the sixth call."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, h):
            if mended:
                h = h.tanh()
            return self.scale * (
                h * h  # born
            )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = Cell()

        def forward(self, h):
            for _ in range(9):
                h = self.cell(h)
            return h

    net = Net()
    h = torch.full((2, 3), 10.0)
    return Program(net, lambda: net(h).mean())


@birth("nan", "forward", "linear", "0", "above float32's largest 3.4e+38")
def weights_that_exploded_over_steps(mended: bool) -> Program:
    """What steps of a learning rate far too large leave; the sums meet both infinities."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    x = X * 1e4
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-12 if mended else 1e34)
    for _ in range(1):
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()

    def forward():
        return net(x).mean()  # born

    return Program(net, forward)


@birth("nan", "forward", "div", "quantizer", "0 / 0")
def nearest_code_by_cosine(mended: bool) -> Program:
    """Vector quantisation without a gradient: argmin over NaN picks a code, the loss is finite."""

    class Quantizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes = nn.Embedding(5, 4)
            with torch.no_grad():
                self.codes.weight[3] = 0

        @torch.no_grad()
        def nearest(self, x):
            size = self.codes.weight.norm(dim=-1)
            if mended:
                size = size.clamp(min=1e-6)
            return ((x @ self.codes.weight.T) / size).argmax(-1)  # born

        def forward(self, x):
            return self.codes(self.nearest(x))

    net = nn.ModuleDict({"quantizer": Quantizer()})
    return Program(net, lambda: F.mse_loss(net["quantizer"](X), X))


@birth("nan", "forward", "div", "ratio", "0 / 0")
def hidden_by_nan_to_num(mended: bool) -> Program:
    """The forward looks clean; the gradient of what was replaced is 0 · inf."""

    class Ratio(nn.Module):
        def forward(self, x):
            x = x * x
            if mended:
                return x / x.sum(-1, keepdim=True).clamp(min=1e-6)
            return torch.nan_to_num(
                x / x.sum(-1, keepdim=True)  # born
            )

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4, bias=False))
    net.add_module("ratio", Ratio())
    x = X.clone()
    x[1] = 0
    return Program(net, lambda: net(x)[:, 0].sum())


@birth("inf", "forward", "exp", "act", "exp of ")
def elu_by_hand(mended: bool) -> Program:
    """pytorch issue 68425: `where` leaves out the infinity, and its gradient is 0 · inf."""

    class Elu(nn.Module):
        def forward(self, x):
            if mended:
                return torch.where(x > 0, x, torch.exp(x.clamp(max=0)) - 1)
            return torch.where(
                x > 0,
                x,
                torch.exp(x) - 1,  # born
            )

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("act", Elu())
    nn.init.constant_(net.fc.bias, 100.0)
    return Program(net, lambda: net(X).mean())


@birth("inf", "loss", "div", None, "division by zero")
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
            (mu - 1) ** 2 / (2 * sigma**2)  # born
        ).mean()

    return Program(net, forward)


@birth("inf", "loss", "ctc_loss", None, "longer than")
def a_transcript_longer_than_its_audio(mended: bool) -> Program:
    net = nn.Linear(4, 3)
    text = torch.tensor([[1, 2, 1, 2]])
    size = 2 if mended else 4

    def forward():
        scores = net(X).log_softmax(-1)[:, None]
        return F.ctc_loss(scores, text[:, :size], [3], [size])  # born

    return Program(net, forward)


@birth("inf", "loss", "log", None, "log of 0")
def focal_loss_by_hand(mended: bool) -> Program:
    net = nn.Linear(4, 2)
    nn.init.constant_(net.weight, 0.0)
    with torch.no_grad():
        net.bias.copy_(torch.tensor([0.0, 200.0]))

    def forward():
        logits = net(X)
        p = logits.softmax(-1)[:, 0]
        logp = logits.log_softmax(-1)[:, 0] if mended else torch.log(p)  # born
        return -((1 - p) ** 2 * logp).mean()

    return Program(net, forward)


@birth("inf", "loss", "log", None, "log of 0")
def generator_loss_that_saturates(mended: bool) -> Program:
    """GAN: log(1 - D(G(z))) once the discriminator is sure of itself the wrong way."""
    net = nn.ModuleDict({"g": nn.Linear(2, 4), "d": nn.Linear(4, 1)})
    nn.init.constant_(net["d"].bias, 60.0)
    z = torch.ones(3, 2)

    def forward():
        score = net["d"](net["g"](z))
        if mended:
            return F.softplus(-score).mean()
        return torch.log(1 - torch.sigmoid(score)).mean()  # born

    return Program(net, forward)


@birth("nan", "forward", "mean", "moe", "mean of no values")
def load_of_an_expert_without_tokens(mended: bool) -> Program:
    """Mixture of experts: the balance term averages each expert's tokens, and one has none."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 3)
            with torch.no_grad():
                self.gate.bias.copy_(torch.tensor([9.0, 0.0, -9.0]))

        def forward(self, x):
            p = self.gate(x).softmax(-1)
            chosen = p.argmax(-1)
            load = []
            for i in range(3):
                mine = p[chosen == i, i]
                if mended and not len(mine):
                    continue
                load.append(mine.mean())  # born
            return p, torch.stack(load)

    net = nn.ModuleDict({"moe": Experts()})

    def forward():
        p, load = net["moe"](X)
        return p.pow(2).sum() + load.sum()

    return Program(net, forward)


@birth("nan", "loss", "div", None, "0 / 0")
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
        return 1 - (both + smooth) / (total + smooth)  # born

    return Program(net, forward)


@birth("inf", "loss", "exp", None, "exp of ")
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
        scale = torch.exp(-net.s)  # born
        return scale[0] * first + scale[1] * second + net.s.sum()

    return Program(net, forward)


@birth("inf", "forward", "pow", "mix", "squared is above float32's largest 3.4e+38")
def a_norm_written_out(mended: bool) -> Program:
    """The squares of 1e30 leave float32, though their root would not."""

    class Mix(nn.Module):
        def forward(self, x):
            if mended:
                return torch.linalg.vector_norm(x / 1e30, dim=-1)
            return x.pow(2).sum(-1).sqrt()  # born

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("mix", Mix())
    nn.init.constant_(net.fc.bias, 1e30)
    return Program(net, lambda: net(X).mean())
