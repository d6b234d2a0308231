"""Programs whose forward makes a NaN or Inf from finite numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.non_finite.cases import Program, origin

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])
INF = float("inf")


@origin("inf", "forward", "log", "head", "log of 0")
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
            return -(p * p.log()).sum(-1)  # origin

    net = nn.ModuleDict({"head": Policy()})
    return Program(net, lambda: -net["head"](X).mean())


@origin("inf", "forward", "exp", "", "exp of 104.2 in float32 (largest 88.7)")
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
                1 + logvar - mu**2 - logvar.exp()  # origin
            )
            return self.dec(mu), kl.sum()

    net = Vae()

    def forward():
        out, kl = net(X)
        return F.mse_loss(out, X) + kl

    return Program(net, forward)


@origin("inf", "forward", "exp", "act", "exp of ")
def softplus_by_hand(mended: bool) -> Program:
    class Softplus(nn.Module):
        def forward(self, x):
            if mended:
                return F.softplus(x)
            return torch.log(1 + torch.exp(x))  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("act", Softplus())
    nn.init.constant_(net.fc.bias, 200.0)
    return Program(net, lambda: net(X).mean())


@origin("nan", "forward", "div", "norm", "0 / 0")
def rows_that_sum_to_nothing(mended: bool) -> Program:
    """Attention weights after ReLU, divided by their sum: an all-negative row has none."""

    class Share(nn.Module):
        def forward(self, x):
            x = x.relu()
            total = x.sum(-1, keepdim=True)
            if mended:
                total = total.clamp(min=1e-6)
            return x / total  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4, bias=False))
    net.add_module("norm", Share())
    nn.init.eye_(net.fc.weight)
    return Program(net, lambda: net(X)[:, 0].sum())


@origin("nan", "forward", "div", "encoder", "0 / 0")
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
            return x / x.norm(dim=-1, keepdim=True)  # origin

    net = nn.ModuleDict({"encoder": Encoder()})
    x = X.clone()
    x[1] = 0

    def forward():
        z = net["encoder"](x)
        return F.cross_entropy(z @ z.T / 0.1, torch.arange(3))

    return Program(net, forward)


@origin("nan", "forward", "std", "", "std of one value")
def standardised_over_a_batch_of_one(mended: bool) -> Program:
    """Advantages standardised over the batch; the last batch of the epoch has one row."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            x = self.fc(x)
            return (x - x.mean(0)) / (
                x.std(0, unbiased=not mended)  # origin
                + 1e-5
            )

    net = Net()
    return Program(net, lambda: net(X[:1]).pow(2).mean())


@origin("nan", "forward", "softmax", "attn", "softmax over a row of -inf (row 2 of 3)")
def attention_of_a_fully_padded_row(mended: bool) -> Program:
    """The mask of an empty sequence takes every key away (pytorch issue 41508)."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, mask):
            scores = self.q(x) @ self.k(x).T / 2
            scores = scores.masked_fill(~mask, -INF)
            weights = F.softmax(scores, dim=-1)  # origin
            return weights @ self.v(x)

    net = nn.ModuleDict({"attn": Attention()})
    mask = torch.ones(3, 3, dtype=torch.bool).tril(0 if mended else 1)
    mask[2] = mended
    return Program(net, lambda: net["attn"](X, mask).mean())


@origin("nan", "forward", "multi_head_attention_forward", "attn", "softmax over a row of -inf")
def multihead_attention_of_an_empty_sequence(mended: bool) -> Program:
    """pytorch issue 40932: one example of the batch is nothing but padding."""
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(4, 2, batch_first=True)
            self.norm = nn.LayerNorm(4)

        def forward(self, x, padding):
            y, _ = self.attn(x, x, x, key_padding_mask=padding)  # origin
            return self.norm(x + y)

    net = Block()
    padding = torch.tensor([[False, False, True], [True, not mended and True, True]])
    if mended:
        padding[1, 0] = False
    x = torch.stack([X, X + 1])
    return Program(net, lambda: net(x, padding).pow(2).mean())


@origin("nan", "forward", "mul", "mask", "0 \u00b7 -inf")
def a_mask_multiplied_by_minus_infinity(mended: bool) -> Program:
    """`(1 - mask) * -inf` is NaN wherever the mask keeps."""

    class Mask(nn.Module):
        def forward(self, scores, keep):
            if mended:
                return scores.masked_fill(keep == 0, -INF)
            return scores + (1 - keep) * -INF  # origin

    net = nn.ModuleDict({"fc": nn.Linear(4, 3), "mask": Mask()})
    keep = torch.tensor([1.0, 1.0, 0.0])
    return Program(net, lambda: F.cross_entropy(net["mask"](net["fc"](X), keep), Y))


@origin("inf", "forward", "div", "", "division by zero")
def logits_over_a_temperature_of_zero(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.temperature = nn.Parameter(torch.full((1,), 0.07 if mended else 0.0))

        def forward(self, x):
            return self.fc(x) / self.temperature  # origin

    net = Net()
    return Program(net, lambda: F.cross_entropy(net(X), Y))


@origin("inf", "forward", "div", "refine", "division by zero")
def inverse_sigmoid_of_one(mended: bool) -> Program:
    """Box refinement of a detection transformer: reference points at the border."""

    class Refine(nn.Module):
        def __init__(self):
            super().__init__()
            self.delta = nn.Linear(2, 2)

        def forward(self, points):
            if mended:
                points = points.clamp(1e-5, 1 - 1e-5)
            odds = points / (1 - points)  # origin
            return torch.sigmoid(torch.log(odds) + self.delta(points)), odds

    net = nn.ModuleDict({"refine": Refine()})
    points = torch.tensor([[0.5, 1.0], [0.25, 0.75]])

    def forward():
        boxes, odds = net["refine"](points)
        return boxes.sum() + 0.01 * odds.log().sum()

    return Program(net, forward)


@origin("nan", "forward", "pow", "gamma", "(-1) ** 1.5")
def gamma_of_a_negative_pixel(mended: bool) -> Program:
    """A learnable gamma curve, fed with pictures that were normalised before."""

    class Gamma(nn.Module):
        def __init__(self):
            super().__init__()
            self.gamma = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            if mended:
                x = x.clamp(min=1e-6)
            return x**self.gamma  # origin

    net = nn.Sequential()
    net.add_module("gamma", Gamma())
    net.add_module("fc", nn.Linear(4, 2))
    return Program(net, lambda: F.cross_entropy(net(X), Y))


@origin("nan", "forward", "sqrt", "norm", "sqrt of -")
def variance_by_the_difference_of_squares(mended: bool) -> Program:
    """E[x²] - E[x]² rounds below zero where the mean dwarfs the spread."""

    class Norm(nn.Module):
        def forward(self, x):
            var = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 - 1.0
            if mended:
                var = x.var(-1, keepdim=True, correction=0) + 1e-5
            return (x - x.mean(-1, keepdim=True)) / torch.sqrt(var)  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("norm", Norm())
    return Program(net, lambda: net(X).pow(3).mean())


@origin("inf", "forward", "matmul", "attn", "float16's largest 65504")
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
            scores = q @ k.transpose(-2, -1)  # origin
            return scores.softmax(-1) @ v

    net = nn.ModuleDict({"attn": Attention()}).half()
    return Program(net, lambda: net["attn"](X.half()).float().mean())


@origin("inf", "forward", "half", "", "70000 is above float16's largest 65504")
def activations_cast_to_half(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            nn.init.constant_(self.fc.weight, 0.0)
            nn.init.constant_(self.fc.bias, 70000.0)

        def forward(self, x):
            x = self.fc(x)
            x = x.bfloat16() if mended else x.half()  # origin
            return x.float()

    net = Net()
    return Program(net, lambda: net(X).mean())


@origin("nan", "forward", "layer_norm", "norm", "variance 0 with eps=0")
def layer_norm_without_eps(mended: bool) -> Program:
    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("norm", nn.LayerNorm(4, eps=1e-5 if mended else 0.0))
    nn.init.constant_(net.fc.weight, 0.0)
    nn.init.constant_(net.fc.bias, 1.0)

    def forward():
        return net(X).pow(2).mean()  # origin

    return Program(net, forward)


@origin("inf", "forward", "rsqrt", "norm", "rsqrt of 0")
def root_mean_square_norm_of_an_empty_token(mended: bool) -> Program:
    """RMSNorm written out without its eps, on the row of the padding token."""

    class RmsNorm(nn.Module):
        def forward(self, x):
            eps = 1e-6 if mended else 0.0
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)  # origin

    net = nn.Sequential()
    net.add_module("embed", nn.Embedding(5, 4, padding_idx=0))
    net.add_module("norm", RmsNorm())
    tokens = torch.tensor([[1, 2, 0]])
    return Program(net, lambda: net(tokens).sum())


@origin("nan", "forward", "div", "norm", "0 / 0")
def batch_statistics_of_a_constant_feature(mended: bool) -> Program:
    class Norm(nn.Module):
        def forward(self, x):
            spread = x.var(0, correction=0).sqrt()
            if mended:
                spread = (x.var(0, correction=0) + 1e-5).sqrt()
            return (x - x.mean(0)) / spread  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("norm", Norm())
    nn.init.constant_(net.fc.weight, 0.0)
    nn.init.constant_(net.fc.bias, 1.0)
    return Program(net, lambda: net(X).pow(2).mean())


@origin("nan", "forward", "sub", "softmax", "-inf - -inf")
def stable_softmax_of_nothing(mended: bool) -> Program:
    """Softmax by hand: the largest of a fully masked row is -inf too."""

    class Softmax(nn.Module):
        def forward(self, scores, keep):
            scores = scores.masked_fill(~keep, -INF)
            top = scores.amax(-1, keepdim=True)
            if mended:
                top = top.clamp(min=-1e9)
            e = (scores - top).exp()  # origin
            return e / e.sum(-1, keepdim=True).clamp(min=1e-9)

    net = nn.ModuleDict({"fc": nn.Linear(4, 3), "softmax": Softmax()})
    keep = torch.ones(3, 3, dtype=torch.bool)
    keep[0] = False
    return Program(net, lambda: net["softmax"](net["fc"](X), keep).pow(2).sum())


@origin("inf", "forward", "mul", "cell", "above float32's largest 3.4e+38", call=5)
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
                h * h  # origin
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


@origin("nan", "forward", "linear", "0", "above float32's largest 3.4e+38")
def weights_that_exploded_over_steps(mended: bool) -> Program:
    """Weights after steps with a far too large learning rate; the sums meet both infinities."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    x = X * 1e4
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-12 if mended else 1e34)
    for _ in range(1):
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()

    def forward():
        return net(x).mean()  # origin

    return Program(net, forward)


@origin("nan", "forward", "div", "quantizer", "0 / 0")
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
            return ((x @ self.codes.weight.T) / size).argmax(-1)  # origin

        def forward(self, x):
            return self.codes(self.nearest(x))

    net = nn.ModuleDict({"quantizer": Quantizer()})
    return Program(net, lambda: F.mse_loss(net["quantizer"](X), X))


@origin("nan", "forward", "div", "ratio", "0 / 0")
def hidden_by_nan_to_num(mended: bool) -> Program:
    """The forward looks clean; the gradient of what was replaced is 0 · inf."""

    class Ratio(nn.Module):
        def forward(self, x):
            x = x * x
            if mended:
                return x / x.sum(-1, keepdim=True).clamp(min=1e-6)
            return torch.nan_to_num(
                x / x.sum(-1, keepdim=True)  # origin
            )

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4, bias=False))
    net.add_module("ratio", Ratio())
    x = X.clone()
    x[1] = 0
    return Program(net, lambda: net(x)[:, 0].sum())


@origin("inf", "forward", "exp", "act", "exp of ")
def elu_by_hand(mended: bool) -> Program:
    """pytorch issue 68425: `where` leaves out the infinity, and its gradient is 0 · inf."""

    class Elu(nn.Module):
        def forward(self, x):
            if mended:
                return torch.where(x > 0, x, torch.exp(x.clamp(max=0)) - 1)
            return torch.where(
                x > 0,
                x,
                torch.exp(x) - 1,  # origin
            )

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("act", Elu())
    nn.init.constant_(net.fc.bias, 100.0)
    return Program(net, lambda: net(X).mean())


@origin("nan", "forward", "mean", "moe", "mean of no values")
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
                load.append(mine.mean())  # origin
            return p, torch.stack(load)

    net = nn.ModuleDict({"moe": Experts()})

    def forward():
        p, load = net["moe"](X)
        return p.pow(2).sum() + load.sum()

    return Program(net, forward)


@origin("inf", "forward", "pow", "mix", "squared is above float32's largest 3.4e+38")
def a_norm_written_out(mended: bool) -> Program:
    """The squares of 1e30 leave float32, though their root would not."""

    class Mix(nn.Module):
        def forward(self, x):
            if mended:
                return torch.linalg.vector_norm(x / 1e30, dim=-1)
            return x.pow(2).sum(-1).sqrt()  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("mix", Mix())
    nn.init.constant_(net.fc.bias, 1e30)
    return Program(net, lambda: net(X).mean())


@origin("inf", "forward", "pow", "conv", "0 ** -0.5")
def degree_of_an_isolated_node(mended: bool) -> Program:
    """Graph convolution: D^-1/2 of a node without neighbours."""

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x, adjacency):
            degree = adjacency.sum(-1)
            if mended:
                degree = degree.clamp(min=1)
            scale = degree.pow(-0.5)  # origin
            return scale[:, None] * (adjacency @ self.fc(x)) * scale[:, None]

    net = nn.ModuleDict({"conv": Conv()})
    adjacency = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    return Program(net, lambda: net["conv"](X, adjacency).pow(2).sum())


@origin("inf", "forward", "logit", "inverse", "logit of 1")
def logit_of_a_hard_label(mended: bool) -> Program:
    class Inverse(nn.Module):
        def forward(self, p):
            return torch.logit(p, eps=1e-6 if mended else None)  # origin

    net = nn.ModuleDict({"inverse": Inverse(), "fc": nn.Linear(3, 1)})
    p = torch.tensor([[0.2, 0.5, 1.0]])
    return Program(net, lambda: net["fc"](net["inverse"](p)).pow(2).sum())


@origin("inf", "forward", "atanh", "ball", "atanh of 1")
def distance_to_the_border_of_the_ball(mended: bool) -> Program:
    """Hyperbolic embeddings: a point that lies on the border."""

    class Ball(nn.Module):
        def forward(self, x):
            size = x.norm(dim=-1).clamp(max=1 - 1e-5 if mended else 1.0)
            return torch.atanh(size)  # origin

    net = nn.Sequential()
    net.add_module("fc", nn.Linear(4, 4))
    net.add_module("ball", Ball())
    nn.init.constant_(net.fc.bias, 5.0)
    return Program(net, lambda: net(X).sum())


@origin("inf", "forward", "to", "attn", "float16")
def a_mask_for_float32_in_float16(mended: bool) -> Program:
    """The lowest float32 is -inf in float16, and a fully masked row then has no softmax."""

    class Attention(nn.Module):
        def forward(self, scores, keep):
            lowest = torch.finfo(torch.float16 if mended else torch.float32).min
            mask = (1 - keep) * lowest
            mask = mask.to(scores.dtype)  # origin
            return (scores + mask).clamp(min=-60000 if mended else None, max=9).softmax(-1)

    net = nn.ModuleDict({"fc": nn.Linear(4, 4).half(), "attn": Attention()})
    keep = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    return Program(net, lambda: net["attn"](net["fc"](X.half()), keep).float().pow(2).sum())


@origin("nan", "forward", "div", "pool", "0 / 0")
def mean_pooling_of_an_empty_sentence(mended: bool) -> Program:
    class Pool(nn.Module):
        def forward(self, x, keep):
            length = keep.sum(-1, keepdim=True)
            if mended:
                length = length.clamp(min=1)
            return (x * keep[..., None]).sum(1) / length  # origin

    net = nn.ModuleDict({"embed": nn.Embedding(9, 4), "pool": Pool(), "fc": nn.Linear(4, 2)})
    tokens = torch.tensor([[1, 2, 3], [4, 0, 0], [0, 0, 0]])

    def forward():
        h = net["pool"](net["embed"](tokens), (tokens > 0).float())
        return F.cross_entropy(net["fc"](h), Y)

    return Program(net, forward)


@origin("nan", "forward", "div", "tower", "0 / 0", call=1)
def second_tower_of_a_siamese_net(mended: bool) -> Program:
    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            x = self.fc(x)
            size = (x * x).sum(-1, keepdim=True)
            if mended:
                size = size + 1e-6
            return x / size  # origin

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = Tower()

        def forward(self, a, b):
            return (self.tower(a) - self.tower(b)).pow(2).sum()

    net = Siamese()
    other = X.clone()
    other[2] = 0
    return Program(net, lambda: net(X, other))


@origin("nan", "forward", "log", "flow", "log of -")
def log_determinant_of_a_negative_scale(mended: bool) -> Program:
    """A normalising flow: log of a scale that has changed its sign."""

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([0.5, 1.0, -0.01, 2.0]))

        def forward(self, x):
            scale = self.scale.abs() if mended else self.scale
            return x * self.scale, torch.log(scale).sum()  # origin

    net = nn.ModuleDict({"flow": Flow()})

    def forward():
        z, logdet = net["flow"](X)
        return 0.5 * z.pow(2).sum(-1).mean() - logdet

    return Program(net, forward)


@origin("nan", "forward", "sqrt", "scheduler", "sqrt of -")
def noise_schedule_past_its_end(mended: bool) -> Program:
    """Diffusion: sqrt(1 - abar) with abar above 1 by an index too far."""

    class Scheduler(nn.Module):
        def forward(self, x, noise, abar):
            if mended:
                abar = abar.clamp(0, 1)
            return abar.sqrt() * x + (1 - abar).sqrt() * noise  # origin

    net = nn.ModuleDict({"scheduler": Scheduler(), "unet": nn.Linear(4, 4)})
    abar = torch.tensor([[0.9], [0.5], [1.0001]])

    def forward():
        noise = torch.ones(3, 4)
        return F.mse_loss(net["unet"](net["scheduler"](X, noise, abar)), noise)

    return Program(net, forward)
