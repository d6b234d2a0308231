"""Modules that a run calls and that are not the model's: they are left as they were found."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradscope
from gradscope.errors import ModelError


class Critic(nn.Module):
    """Everything that a forward may change of its own module."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.seen = x
        self.train()
        return self.last(self.norm(x))


def generator():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))


NAMED = Critic()


def by_global_name(output):
    return F.softplus(-NAMED(output)).mean()


class Trainer:
    def __init__(self, critic):
        self.parts = SimpleNamespace(critics=[critic])

    def loss(self, output):
        return F.softplus(-self.parts.critics[0](output)).mean()

    def __call__(self, output):
        return self.loss(output)


def softplus(critic, output):
    return F.softplus(-critic(output)).mean()


#: How a loss may come to a module that nobody gave to gradscope.
WAYS = {
    "a closure": lambda d: lambda output: softplus(d, output),
    "a default": lambda d: lambda output, _target=None, d=d: softplus(d, output),
    "a global": lambda d: by_global_name,
    "a bound method": lambda d: Trainer(d).loss,
    "an object": Trainer,
    "a partial": lambda d: functools.partial(softplus, d),
    "its forward": lambda d: lambda output: F.softplus(-d.forward(output)).mean(),
    "twice": lambda d: lambda output: softplus(d, output) + softplus(d, output),
}
FULL_SAMPLES = [gradscope.inspect, gradscope.check, gradscope.why, gradscope.graph]


@pytest.mark.slow
@pytest.mark.parametrize("look", FULL_SAMPLES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_discriminator_in_the_loss(way, look):
    critic = NAMED if way is WAYS["a global"] else Critic()
    critic.eval()
    critic.norm.train()
    critic.last.weight.grad = kept = torch.ones(1, 4)
    before = {name: value.clone() for name, value in critic.state_dict().items()}
    versions = [tensor._version for tensor in critic.state_dict().values()]
    attributes = dict(critic.__dict__)
    look(generator(), torch.randn(6, 3), loss=way(critic))
    assert all(torch.equal(value, before[name]) for name, value in critic.state_dict().items())
    assert [tensor._version for tensor in critic.state_dict().values()] == versions
    assert critic.last.weight.grad is kept
    if way is not WAYS["its forward"]:  # which is no call: the modules that it calls are
        assert [module.training for module in critic.modules()] == [False, True, False]
        assert critic.__dict__ == attributes


def test_steps_and_a_verification():
    critic = Critic()
    options = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "steps": 3, "verify": True}
    report = gradscope.inspect(generator(), torch.randn(6, 3), loss=Trainer(critic), **options)
    assert report.run.verified is not None
    assert report.run.verified.identical
    assert critic.norm.num_batches_tracked == 0


def test_a_loss_that_raises():
    critic = Critic()

    def loss(output):
        critic(output)
        raise ValueError("as planned")

    with pytest.raises(ModelError, match="as planned"):
        gradscope.inspect(generator(), torch.randn(6, 3), loss=loss)
    assert critic.norm.num_batches_tracked == 0
    assert not hasattr(critic, "seen")


def test_modules_that_the_model_keeps_in_a_plain_list():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(3, 4), [Critic()]

        def forward(self, x):
            return self.rest[0](self.first(x))

    model = Net()
    gradscope.inspect(model, torch.randn(6, 3), loss="sum")
    assert model.rest[0].norm.num_batches_tracked == 0


def test_no_hook_is_left_for_all_modules():
    before = len(nn.modules.module._global_forward_pre_hooks)
    gradscope.inspect(generator(), torch.randn(6, 3), loss=Trainer(Critic()))
    assert len(nn.modules.module._global_forward_pre_hooks) == before
