"""Messages on intended zeros, on the user's own code, and on zeros that last several steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradscope
from explain.zero.cases import X, Y, zero_names
from gradscope.explain.zero.explain_zero import explain_zeros
from gradscope.records.answers import Answer
from gradscope.rules import RuleSettings, diagnose


def one_answer(model: nn.Module, forward: Callable[[], torch.Tensor]) -> Answer:
    (answer,) = explain_zeros(
        model, forward, lambda loss: loss.backward(retain_graph=True), zero_names(model, forward)
    )
    return answer


# ---------------------------------------------------------------- zeros that take several steps


class Gated(nn.Module):
    """A residual branch behind a zero gate, as in ReZero or adaLN-zero, and a zero head."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.inner = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.gates = nn.ParameterList(torch.zeros(4) for _ in range(depth))
        self.head = nn.Linear(4, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer, gate in zip(self.inner, self.gates, strict=True):
            x = x + gate * torch.tanh(layer(x))
        return self.head(x)


def steps_in_plain_pytorch(net: nn.Module, most: int) -> int | None:
    """After how many steps of SGD everything that began as zero has had a gradient."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    left = {name for name, _ in net.named_parameters()}
    for step in range(most + 1):
        optimizer.zero_grad()
        F.cross_entropy(net(X), Y).backward()
        left -= {n for n, p in net.named_parameters() if p.grad is not None and p.grad.any()}
        if not left:
            return step
        optimizer.step()
    return None


@pytest.mark.parametrize(("depth", "needed"), [(0, 1), (1, 2)])
def test_a_zero_head_in_front_of_zero_gates_recovers(depth: int, needed: int) -> None:
    torch.manual_seed(0)
    net = Gated(depth)
    report = gradscope.check(net, X, target=Y, loss="cross_entropy", optimizer=_sgd)
    assert {a.recovers for a in report.answers if a.cause == "zero-weight"} == {True}
    words = {1: "one optimizer step", 2: "2 optimizer steps"}[needed]
    assert {a.advice for a in report.answers} == {
        f"nothing to mend: a gradient arrives after {words}"
    }
    assert {f.severity for f in report.findings if f.code == "GS103"} == {"info"}
    assert steps_in_plain_pytorch(net, 3) == needed


def _sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_what_no_step_ends_is_an_error_still() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
    nn.init.zeros_(net[1].weight)
    nn.init.zeros_(net[2].weight)
    report = gradscope.check(net, X, target=Y, loss="cross_entropy", optimizer=_sgd)
    assert {a.recovers for a in report.answers} == {False}
    assert all("after 3 optimizer steps" in (a.advice or "") for a in report.answers)
    assert "error" in {f.severity for f in report.findings if f.code == "GS103"}
    assert steps_in_plain_pytorch(net, 6) is None


def test_places_that_recover_at_different_steps_are_not_one_finding() -> None:
    settings = RuleSettings(select=("GS103",))
    torch.manual_seed(0)
    net = Gated(1)
    report = gradscope.check(net, X, target=Y, loss="cross_entropy", optimizer=_sgd)
    found = [f for f in diagnose(report, settings) if f.code == "GS103"]
    assert len(found) == len({a.advice for a in report.answers})


# ---------------------------------------------------------------- causes by their own name


def test_a_clamp_beyond_its_bounds_is_saturated() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.fc(x) + 30).clamp(0, 1)

    report = gradscope.check(Net(), X, target=torch.rand(3, 2), loss="mse")
    (answer,) = report.answers
    assert (answer.cause, answer.recovers) == ("saturated", False)
    assert [f.severity for f in report.findings if f.code == "GS103"] == ["error"]


@pytest.mark.parametrize("functional", [False, True])
def test_a_dropout_that_drops_all_is_named(functional: bool) -> None:
    drop = (lambda h: F.dropout(h, 1.0)) if functional else nn.Dropout(1.0)
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)})
    answer = one_answer(model, lambda: F.cross_entropy(model["b"](drop(model["a"](X))), Y))
    assert answer.cause == "masked"
    assert "dropout with p=1" in answer.message
    assert "`p` below 1" in (answer.advice or "")


def test_a_mask_beside_a_dropout_is_a_mask() -> None:
    model = nn.Linear(4, 4)
    drop = nn.Dropout(0.1)
    answer = one_answer(model, lambda: (drop(model(X)) * torch.zeros(4)).sum())
    assert "dropout" not in answer.message


def test_a_hook_on_a_module_is_told_as_one() -> None:
    def quiet(module, sent, got):
        return (sent[0] * 0,)

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[1].register_full_backward_hook(quiet)
    answer = one_answer(model, lambda: F.cross_entropy(model(X), Y))
    assert (answer.cause, answer.module, answer.upstream) == (
        "masked",
        "1",
        ("0.weight", "0.bias"),
    )
    assert "a backward hook" in answer.message and "autograd function" not in answer.message
    assert (answer.location or "").endswith(
        f"test_zero_messages.py:{quiet.__code__.co_firstlineno}"
    )


def test_one_logit_under_cross_entropy() -> None:
    model = nn.Linear(4, 1)
    answer = one_answer(model, lambda: F.cross_entropy(model(X), torch.zeros(3).long()))
    assert answer.cause == "saturated"
    assert "always 0, the softmax 1" in answer.message
    assert "BCEWithLogitsLoss" in (answer.advice or "")


def test_a_partner_of_zeros_that_is_frozen() -> None:
    model = nn.ModuleDict({"A": nn.Linear(4, 2, bias=False), "B": nn.Linear(2, 2, bias=False)})
    nn.init.zeros_(model["B"].weight)
    model["B"].requires_grad_(False)
    base = nn.Linear(4, 2)
    answer = one_answer(model, lambda: F.cross_entropy(base(X) + model["B"](model["A"](X)), Y))
    assert answer.cause == "zero-weight"
    assert "`B.weight`, which is all zeros and frozen" in answer.message
    assert "unfreeze" in (answer.advice or "")


def test_a_margin_that_is_met_is_no_error() -> None:
    model = nn.Linear(4, 3)
    far = lambda o: F.triplet_margin_loss(o, o + 0.001 * X[:, :3], o.flip(0) + 90)  # noqa: E731
    report = gradscope.check(model, X, loss=far)
    assert report.loss == 0
    assert [f.severity for f in report.findings if f.code == "GS103"] == ["info"]
    (answer,) = report.answers
    assert "nothing left to learn" in answer.message


def test_a_dead_gate_of_a_loss_that_is_zero_is_dead() -> None:
    model = nn.Linear(4, 2)
    answer = one_answer(model, lambda: (F.relu(model(X) - 50) * 2 * X[:, :2]).sum())
    assert answer.cause == "dead-activation"


# ---------------------------------------------------------------- one answer, and empty batches


def test_heads_that_share_a_line_are_one_answer() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, levels: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([conv(one) for conv, one in zip(self.convs, levels, strict=True)])

    model = nn.ModuleDict({"extra": nn.Linear(4, 4), "box": Head(), "name": Head()})

    def forward() -> torch.Tensor:
        levels = [X, model["extra"](X)]
        return model["box"](levels)[:2].sum() + model["name"](levels)[:2].square().sum()

    answer = one_answer(model, forward)
    assert answer.cause == "masked"
    assert {"extra.weight", "box.convs.1.weight", "name.convs.1.weight"} <= {*answer.upstream}
    assert "The same in `name`." in answer.message or "The same in `box`." in answer.message


@pytest.mark.parametrize("wants", [False, True])
def test_an_empty_batch_is_called_so(wants: bool) -> None:
    x = torch.zeros(0, 4, requires_grad=wants)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    answer = one_answer(model, lambda: model(x).sum())
    assert (answer.cause, answer.module) == ("masked", "0")
    assert "the input is empty" in answer.message


def test_a_choice_of_nothing_is_the_choice() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    none = torch.zeros(3, dtype=torch.bool)
    answer = one_answer(model, lambda: model[1](model[0](X)[none]).sum())
    assert answer.cause == "masked"
    assert "indexing" in answer.message and "selects nothing" in answer.message


# ---------------------------------------------------------------- what a text shows


class Adapted(nn.Module):
    """A low-rank adapter whose scale is an integer division."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 4)
        self.scaling = 4 // 8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(self.down(x)) * self.scaling


def test_a_factor_that_is_0_has_a_name_and_a_line() -> None:
    net = Adapted()
    answer = one_answer(net, lambda: F.mse_loss(net(X), torch.ones(3, 4)))
    assert "multiplies by `self.scaling`, which is 0 (set at " in answer.message


def test_an_embedding_that_gets_a_gradient_at_its_padding_only() -> None:
    embedding = nn.Embedding(6, 4, padding_idx=0)
    tokens = torch.tensor([[1, 0], [3, 0], [4, 0]])
    answer = one_answer(embedding, lambda: (embedding(tokens)[:, 1] + 1).square().sum())
    assert "gets a gradient only where it reads padding" in answer.message
    assert "inverted" in answer.advice
