"""A method instead of forward: what it gets, what it may return, how it fails."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import gradscope
from gradscope.config.loaded_config import read
from gradscope.errors import ConfigError, ModelError
from gradscope.loading.batches import Batch, step_method
from gradscope.loading.workload import load

X, Y = torch.linspace(-1, 1, 32).reshape(4, 8), torch.arange(4) % 3
SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen = batch_idx
        return {"loss": F.cross_entropy(self(x), y), "acc": torch.tensor(0.5)}

    def parts(self, batch):
        a, b, c = batch
        return F.triplet_margin_loss(self.fc(a), self.fc(b), self.fc(c))

    def compare(self, images, labels, scale=1.0):
        return F.cross_entropy(self.fc(images), labels)

    def weighted(self, x, labels, weights):
        return (F.cross_entropy(self.fc(x), labels, reduction="none") * weights).mean()

    def encode(self, x):
        return self.fc(x)

    def many(self, data):
        return F.cross_entropy(self.fc(data[0]), data[1])

    def named(self, x, labels):
        return F.cross_entropy(self.fc(x), labels)

    def broken(self, batch, batch_idx, optimizer_idx):
        x, y = batch
        return self.fc(x[:, :4]).sum()

def batches():
    for i in range(3):
        yield torch.ones(4, 8) * i, torch.arange(4) % 3

def triples():
    yield torch.rand(4, 8), torch.rand(4, 8), torch.rand(4, 8)

def three():
    yield torch.rand(4, 8), torch.arange(4) % 3, torch.ones(4)

def dicts():
    yield {"inputs": torch.rand(4, 8), "target": torch.arange(4) % 3}
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOURCE)
    scope: dict = {}
    exec(SOURCE, scope)
    torch.manual_seed(0)
    return scope["Net"]()


PAIR = (X, Y)
GETS = {
    # method: (batch, target, own target, args, kwargs)
    "training_step": (Batch((X,)), Y, False, (PAIR,), {"batch_idx": 0}),
    "training_step, in two": (Batch((X, Y)), None, False, (PAIR,), {"batch_idx": 0}),
    "training_step, by name": (Batch((), {"a": X}), None, False, ({"a": X},), {"batch_idx": 0}),
    "parts": (Batch((X, X, Y)), None, False, ((X, X, Y),), {}),
    "compare": (Batch((X,)), Y, False, PAIR, {}),
    "compare, with a loss": (Batch((X, Y)), Y, True, PAIR, {}),
    "named": (Batch((X,), {"labels": Y}), None, False, (X,), {"labels": Y}),
    "many": (Batch((X, Y)), None, False, (PAIR,), {}),
    "encode": (Batch((X,)), Y, True, (X,), {}),
    "broken": (Batch((X,)), Y, False, (PAIR,), {"batch_idx": 0, "optimizer_idx": 0}),
}


@pytest.mark.parametrize(("batch", "target", "own", "args", "kwargs"), GETS.values(), ids=GETS)
def test_what_a_method_gets(net, batch, target, own, args, kwargs, request):
    name = request.node.callspec.id.partition(",")[0]
    entry = step_method(net, name, own_target=own)
    (found,) = entry.batches(lambda: iter([batch]), target)()
    assert (found.args, found.kwargs) == (args, kwargs)
    assert found.target is (target if own else None)


CONFIGS = {
    "a target": ["call=training_step", "input.shape=[4, 8]", "target=[0, 1, 2, 0]"],
    "two sources": [
        "call=training_step",
        "input=[{shape: [4, 8]}, {shape: [4], fill: randint(3)}]",
    ],
    "a data function": ["call=training_step", "input=./net.py:batches"],
    "three parts of a data function": ["call=parts", "input=net:triples"],
    "as many parts as it takes": ["call=weighted", "input=./net.py:three"],
    "two parts": ["call=compare", "input=./net.py:batches"],
    "inputs and target": ["call=compare", "input.shape=[4, 8]", "target=[0, 1, 2, 0]"],
    "a loss of the config's": ["call=encode", "input.shape=[4, 8]", "loss=cross_entropy"],
    "forward itself": ["call=forward", "input.shape=[4, 8]"],
}


@pytest.mark.slow
@pytest.mark.parametrize("overrides", CONFIGS.values(), ids=CONFIGS)
def test_a_config_names_a_method(net, overrides):
    report = gradscope.inspect("./net.py:Net", overrides=[*overrides, "steps=3"])
    assert report.status != "failed"
    assert report.parameters[0].gradient.norm > 0
    method = overrides[0].removeprefix("call=")
    said = any(n.startswith(f"call: {method} instead of") for n in report.run.notices)
    assert said is (method != "forward")


def test_a_data_functions_batch_is_not_taken_apart(net):
    workload = load(read("./net.py:Net", ["call=training_step", "input=./net.py:dicts"]))
    (batch,) = next(workload.batches()).args
    assert set(batch) == {"inputs", "target"}


def test_the_number_of_the_batch(net):
    workload = load(read("./net.py:Net", ["call=training_step", "input=./net.py:batches"]))
    assert [batch.kwargs["batch_idx"] for batch in workload.batches()] == [0, 1, 2]


@pytest.mark.parametrize(
    "entry", [gradscope.inspect, gradscope.check, gradscope.why, gradscope.graph]
)
def test_every_entry_takes_a_method(net, entry):
    assert entry(net, (X, Y), call="training_step").run.loss == "output.loss"
    assert entry(net, X, target=Y, call="compare").run.loss == "output"


def test_the_gradients_are_those_of_the_method(net):
    report = gradscope.inspect(net.double(), (X.double(), Y), call="training_step", verify=True)
    net.training_step((X.double(), Y), 0)["loss"].backward()
    expected = [p.grad.norm().item() for p in net.parameters()]
    assert [p.gradient.norm for p in report.parameters] == pytest.approx(expected, rel=1e-9)
    assert report.run.verified.identical


def test_the_callers_inputs_need_none_in_the_config(net):
    assert gradscope.inspect("./net.py:Net", (X, Y), call="training_step").status != "failed"


def test_a_method_that_raises_is_explained(net):
    with pytest.raises(ModelError) as caught:
        gradscope.inspect(net, (X, Y), call="broken")
    assert caught.value.report.error.kind == "shape-mismatch"


REFUSED = {
    "a method that there is not": (["call=training_stp"], "did you mean `training_step`?"),
    "a module": (["call=fc"], "it has `batches`|`broken`"),
    "no batch": (["call=training_step"], "give `input`, and `target`"),
    "a target that is drawn later": (
        ["call=compare", "input.shape=[4, 8]", "target=random"],
        "name its values, or a source",
    ),
}


@pytest.mark.parametrize(("overrides", "help"), REFUSED.values(), ids=REFUSED)
def test_refused(net, overrides, help):
    with pytest.raises(ConfigError) as caught:
        load(read("./net.py:Net", overrides))
    (problem,) = caught.value.problems
    assert problem.place.key == "call"
    assert re.search(help, problem.help)


def test_a_live_modules_method_that_there_is_not():
    with pytest.raises(ConfigError, match="has no method `step`"):
        gradscope.inspect(nn.Linear(2, 2), call="step")
