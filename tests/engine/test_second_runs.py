"""Questions that a full sample answers: modules that other seeds reach, the line of a softmax,
parameters that the model does not know.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradscope
from gradscope.records.json import dumps, loads
from gradscope.records.report import Finding, Report

Unchanged = Callable[[nn.Module], AbstractContextManager[None]]
Y = torch.tensor([0, 1, 2, 0])


def inputs(rows: int = 4) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(0))


class Dropping(nn.Module):
    """Layers that each run drops by chance."""

    def __init__(self, share: float = 0.5, cut: int = 4, outside: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)
        self.share, self.cut = share, cut
        self.spare = nn.Linear(8, 8) if outside else None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[: self.cut]:
            if random.random() >= self.share:
                x = torch.relu(block(x))
        return self.head(x)


class Routed(nn.Module):
    """Each sample goes to one expert: two samples reach two of eight at the most."""

    def __init__(self, experts: int = 8) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(8, experts), nn.Linear(8, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight = self.gate(x).softmax(-1)
        chosen = weight.argmax(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero(as_tuple=True)[0]
            if len(rows):
                y = y.index_add(0, rows, expert(x[rows]) * weight[rows, i : i + 1])
        return self.head(y)


class Chancy(nn.Module):
    """Its own gain that half of all runs apply: no module is there that did not run."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.gain = nn.Linear(8, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        return y * self.gain if random.random() < 0.5 else y


def found(report: Report, *codes: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code in codes]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def test_layers_dropped_by_chance_are_no_error(unchanged: Unchanged):
    model = seeded(Dropping)
    with unchanged(model):
        report = gradscope.check(model, inputs(), target=Y)
    assert {f.severity for f in found(report, "GS401", "GS402")} == {"info"}
    assert "another seed" in found(report, "GS402")[0].message
    assert report.elsewhere
    assert loads(dumps(report), Report) == report


def test_a_layer_that_no_seed_reaches_is_still_told():
    model = seeded(lambda: Dropping(share=0.0, cut=3))
    (finding,) = found(gradscope.check(model, inputs(), target=Y), "GS401", "GS402")
    assert (finding.code, finding.severity, finding.name) == ("GS402", "warning", "blocks.3")
    model = seeded(lambda: Dropping(share=0.0, outside=True))
    (finding,) = found(gradscope.check(model, inputs(), target=Y), "GS401", "GS402")
    assert (finding.severity, finding.name) == ("error", "spare")


def test_experts_that_no_sample_went_to_are_one_warning():
    report = gradscope.check(seeded(Routed), inputs(2), target=Y[:2])
    (finding,) = found(report, "GS401", "GS402")
    assert (finding.code, finding.severity) == ("GS402", "warning")
    assert "others like it in `experts`" in finding.message


def test_a_parameter_used_by_chance_is_no_error():
    for seed in range(8):
        report = gradscope.check(seeded(Chancy), inputs(), target=Y, seed=seed)
        assert not [f for f in found(report, "GS401") if f.severity != "info"], seed
        if found(report, "GS401"):
            break
    else:
        pytest.fail("no seed left the gain out")


class Probabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x), 1)  # marked


class Clipped(Probabilities):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x))  # marked


class Squashed(Probabilities):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.fc(x))  # marked


def own_softmax(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.softmax(1), target)  # marked


def marked(thing: Any) -> str:
    lines, first = inspect.getsourcelines(thing)
    (offset,) = [i for i, line in enumerate(lines) if "# marked" in line]
    return f"{Path(__file__).name}:{first + offset}"


@pytest.mark.parametrize(
    ("code", "kind", "loss", "target"),
    [
        ("GS501", Probabilities, "cross_entropy", Y),
        ("GS502", Clipped, "cross_entropy", Y),
        ("GS503", Squashed, "bce_with_logits", F.one_hot(Y, 3).float()),
    ],
)
def test_what_stands_before_the_loss_has_its_line(
    unchanged: Unchanged, code: str, kind: type[nn.Module], loss: str, target: Tensor
):
    model = kind()
    with unchanged(model):
        report = gradscope.check(model, inputs(), target=target, loss=loss)
    (finding,) = found(report, code)
    assert finding.location is not None
    assert finding.location.endswith(marked(kind))
    assert finding.message.startswith("its ")


def test_a_softmax_in_the_loss_is_the_losss():
    report = gradscope.check(nn.Linear(8, 3), inputs(), target=Y, loss=own_softmax)
    (finding,) = found(report, "GS501")
    assert finding.message.startswith("the loss's own softmax")
    assert finding.location is not None
    assert finding.location.endswith(marked(own_softmax))


class Listed(nn.Module):
    def __init__(self, registered: bool = False) -> None:
        super().__init__()
        layers = [nn.Linear(8, 8) for _ in range(3)]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


class Loose(nn.Module):
    """Bare tensors that require a gradient, in its own dict module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Identity(), nn.Linear(8, 3)
        self.inner.scales = {"a": torch.ones(8, requires_grad=True)}

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x) * self.inner.scales["a"])


@pytest.mark.parametrize("options", [{}, {"optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1}}])
def test_layers_in_a_plain_list_are_no_parameters(unchanged: Unchanged, options: dict[str, Any]):
    model = seeded(Listed)
    with unchanged(model):
        report = gradscope.check(model, inputs(), target=Y, **options)
    (finding,) = found(report, "GS404")
    assert (finding.severity, finding.name, finding.value) == ("error", "", 6.0)
    assert "`layers`" in finding.message
    assert "nn.ModuleList" in finding.advice
    assert loads(dumps(report), Report) == report
    (finding,) = found(gradscope.check(Loose(), inputs(), target=Y), "GS404")
    assert (finding.name, finding.value) == ("inner", 1.0)


class Starting(nn.Module):
    """Makes its first state with a gradient in forward, as old code does, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 8), nn.Linear(8, 3)
        self.table = [torch.randn(8)]

    def forward(self, x: Tensor) -> Tensor:
        self.state = torch.zeros(len(x), 8, requires_grad=True)
        return self.head(self.cell(x + self.table[0], self.state))


def test_what_is_meant_to_be_outside_is_left_alone():
    x = inputs().requires_grad_()
    criterion = nn.Linear(3, 1)

    def learnt(output: Tensor) -> Tensor:
        return criterion(output).mean()

    model = seeded(Listed)

    def holding_all(parameters: Any) -> torch.optim.Optimizer:
        listed = [p for layer in model.layers for p in layer.parameters()]
        return torch.optim.SGD([*parameters, *listed], lr=0.1)

    for report in (
        gradscope.check(seeded(lambda: Listed(registered=True)), x, target=Y),
        gradscope.check(Starting(), x, target=Y),
        gradscope.check(nn.Linear(8, 3), x, loss=learnt),
        gradscope.check(model, x, target=Y, optimizer=holding_all),
    ):
        assert not found(report, "GS404")
