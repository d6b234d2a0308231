"""Trainings in which parameters get no gradient, or one of zeros, for a cause that has a line."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

_BEGIN = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randint(2, (64,))


def batch(step):
    first = step % 8 * 8
    return x[first : first + 8], y[first : first + 8]
"""


@dataclass(frozen=True)
class TracedProgram:
    """Finding to expect: a rule's code, the cause, words of the message, the line ``# here``."""

    code: str
    cause: str | None
    words: tuple[str, ...]
    body: str
    loop: str = ""
    findings: int = 1

    @property
    def source(self) -> str:
        """The program."""
        return _BEGIN + textwrap.dedent(self.body) + self.loop

    @property
    def line(self) -> int:
        """The number of the marked line."""
        (found,) = (n for n, line in enumerate(self.source.splitlines(), 1) if "# here" in line)
        return found


_LOOP = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    inputs, labels = batch(step)
    optimizer.zero_grad()
    F.cross_entropy(net(inputs), labels).backward()
    optimizer.step()
"""

TRACED = {
    "a head on detached features": TracedProgram(
        "GS401", "detached", ("`detach`", "stem.bias` get no gradient"), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
            def forward(self, x):
                x = self.stem(x).relu()
                return self.head(x.detach())  # here
        net = Net()
        """, _LOOP),
    "log-probabilities without gradients": TracedProgram(
        "GS401", "no-grad", ("ran while gradients were disabled", "policy.weight`"), """
        policy, value = nn.Linear(4, 2), nn.Linear(4, 1)
        net = nn.ModuleDict({"policy": policy, "value": value})
        def act(state):
            with torch.no_grad():  # here
                logits = policy(state)
                chosen = torch.distributions.Categorical(logits=logits)
                action = chosen.sample()
                return action, chosen.log_prob(action)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(12):
            state, _ = batch(step)
            action, log_prob = act(state)
            reward = (action == (state[:, 0] > 0)).float()
            left = reward - value(state).squeeze(-1)
            loss = -(log_prob * left.detach()).mean() + left.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """),
    "a sum of numbers": TracedProgram(
        "GS816", "detached", ("`.item()`", "`backward` starts at a tensor"), """
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            losses = [F.cross_entropy(net(inputs), labels)]
            loss = torch.tensor(sum(one.item() for one in losses), requires_grad=True)  # here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """),
    "a second network's loss that is left out": TracedProgram(
        "GS401", "not-in-loss", ("the loss does not use it", "get no gradient in all"), """
        net = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            first = F.cross_entropy(net[0](inputs), labels)
            second = F.cross_entropy(net[1](inputs), labels)  # here
            optimizer.zero_grad()
            first.backward()
            optimizer.step()
        """),
    "a choice that has no derivative": TracedProgram(
        "GS401", "non-differentiable", ("`argmax`",), """
        net = nn.ModuleList([nn.Linear(4, 4), nn.Embedding(4, 2)])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            chosen = net[0](inputs).argmax(-1)  # here
            optimizer.zero_grad()
            F.cross_entropy(net[1](chosen), labels).backward()
            optimizer.step()
        """),
    "the generator's output is detached": TracedProgram(
        "GS401", "detached", ("`detach`", "generator"), """
        generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
        of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
        of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
        for step in range(12):
            real, _ = batch(step)
            fake = generator(torch.randn(8, 4)).detach()  # here
            of_critic.zero_grad()
            (critic(fake) - critic(real)).mean().backward()
            of_critic.step()
            of_generator.zero_grad()
            (-critic(fake)).mean().backward()
            of_generator.step()
        """),
    "gradients that are cleared for each task": TracedProgram(
        "GS401", "cleared", ("are cleared before the step", "get no gradient in all 12"), """
        net = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            inputs, labels = batch(step)
            for head in net:
                optimizer.zero_grad()  # here
                F.cross_entropy(head(inputs), labels).backward()
            optimizer.step()
        """),
    "advantages of zero": TracedProgram(
        "GS103", "masked", ("weight`", "exactly zero in all"), """
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(12):
            state, _ = batch(step)
            chosen = torch.distributions.Categorical(logits=net(state))
            action = chosen.sample()
            reward = torch.ones(8)
            advantage = reward - reward.mean()
            loss = -(chosen.log_prob(action) * advantage).mean()  # here
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """),
    "a dead activation": TracedProgram(
        "GS103", "dead-activation", ("`relu`", "is flat"), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
                nn.init.constant_(self.first.bias, -100.0)
            def forward(self, x):
                return self.second(torch.relu(self.first(x)))  # here
        net = Net()
        """, _LOOP),
    "two factors of zero": TracedProgram(
        "GS103", "zero-weight", ("is all zeros",), """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.base, self.a = nn.Linear(4, 2), nn.Linear(4, 3, bias=False)
                self.b = nn.Linear(3, 2, bias=False)
                nn.init.zeros_(self.a.weight)
                nn.init.zeros_(self.b.weight)
            def forward(self, x):
                return self.base(x) + self.b(self.a(x))  # here
        net = Net()
        """, _LOOP, findings=2),
}  # fmt: skip
