"""Facts read off a loss's graph, and the steps in which it is read."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gradscope.records.loop import LoopRecord
from gradscope.rules._book import entries
from gradscope.training.loop.loss_graph import LossGraphs

ENTRIES = {entry.rule.code: entry for entry in entries()}
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def read(loss: torch.Tensor) -> LossGraphs:
    graphs = LossGraphs()
    graphs.backward_begins([loss], sampled=True)
    return graphs


@pytest.mark.parametrize("alone", [False, True])
def test_a_detector_of_one_class_has_such_a_term_on_purpose(alone: bool) -> None:
    out = nn.Linear(4, 5)(X)
    loss = F.cross_entropy(out[:, :1], torch.zeros(8).long())
    if not alone:
        loss = loss + F.mse_loss(out[:, 1:], X)
    (one,) = read(loss).operations()
    assert one.alone is alone
    record = LoopRecord(steps=9, graphs=1, operations=(one,), ended=True)
    found = list(ENTRIES["GS818"].find_in_loop(record, ENTRIES["GS818"].rule.limits()))
    assert bool(found) is alone


def test_a_graph_is_read_in_a_sampled_step_alone() -> None:
    graphs = LossGraphs()
    for _ in range(9):
        graphs.backward_begins(
            [F.cross_entropy(nn.Linear(4, 3)(X), torch.arange(8) % 3)], sampled=0
        )
    assert graphs.read == 0 and graphs.targets() == ()


def test_targets_that_are_alike_are_read_longer_but_not_for_ever() -> None:
    net, graphs = nn.Linear(4, 3), LossGraphs()
    for step in range(200):
        loss = F.cross_entropy(net(X), torch.ones(8).long())
        graphs.backward_begins([loss], sampled=step < 5)
    (one,) = graphs.targets()
    assert (one.value, one.classes, one.least) == (1.0, 3, 8)
    assert one.batches == graphs.read == 5 + 64


@pytest.mark.parametrize("weight", [None, torch.tensor(49.0)], ids=["plain", "weighted"])
def test_no_constant_answer_is_known_for_weighted_positives(weight: torch.Tensor | None) -> None:
    labels = (torch.arange(8) == 0).float()
    scores = nn.Linear(4, 1)(X).squeeze(1)
    (one,) = read(F.binary_cross_entropy_with_logits(scores, labels, pos_weight=weight)).targets()
    assert (one.constant is None) is (weight is not None)


def test_one_other_target_ends_it() -> None:
    net, graphs = nn.Linear(4, 3), LossGraphs()
    for step in range(60):
        labels = torch.ones(8).long()
        labels[0] = 1 + (step == 20)
        graphs.backward_begins([F.cross_entropy(net(X), labels)], sampled=step < 5)
    (one,) = graphs.targets()
    assert one.value is None and one.batches == 21


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def pieces() -> torch.Tensor:
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], requires_grad=True)
    return torch.nested.to_padded_tensor(nested * 2, 0.0).square().mean()


ODD = {
    "a function in Python": lambda: (Doubled.apply(nn.Linear(4, 1)(X)) - X).square().mean(),
    "nested tensors": pieces,
    "a complex loss": lambda: (
        (torch.randn(3, dtype=torch.cfloat, requires_grad=True) * 2).abs().sum()
    ),
    "a leaf": lambda: torch.ones((), requires_grad=True),
    "an empty batch": lambda: F.cross_entropy(nn.Linear(4, 3)(X[:0]), torch.zeros(0).long()),
    "one sample": lambda: F.mse_loss(nn.Linear(4, 1)(X[:1]), X[:1, 0][:, None]),
    "a long loop": lambda: sum(F.mse_loss(nn.Linear(4, 1)(X), X[:, :1]) for _ in range(400)),
    "no scalar": lambda: nn.Linear(4, 1)(X),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore")
def test_odd_losses(name: str) -> None:
    graphs = read(ODD[name]())
    assert graphs.operations() == ()


@pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"),
    reason="PyTorch 2.8 does not say whether a tensor lies behind hooks",
)
def test_what_lies_behind_somebodys_hooks_is_not_unpacked() -> None:
    asked = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = F.cross_entropy(nn.Linear(4, 3)(X), torch.zeros(8).long())
    assert read(loss).targets() == () and asked == []


def test_a_contrast_of_two_heads_is_of_each() -> None:
    first, second = nn.Linear(4, 3), nn.Linear(4, 3)
    graphs = LossGraphs()
    for _ in range(6):
        one = F.cross_entropy(first(X), torch.zeros(8).long())
        other = F.cross_entropy(second(X), torch.arange(8) % 3)
        graphs.backward_begins([one + other], sampled=True)
    assert sorted(str(one.value) for one in graphs.targets()) == ["0.0", "None"]
