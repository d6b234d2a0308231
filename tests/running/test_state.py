"""A run restores all state; a verification can fail."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import gradscope
from gradscope.running.rerun import Verifier, _difference
from gradscope.running.state import same_bits, state_restored


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def state(model: nn.Module) -> dict:
    return {
        "weights": {k: v.clone() for k, v in model.state_dict().items()},
        "objects": [id(t) for t in (*model.parameters(), *model.buffers())],
        "gradients": [id(p.grad) for p in model.parameters()],
        "requires": [p.requires_grad for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "hooks": [
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
            for m in model.modules()
        ],
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),
    }


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x):
        self.inner(x)
        self.inner.eval()
        self.inner[0].weight.requires_grad_(False)
        raise ValueError("as planned")


SGD = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "steps": 3}


@pytest.mark.parametrize(
    "options", [{}, {"mode": "eval"}, {"verify": True}, SGD], ids=["plain", "eval", "verify", "SGD"]
)
def test_a_live_model_comes_back_as_it_was(options):
    model = network()
    model[3].bias.grad = torch.ones(3)
    model[1].eval()
    before = state(model)
    gradscope.inspect(model, torch.randn(6, 4), target=[0, 1, 2, 0, 1, 2], **options)
    torch.set_rng_state(before["random"][0])  # torch.randn above drew from it
    assert same(before, state(model))


def test_a_model_that_raises_comes_back_as_it_was():
    model, x = Raises(), torch.randn(6, 4)
    before = state(model)
    with pytest.raises(gradscope.GradscopeError):
        gradscope.inspect(model, x)
    assert same(before, state(model))


@pytest.mark.parametrize("look", [gradscope.inspect, gradscope.check, gradscope.why])
def test_a_flag_that_hides_the_method_of_its_name(look):
    model, x = network(), torch.randn(6, 4)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[0].weight.requires_grad_ = False
    before = state(model)
    report = look(model, x)
    assert same(before, state(model))
    if look is gradscope.check:
        assert [f.name for f in report.findings if f.code == "GS405"] == ["0.weight"]


def test_what_cannot_be_put_back_keeps_nothing_else_from_it():
    class Stubborn(nn.Parameter):
        def __setattr__(self, name, value):
            if name == "grad" and value is not None:
                raise RuntimeError("not this one")
            super().__setattr__(name, value)

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight = Stubborn(torch.ones(2, 2))
    torch.Tensor.grad.__set__(model[0].weight, torch.ones(2, 2))
    kept = {name: p for name, p in model.named_parameters() if name != "0.weight"}
    for parameter in kept.values():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(RuntimeError, match="not this one"), state_restored(model, weights=True):
        model.eval()
    assert all(parameter.grad is not None for parameter in kept.values())
    assert model.training


def test_the_comparison_of_states_can_fail():
    model = network()
    before = state(model)
    model[1].eval()
    assert not same(before, state(model))


def test_the_callers_tensors_are_left_alone():
    x = torch.randn(2, 4, requires_grad=True)
    before = x.detach().clone()
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    gradscope.inspect(model, x * 1.0)
    report = gradscope.inspect(model, x)
    assert x.grad is None
    assert torch.equal(x.detach(), before)
    assert report.calls[0].inputs[0].gradient is not None


@pytest.mark.parametrize(
    ("look", "options"),
    [(gradscope.graph, {}), (gradscope.inspect, {}), (gradscope.inspect, SGD)],
    ids=["graph", "inspect", "inspect SGD"],
)
def test_a_pending_backward_of_the_caller_still_runs(look, options):
    """And gives what it would have given."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)), torch.randn(5, 3)
    tensors = [*model.parameters(), *model.buffers()]
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    loss = model(x).square().sum()
    versions = [t._version for t in tensors]
    look(model, x, loss="sum", **options)
    assert [t._version for t in tensors] == versions
    loss.backward()
    assert all(map(torch.equal, expected, (p.grad for p in model.parameters())))


class Counting(nn.Module):
    """A loss that counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, output):
        self.count += 1
        return (output * self.weight).sum()


@pytest.mark.parametrize(
    "look", [gradscope.inspect, gradscope.check, gradscope.why, gradscope.graph]
)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_a_loss_that_is_a_module_comes_back_as_it_was(look, cut):
    """Also where something is missing, and the model runs again to tell why."""

    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x).detach() if cut else super().forward(x)

    loss = Counting()
    loss.weight.grad = kept = torch.full((), 7.0)
    look(Net(3, 3), torch.ones(2, 3), loss=loss)
    assert loss.count == 0
    assert loss.weight.grad is kept
    assert kept == 7


@pytest.mark.parametrize("write", ["data", "new data", "in place", "sparse buffer"])
def test_values_come_back_however_they_were_changed(write):
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0, float("nan"), -0.0]))
            self.register_buffer("sparse", torch.eye(2).to_sparse())

        def forward(self, x):
            if write == "data":
                self.weight.data.fill_(2)
            elif write == "new data":
                self.weight.data = torch.ones(4)
            elif write == "in place":
                with torch.no_grad():
                    self.weight.fill_(2)
            else:
                self.sparse.zero_()
            return (self.weight * x).sum()

    model = Writes()
    before, memory = model.weight.detach().clone(), model.weight.data_ptr()
    gradscope.graph(model, torch.ones(()), loss="sum")
    assert same_bits(model.weight.detach(), before)
    assert (model.weight.data_ptr(), model.weight._version) == (memory, 0)
    assert torch.equal(model.sparse.to_dense(), torch.eye(2))


def test_what_forward_hangs_on_its_module_goes():
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.calls, self.seen, self.all, self.cache = 0, ["nothing yet"], [], {}

        def forward(self, x):
            self.calls += 1
            self.last = x * self.weight
            self.seen = [self.last]
            self.all.append(x)
            self.cache[x.shape] = x
            if self.calls == 1:  # as libraries do that collect what their layers return
                self.register_forward_hook(lambda module, args, output: None)
            return self.last.sum()

    model = Keeping()
    before = dict(model.__dict__)
    gradscope.inspect(model, torch.ones(2, 3), loss="sum", verify=True)
    assert model.__dict__ == before
    assert (model.calls, model.seen, model.all, model.cache) == (0, ["nothing yet"], [], {})
    assert not model._forward_hooks


def test_verification_says_identical():
    report = gradscope.inspect(network(), torch.randn(6, 4), verify=True)
    verified = report.run.verified
    assert (verified.repeatable, verified.identical, verified.max_difference) == (True, True, 0.0)


def test_verification_says_that_a_step_does_not_repeat():
    calls = []

    class Restless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            calls.append(x)
            return (self.weight * x).sum() * len(calls)

    report = gradscope.inspect(Restless(), torch.randn(2, 3), loss="sum", verify=True)
    assert report.run.verified.repeatable is False
    assert report.run.verified.identical is False


def test_verification_sees_one_flipped_bit():
    steps = iter([[torch.tensor([1.0])], [torch.tensor([1.0])]])
    verifier = Verifier(lambda: next(steps))
    observed = torch.nextafter(torch.tensor([1.0]), torch.tensor([2.0]))
    verdict = verifier.compare([observed])
    assert verdict.repeatable
    assert not verdict.identical
    assert verdict.max_difference == pytest.approx(2**-23)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ([torch.tensor([float("nan")])], [torch.tensor([float("nan")])], 0.0),
        ([torch.tensor([float("nan")])], [torch.tensor([1.0])], None),
        ([None], [None], 0.0),
        ([None], [torch.ones(1)], None),
        ([torch.eye(2).to_sparse()], [torch.eye(2)], 0.0),
    ],
)
def test_differences(one, other, difference):
    assert _difference(one, other) == difference


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex128])
@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("count", [0, 1, 7, 8])
def test_bits_are_compared_wherever_a_tensor_begins(dtype, first, count):
    one = torch.arange(16).to(dtype)[first : first + count]
    other = torch.cat([torch.zeros(3), torch.arange(16)]).to(dtype)[3 + first : 3 + first + count]
    assert same_bits(one, other)
    for i in range(count):
        changed = other.clone()
        changed[i] += 1
        assert not same_bits(one, changed)
