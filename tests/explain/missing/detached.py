"""Programs that lose the graph by detaching: detach, .data, .item(), NumPy, re-wrapping."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from explain.missing.cases import Program, Two, case

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])


@case("detached", "")
def residual_branch_detached(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.branch, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = self.stem(x)
            b = self.branch(x)
            if not mended:
                b = b.detach()  # cut
            return self.head(x + b)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached")
def gan_detach_in_generator_step(mended: bool) -> Program:
    """The discriminator's `fake.detach()` copied into the generator's step."""
    nets = nn.ModuleDict({"G": nn.Linear(4, 4), "D": nn.Linear(4, 1)})

    def step():
        fake = nets["G"](X)
        if not mended:
            fake = fake.detach()  # cut
        score = nets["D"](fake)
        return F.binary_cross_entropy_with_logits(score, torch.ones_like(score))

    return nets, step


@case("detached", "act")
def activation_through_data(mended: bool) -> Program:
    class Clip(nn.Module):
        def forward(self, x):
            if mended:
                return x.clamp(-1, 1)
            return x.data.clamp(-1, 1)  # cut

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act, self.b = nn.Linear(4, 4), Clip(), nn.Linear(4, 2)

        def forward(self, x):
            return self.b(self.act(self.a(x)))

    net = Net()
    return net, lambda: net(X).square().mean()


@case("detached")
def loss_rewrapped(mended: bool) -> Program:
    """`RuntimeError: element 0 does not require grad`, "solved" by requires_grad=True."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def step():
        loss = F.cross_entropy(net(X), Y)
        if not mended:
            loss = torch.tensor(loss.item(), requires_grad=True)  # cut
        return loss

    return net, step


@case("detached")
def losses_in_legacy_tensor(mended: bool) -> Program:
    net = nn.Linear(4, 2)

    def step():
        out = net(X)
        losses = [F.mse_loss(out[i], torch.zeros(2)) for i in range(3)]
        if mended:
            return torch.stack(losses).mean()
        total = torch.Tensor(losses)  # cut
        return total.requires_grad_().mean()

    return net, step


@case("detached")
def losses_in_torch_tensor(mended: bool) -> Program:
    net = nn.ModuleDict({"body": nn.Linear(4, 4), "a": nn.Linear(4, 2), "b": nn.Linear(4, 1)})

    def step():
        h = net["body"](X).tanh()
        parts = [F.cross_entropy(net["a"](h), Y), net["b"](h).square().mean()]
        total = torch.stack(parts) if mended else torch.tensor(parts, requires_grad=True)  # cut
        return total.sum()

    return net, step


@case("detached")
def numpy_round_trip(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 3), nn.Linear(3, 4)

    net = Net()

    def step():
        code = net.encoder(X)
        if mended:
            code = torch.sort(code, dim=1).values
        else:
            array = code.detach().numpy()  # cut
            code = torch.from_numpy(np.sort(array, axis=1))
        return F.mse_loss(net.decoder(code), X)

    return net, step


@case("detached")
def numpy_shared_memory(mended: bool) -> Program:
    net = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 1)})

    def step():
        h = net["a"](X)
        if not mended:
            h = torch.as_tensor(h.cpu().data.numpy())  # cut
        return net["b"](h).sum()

    return net, step


@case("detached")
def reward_by_item(mended: bool) -> Program:
    """Reinforcement: the critic's value as a Python number in the actor's loss."""
    net = nn.ModuleDict({"actor": nn.Linear(4, 2), "critic": nn.Linear(4, 1)})

    def step():
        logp = torch.log_softmax(net["actor"](X), dim=1)[:, 0]
        value = net["critic"](X).mean()
        if not mended:
            value = value.item()  # cut
        advantage = 1.0 - value
        return -(logp * advantage).mean()

    return net, step


@case("detached")
def reward_list_discounted(mended: bool) -> Program:
    net = nn.ModuleDict({"policy": nn.Linear(4, 2), "reward": nn.Linear(4, 1)})

    def step():
        logp = torch.log_softmax(net["policy"](X), dim=1)[:, 0]
        rewards = net["reward"](X).squeeze(1)
        if mended:
            returns = rewards.flip(0).cumsum(0).flip(0)
        else:
            total, returns = 0.0, []
            for r in reversed(rewards.tolist()):  # cut
                total = r + 0.9 * total
                returns.insert(0, total)
            returns = torch.tensor(returns)
        return -(logp * returns).sum()

    return net, step


@case("detached")
def temperature_through_math(mended: bool) -> Program:
    class Contrastive(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.text = nn.Linear(4, 3), nn.Linear(4, 3)
            self.log_temperature = nn.Parameter(torch.zeros(()))

    net = Contrastive()

    def step():
        scale = net.log_temperature.exp()
        if not mended:
            scale = torch.tensor(math.exp(net.log_temperature))  # cut
        logits = scale * net.image(X) @ net.text(X).T
        return F.cross_entropy(logits, torch.arange(3))

    return net, step


@case("detached", "", name="codebook.weight")
def vq_straight_through_codebook(mended: bool) -> Program:
    """Olaf-World #8, RQ-VAE-Recommender #24: the codebook is seen inside `detach()` alone."""

    class VQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)
            self.codebook = nn.Embedding(5, 2)

        def forward(self, x):
            z = self.encoder(x)
            index = torch.cdist(z, self.codebook.weight.detach()).argmin(1)
            q = self.codebook(index)
            st = z + (q - z).detach()  # cut
            return self.decoder(st), z, q

    net = VQ()

    def step():
        out, z, q = net(X)
        loss = F.mse_loss(out, X)
        return loss + F.mse_loss(q, z.detach()) if mended else loss

    return net, step


@case("detached", "hyper")
def hypernetwork_writes_data(mended: bool) -> Program:
    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Linear(4, 8)
            self.main = nn.Linear(4, 2, bias=False)
            self.main.weight.requires_grad_(False)

        def forward(self, x):
            w = self.make(x.mean(0)).view(2, 4)
            if mended:
                return F.linear(x, w)
            self.main.weight.data = w  # cut
            return self.main(x)

    net = nn.Sequential()
    net.add_module("hyper", Hyper())
    net.add_module("out", nn.Linear(2, 2))
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "")
def hypernetwork_copies_into_data(mended: bool) -> Program:
    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.make, self.main = nn.Linear(4, 8), nn.Linear(4, 2, bias=False)
            self.main.weight.requires_grad_(False)

        def forward(self, x):
            w = self.make(x.mean(0)).view(2, 4)
            if mended:
                return F.linear(x, w)
            self.main.weight.data.copy_(w)  # cut
            return self.main(x)

    net = Hyper()
    return net, lambda: F.cross_entropy(net(X) + 0 * X[:, :2].requires_grad_(), Y)


@case("detached", "")
def parameter_around_a_result(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            q = self.query(x)
            if not mended:
                q = nn.Parameter(q.data)  # cut
            return self.out(q)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "cell")
def recurrent_state_detached_each_step(mended: bool) -> Program:
    """Truncation at every step: the recurrent weight sees no loss when the output is the last."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Parameter(torch.zeros(3, 4))
            self.mix = nn.Linear(4, 4)

        def forward(self, x, h):
            if not mended:
                h = h.detach()  # cut
            return torch.tanh(x + self.mix(h))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = Cell(), nn.Linear(4, 2)

        def forward(self, x):
            h = self.cell.start
            for t in range(2):
                h = self.cell(x * t, h)
            return self.out(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "encoder")
def lstm_state_repackaged(mended: bool) -> Program:
    """`repackage_hidden` of the word-language-model example, put between encoder and decoder."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x):
            _, state = self.rnn(x)
            if mended:
                return state
            return tuple(s.detach() for s in state)  # cut

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = Encoder(), nn.LSTM(4, 3, batch_first=True)

        def forward(self, x):
            return self.decoder(x, self.encoder(x))[0]

    net = Seq2Seq()
    return net, lambda: net(X[None]).square().sum()


@case("detached", "attention")
def attention_weights_as_numbers(mended: bool) -> Program:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            weights = (self.q(x) @ self.k(x).T).softmax(-1)
            if not mended:
                weights = torch.tensor(weights.tolist())  # cut
            return weights @ self.v(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.out = Attention(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.attention(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "lora")
def lora_merged_by_data(mended: bool) -> Program:
    class LoRA(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(4, 4).requires_grad_(False)
            self.a = nn.Parameter(torch.randn(2, 4))
            self.b = nn.Parameter(torch.zeros(4, 2))

        def forward(self, x):
            if mended:
                return self.base(x) + x @ self.a.T @ self.b.T
            weight = self.base.weight + self.b.data @ self.a.data  # cut
            return F.linear(x, weight, self.base.bias)

    net = nn.Sequential()
    net.add_module("lora", LoRA())
    net.add_module("out", nn.Linear(4, 2))
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "")
def detach_in_place(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = F.relu(self.a(x), inplace=True)
            if not mended:
                h.detach_()  # cut
            return self.b(h)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "")
def output_buffer_of_zeros(mended: bool) -> Program:
    """Results are written into a buffer through `.data`, as old code does."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(4, 1) for _ in range(2))
            self.out = nn.Linear(2, 2)

        def forward(self, x):
            buffer = torch.zeros(3, 2)
            for i, head in enumerate(self.heads):
                if mended:
                    buffer[:, i] = head(x)[:, 0]
                else:
                    buffer[:, i] = head(x)[:, 0].data  # cut
            return self.out(buffer)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", name="teacher.weight")
def distillation_mutual(mended: bool) -> Program:
    """Mutual learning, where each detaches the other, but one is never the student."""
    nets = nn.ModuleDict({"student": nn.Linear(4, 2), "teacher": nn.Linear(4, 2)})

    def step():
        s, t = nets["student"](X), nets["teacher"](X)
        target = t.softmax(1).detach()  # cut
        loss = F.kl_div(s.log_softmax(1), target, reduction="batchmean")
        return loss + F.cross_entropy(t, Y) if mended else loss

    return nets, step


@case("detached", "D")
def toggled_off_before_use(mended: bool) -> Program:
    """GAN: `requires_grad = False` for the discriminator's turn, switched on again too late."""
    nets = nn.ModuleDict({"G": nn.Linear(4, 4), "D": nn.Linear(4, 1)})

    def step():
        for p in nets["D"].parameters():
            p.requires_grad = mended
        score = nets["D"](nets["G"](X))  # cut
        for p in nets["D"].parameters():
            p.requires_grad = True
        return score.mean()

    return nets, step


@case("detached")
def float_of_each_sample(mended: bool) -> Program:
    net = nn.Linear(4, 1)

    def step():
        total = torch.zeros(())
        for row in X:
            out = net(row).squeeze()
            total = total + (out if mended else float(out))  # cut
        return (total + torch.zeros((), requires_grad=True)).square()

    return net, step


@case("detached")
def deepcopy_of_features(mended: bool) -> Program:
    """A list of features kept as arrays between two networks."""
    nets = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)})

    def step():
        kept = []
        for row in X:
            h = nets["a"](row)
            kept.append(h if mended else h.detach().cpu().numpy())  # cut
        batch = torch.stack(kept) if mended else torch.from_numpy(np.stack(kept))
        return F.cross_entropy(nets["b"](batch), Y)

    return nets, step


@case("detached", "noisy", mark="# cut b", name="noisy.sigma")
@case("non-differentiable", "noisy", name="noisy.keep.weight")
def two_cuts_in_one_module(mended: bool) -> Program:
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.keep = nn.Linear(4, 4)
            self.sigma = nn.Parameter(torch.ones(4))

        def forward(self, x):
            k = self.keep(x)
            gate = k.sigmoid() if mended else (k > 0).float()  # cut
            s = self.sigma if mended else self.sigma.detach()  # cut b
            return x * gate + s

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.noisy, self.out = Noisy(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.noisy(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "")
def parametrised_weight_detached(mended: bool) -> Program:
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).T

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.out = nn.Linear(4, 2)
            parametrize.register_parametrization(self.fc, "weight", Symmetric())

        def forward(self, x):
            w = self.fc.weight
            if not mended:
                w = w.clone().detach()  # cut
            return self.out(F.linear(x, w, self.fc.bias))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached")
def loss_by_numpy(mended: bool) -> Program:
    net = nn.Linear(4, 4)

    def step():
        out = net(X)
        if mended:
            return F.mse_loss(out, X)
        error = np.mean((out.detach().numpy() - X.numpy()) ** 2)  # cut
        return torch.tensor(error, requires_grad=True)

    return net, step


@case("detached")
def variable_of_data(mended: bool) -> Program:
    """`Variable(x.data, requires_grad=True)`, from before 0.4."""
    nets = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)})

    def step():
        h = nets["a"](X)
        if not mended:
            h = torch.autograd.Variable(h.data, requires_grad=True)  # cut
        return F.cross_entropy(nets["b"](h), Y)

    return nets, step


@case("detached")
def sum_of_items(mended: bool) -> Program:
    net = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})

    def step():
        losses = [F.cross_entropy(net[k](X), Y) for k in ("a", "b")]
        if mended:
            return sum(losses)
        return torch.tensor(sum(x.item() for x in losses) / 2, requires_grad=True)  # cut

    return net, step


@case("detached")
def gradient_penalty_without_graph(mended: bool) -> Program:
    """WGAN-GP: the penalty's gradient is taken without `create_graph`."""
    nets = nn.ModuleDict({"D": nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1, False))})

    def step():
        x = X.clone().requires_grad_()
        score = nets["D"](x).sum()
        (g,) = torch.autograd.grad(score, x, create_graph=mended)  # cut
        return (g.norm(dim=1) - 1).square().mean() + 0 * x.sum()

    return nets, step


@case("detached", "")
def parameter_made_of_a_result(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.base = nn.Parameter(torch.ones(2, 4)), torch.randn(2, 4)

        def forward(self, x):
            weight = self.base * self.scale
            if not mended:
                weight = nn.Parameter(weight)  # cut
            bias = torch.zeros(2)
            return F.linear(x, weight, bias)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "")
def detach_after_a_reentrant_checkpoint(mended: bool) -> Program:
    """The checkpoint's first pass runs without gradients, and that is not the cause."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.body = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            h = checkpoint(self.body, self.stem(x), use_reentrant=True)
            return self.head(h if mended else h.detach())  # cut

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "")
def weight_norm_by_data(mended: bool) -> Program:
    """Weight normalisation by hand: the direction is renewed through `.data`."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.v, self.g = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.ones(2, 1))
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            w = self.g * self.v / self.v.norm(dim=1, keepdim=True)
            if mended:
                return F.linear(x, w, self.fc.bias) + self.fc(x)
            self.fc.weight.data.copy_(w.detach())  # cut
            return self.fc(x)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "quant")
def sign_without_straight_through(mended: bool) -> Program:
    class Quant(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            b = self.w.sign().detach()  # cut
            return x @ (self.w + b - self.w.detach() if mended else b)

    nets = nn.Sequential()
    nets.add_module("quant", Quant())
    nets.add_module("out", nn.Linear(4, 2))
    return nets, lambda: F.cross_entropy(nets(X), Y)


@case("detached", "")
def labels_from_own_prediction(mended: bool) -> Program:
    """BYOL without its predictor: both sides detached."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.out = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x):
            p = self.f(x)
            if mended:
                return p, self.out(p)
            return p.detach(), self.out(p.detach())  # cut

    net = Net()

    def step():
        a, b = net(X)
        return F.mse_loss(b, a)

    return net, step


@case("detached")
def running_total_of_items(mended: bool) -> Program:
    net = nn.Linear(4, 2)

    def step():
        total = 0
        for i in range(3):
            loss = F.cross_entropy(net(X[i : i + 1]), Y[i : i + 1])
            total += loss if mended else loss.item()  # cut
        return total if mended else torch.tensor(total, requires_grad=True)

    return net, step


@case("detached", "")
def lookup_in_a_detached_table(mended: bool) -> Program:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Parameter(torch.randn(4, 3)), nn.Linear(3, 2)

        def forward(self, ids):
            table = self.table if mended else self.table.detach()  # cut
            return self.out(F.embedding(ids, table))

    net = Tied()
    return net, lambda: F.cross_entropy(net(Y), Y)


@case("detached", "")
def rows_as_new_tensors(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            rows = self.a(x)
            if not mended:
                rows = torch.stack([x.new_tensor(row) for row in rows])  # cut
            return self.b(rows)

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached", "memory")
def memory_bank_of_the_step(mended: bool) -> Program:
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.write = nn.Linear(4, 4)
            self.register_buffer("bank", torch.zeros(3, 4), persistent=False)

        def forward(self, x):
            new = self.write(x)
            if not mended:
                new = new.detach()  # cut
            self.bank = 0.5 * self.bank.detach() + new
            return self.bank

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.out = Memory(), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.memory(x))

    net = Net()
    return net, lambda: F.cross_entropy(net(X), Y)


@case("detached")
def functional_with_a_dict_of_parameters(mended: bool) -> Program:
    """No module runs: the parameters are in a ParameterDict, the model is a function."""
    p = nn.ParameterDict({"w": torch.randn(4, 3), "u": torch.randn(3, 2)})

    def model(x):
        h = torch.einsum("bi,ij->bj", x, p["w"]).relu()
        norm = h.norm(dim=1, keepdim=True)
        h = h / norm if mended else (h / norm).cpu().detach().requires_grad_()  # cut
        return h @ p["u"]

    return p, lambda: F.cross_entropy(model(X), Y)


@case("detached")
def scores_in_a_dict_of_arrays(mended: bool) -> Program:
    nets = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(2, 2)})

    def step():
        batch = {"score": nets["a"](X), "y": Y}
        if not mended:
            batch = {k: v.detach().numpy() for k, v in batch.items()}  # cut
            batch = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in batch.items()}
        return F.cross_entropy(nets["b"](batch["score"]), batch["y"])

    return nets, step


@case("detached", name="a.weight")
def scaled_by_a_large_int(mended: bool) -> Program:
    net = Two()

    def step():
        scale = (net.a(X) ** 2).sum() * 1e6
        if not mended:
            scale = int(scale)  # cut
        return F.cross_entropy(net.out(X) * scale, Y)

    return net, step


@case("detached", name="a.weight")
def scaled_by_a_small_int(mended: bool) -> Program:
    net = Two()

    def step():
        scale = (net.a(X) ** 2).mean() + 3
        if not mended:
            scale = int(scale)  # cut
        return F.cross_entropy(net.out(X) * scale, Y)

    return net, step


@case("detached", name="a.weight")
def a_float_by_its_keyword(mended: bool) -> Program:
    net = Two()

    def step():
        scale = net.a(X).sum()
        if not mended:
            scale = float(scale)  # cut
        return F.cross_entropy(torch.mul(net.out(X), other=scale), Y)

    return net, step


@case("detached", name="a.weight")
def memory_set_to_a_detached_copy(mended: bool) -> Program:
    net = Two()

    def step():
        y = net.a(X)
        z = torch.zeros(3, 4)
        if mended:
            z = y
        else:
            z.set_(y.detach())  # cut
        return F.cross_entropy(net.out(z), Y)

    return net, step


@case("detached", "a", name="a.weight")
def frozen_and_asked_about(mended: bool) -> Program:
    net = Two()

    def step():
        if not mended:
            net.a.requires_grad_(False)
        asked = net.a.weight.requires_grad or net.a.bias.requires_grad
        y = net.a(X)  # cut
        net.a.requires_grad_(True)
        return F.cross_entropy(net.out(y if asked else y * 1), Y)

    return net, step
