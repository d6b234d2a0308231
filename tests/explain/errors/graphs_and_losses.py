"""Programs that go backward through one graph twice, have no graph, or a loss of many numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.errors.cases import Program, broken

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = torch.tensor([0, 1, 1])
TWO_STEPS = {"steps": 2, "optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1)}


@broken("backward-twice", "lstm", "hidden", "detach()", "step 1", "step 2")
def state_of_an_lstm_carried_over(mended: bool) -> Program:
    """A state kept over batches, with its graph: a question asked many times."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.hidden = nn.LSTM(4, 3), None

        def forward(self, x):
            y, self.hidden = self.lstm(x, self.hidden)  # saved
            if mended:
                self.hidden = tuple(h.detach() for h in self.hidden)
            return y

    return Program(Net(), X.unsqueeze(1), settings=TWO_STEPS)


@broken("backward-twice", "cell", "memory", "detach()", "tanh")
def state_of_a_cell_carried_over(mended: bool) -> Program:
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.rec = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x, h):
            return torch.tanh(self.inp(x) + self.rec(h))  # saved

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.memory = Cell(), torch.zeros(3, 3)

        def forward(self, x):
            h = self.cell(x, self.memory)
            self.memory = h.detach() if mended else h
            return h

    return Program(Net(), X, settings=TWO_STEPS)


@broken("backward-twice", "encoder.1", "cache", "step 1")
def features_cached_over_steps(mended: bool) -> Program:
    """Features computed once, with their graph."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2)
            self.cache = None

        def forward(self, x):
            if self.cache is None:
                features = self.encoder(x)  # saved
                self.cache = features.detach() if mended else features
            return self.head(self.cache)

    return Program(Net(), X, Y, "cross_entropy", settings=TWO_STEPS)


@broken("backward-twice", "", "retain_graph=True", "exp", "sum of both")
def two_tasks_with_a_backward_each(mended: bool) -> Program:
    """Multi-task training with one backward per loss."""

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            h = self.trunk(x).exp()  # saved
            first, second = self.a(h).mean(), self.b(h).mean()
            if mended:
                return first + second
            first.backward()  # freed
            return second

    return Program(Step(), X)


@broken("backward-twice", None, "before", "penalty")
def penalty_computed_once_in_the_constructor(mended: bool) -> Program:
    """An L2 penalty made outside of the training loop."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.penalty = self.fc.weight.pow(2).sum()

        def forward(self, x):
            penalty = self.fc.weight.pow(2).sum() if mended else self.penalty
            return self.fc(x).mean() + penalty

    return Program(Net(), X, settings=TWO_STEPS)


@broken("backward-twice", "", "retain_graph", "repeats")
def backward_repeated_without_keeping_the_graph(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x * self.w).exp()  # saved

    settings = {"repeats": 2, "retain_graph": mended}
    return Program(Net(), X, settings=settings)


@broken("backward-twice", "", "h.detach()", "tanh")
def truncated_backpropagation_without_detach(mended: bool) -> Program:
    """A backward at each step through time; the state leads back to the step before."""

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.rec, self.out = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            h = x[:1]
            for t in range(3):
                if mended:
                    h = h.detach()
                h = torch.tanh(self.rec(h) + x[t : t + 1])  # saved
                loss = self.out(h).sum()
                if t < 2:
                    loss.backward()  # freed
            return loss

    return Program(Step(), X)


@broken("backward-twice", "", "old.detach()", "log_softmax")
def old_log_probabilities_not_detached(mended: bool) -> Program:
    """PPO: the probabilities that were sampled with keep their graph over the epochs."""

    class Update(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy = nn.Linear(4, 2)

        def forward(self, states):
            old = self.policy(states).log_softmax(-1)[:, 0]  # saved
            if mended:
                old = old.detach()
            for _ in range(2):
                ratio = (self.policy(states).log_softmax(-1)[:, 0] - old).exp()
                ratio.mean().backward()  # freed, here
            return ratio.detach().mean() + 0 * self.policy.weight.sum()

    return Program(Update(), X)


@broken("backward-twice", "critic.2", "create_graph=True", "autograd.grad")
def gradient_penalty_without_its_graph(mended: bool) -> Program:
    """WGAN-GP: the gradient for the penalty frees the critic's graph."""

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x):
            x = x.clone().requires_grad_()
            score = self.critic(x).sum()  # saved
            grad = torch.autograd.grad(score, x, create_graph=mended)[0]  # freed
            return score + (grad.norm(dim=1) - 1).pow(2).mean()

    return Program(Critic(), X)


@broken("no-grad-root", "fc", "no_grad", "fc")
def forward_under_no_grad(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            if mended:
                return self.fc(x)
            with torch.no_grad():  # here
                return self.fc(x)

    return Program(Net(), X, Y, "cross_entropy")


@broken("no-grad-root", None, "frozen", "0.weight", "requires_grad")
def everything_frozen_and_no_new_head(mended: bool) -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model.requires_grad_(False)
    if mended:
        model[2].requires_grad_(True)
    return Program(model, X, Y, "cross_entropy")


@broken("no-grad-root", None, ".item()", "fc.weight")
def loss_made_of_an_item(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x)

    def loss(output, target):
        made = F.cross_entropy(output, target)
        return made if mended else torch.tensor(made.item())  # here

    return Program(Net(), X, Y, loss)


@broken("no-grad-root", None, "argmax", "softmax")
def accuracy_as_a_loss(mended: bool) -> Program:
    def loss(output, target):
        if mended:
            return F.cross_entropy(output, target)
        predicted = output.argmax(1)  # here
        return (predicted != target).float().mean()

    return Program(nn.Sequential(nn.Linear(4, 2)), X, Y, loss)


@broken("no-grad-root", "", "detach()", "head.weight")
def output_detached_for_plotting(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            y = self.head(x)
            if not mended:
                y = y.detach()  # here
            return y

    return Program(Net(), X, Y, "cross_entropy")


@broken("no-grad-root", None, "no parameters", "requires_grad")
def nothing_to_train(mended: bool) -> Program:
    inputs = X.clone().requires_grad_(mended)
    return Program(nn.Sequential(nn.ReLU(), nn.Flatten()), inputs, Y, "cross_entropy")


@broken("non-scalar-loss", None, "[3]", "reduction", "mean")
def cross_entropy_without_a_reduction(mended: bool) -> Program:
    loss = nn.CrossEntropyLoss(reduction="mean" if mended else "none")
    return Program(nn.Sequential(nn.Linear(4, 2)), X, Y, loss)


@broken("non-scalar-loss", None, "[3]", ".mean()")
def distance_for_each_sample(mended: bool) -> Program:
    def loss(output, target):
        distance = (output - target).pow(2)
        return distance.mean() if mended else distance.sum(1)  # here

    return Program(nn.Sequential(nn.Linear(4, 2)), X, torch.zeros(3, 2), loss)


@broken("non-scalar-loss", None, "[2]", ".sum()")
def losses_of_two_tasks_stacked(mended: bool) -> Program:
    def loss(output, target):
        tasks = torch.stack([F.cross_entropy(output, target), output.abs().mean()])  # here
        return tasks.sum() if mended else tasks

    return Program(nn.Sequential(nn.Linear(4, 2)), X, Y, loss)


@broken("non-scalar-loss", None, "[3, 1]", ".mean()")
def score_of_a_critic_as_its_loss(mended: bool) -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    return Program(model, X, None, (lambda score: -score.mean()) if mended else (lambda s: -s))


@broken("non-scalar-loss", None, "[3, 4]", "reduction")
def reconstruction_without_a_reduction(mended: bool) -> Program:
    def loss(output, target):
        reconstruction = F.mse_loss(output, target, reduction="none")  # here
        return reconstruction.sum(1).mean() if mended else reconstruction

    return Program(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)), X, X, loss)


@broken("backward-twice", "maker", "`fake`", "fake.detach()", "retain_graph=True", "addmm")
def generator_after_the_discriminators_backward(mended: bool) -> Program:
    """A GAN's step in one forward: cut off at its second use, the generator would not learn."""

    class Judge(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1)

        def forward(self, x):
            return self.fc(x)

    class Maker(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 4))

        def forward(self, z):
            return torch.addmm(z, z.exp() @ self.w, self.w)  # saved

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.maker, self.judge = Maker(), Judge()

        def forward(self, real):
            fake = self.maker(real[:, :4].new_ones(4, 4))
            seen = fake.detach() if mended else fake
            first = F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(seen)).mean()
            first.backward()  # freed
            return F.softplus(-self.judge(fake)).mean()  # carried

    return Program(Step(), X)


@broken("backward-twice", "", "h = h.detach()", "tanh")
def second_half_of_a_sequence(mended: bool) -> Program:
    """Truncated backpropagation without a loop: the second backward is at another line."""

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.rec = nn.Linear(4, 4)

        def forward(self, x):
            h = torch.tanh(self.rec(x[:1]))  # saved
            h.sum().backward()  # freed
            if mended:
                h = h.detach()
            h = torch.tanh(self.rec(h) + x[1:2])
            return h.sum()

    return Program(Step(), X)
