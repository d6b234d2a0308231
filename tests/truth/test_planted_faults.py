"""The comparison must reject a report with a fault planted in it, whatever the fault."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradscope
from gradscope.records.json import to_data
from truth import nets, odd_nets
from truth.cases import weighted_sum
from truth.compare import compare
from truth.reductions import statistics
from truth.reference import Truth, observe

pytestmark = pytest.mark.slow

Data = dict[str, Any]


class Faulty(nn.Module):
    """In-place followers, a residual, self-attention, a pass-through and a reused cell."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu, self.branch = nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.identity, self.cell = nn.Identity(), nn.Linear(4, 4)
        self.tied = self.cell

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        x = self.branch(x) + x
        tokens = x.flatten(2).transpose(1, 2)
        tokens = self.identity(self.attention(tokens, tokens, tokens)[0])
        return self.cell(torch.tanh(self.cell(tokens)))


def observed(model: nn.Module, *args: Any) -> tuple[Data, Truth]:
    data = to_data(gradscope.inspect(model, args, loss=weighted_sum))
    return data, observe(model, args, {}, weighted_sum)


@pytest.fixture(scope="module")
def pair() -> tuple[Data, Truth]:
    torch.manual_seed(0)
    return observed(Faulty(), torch.randn(2, 3, 5, 5))


def row(data: Data, name: str, call: int = 0) -> Data:
    return next(r for r in data["calls"] if (r["name"], r["call"]) == (name, call))


def missed_call(data: Data, truth: Truth) -> None:
    data["calls"].remove(row(data, "cell", 1))


def invented_call(data: Data, truth: Truth) -> None:
    data["calls"].append({**row(data, "cell", 1), "call": 2})


def exchanged_calls(data: Data, truth: Truth) -> None:
    first, second = row(data, "cell"), row(data, "cell", 1)
    first["call"], second["call"] = 1, 0


def swapped_gradients(data: Data, truth: Truth) -> None:
    branch = row(data, "branch")
    inward, outward = branch["inputs"][0], branch["outputs"][0]
    inward["gradient"], outward["gradient"] = outward["gradient"], inward["gradient"]


def read_after_follower(data: Data, truth: Truth) -> None:
    row(data, "norm")["outputs"][0]["activation"] = row(data, "relu")["outputs"][0]["activation"]


def input_read_after_the_call(data: Data, truth: Truth) -> None:
    relu = row(data, "relu")
    relu["inputs"][0]["activation"] = relu["outputs"][0]["activation"]


def halved_residual(data: Data, truth: Truth) -> None:
    stats = row(data, "relu")["outputs"][0]["gradient"]
    for key in ("norm", "mean", "std", "min", "max"):
        stats[key] /= 2


def branch_only(data: Data, truth: Truth) -> None:
    """The residual's gradient without its skip path."""
    relu = row(data, "relu")["outputs"][0]
    relu["gradient"] = row(data, "branch")["inputs"][0]["gradient"]


def branch_with_skip(data: Data, truth: Truth) -> None:
    """The tensor's gradient where the call's own was asked for."""
    branch = row(data, "branch")["inputs"][0]
    branch["gradient"] = row(data, "relu")["outputs"][0]["gradient"]


def lost_parameter_gradient(data: Data, truth: Truth) -> None:
    data["parameters"][0]["gradient"] = None


def gradient_of_one_call(data: Data, truth: Truth) -> None:
    entry = next(p for p in data["parameters"] if p["name"] == "cell.weight")
    call = truth.calls[-1]
    assert call.name == "cell"
    given, come = call.inputs[0].record.flatten(0, 1), call.outputs[0].total.flatten(0, 1)
    entry["gradient"] = statistics(come.t() @ given)


def unexplained_null(data: Data, truth: Truth) -> None:
    row(data, "cell")["inputs"][0]["gradient"] = None


def wrong_number_with_a_note(data: Data, truth: Truth) -> None:
    """The note allows a null, never another number."""
    relu = row(data, "relu")
    relu["notes"] = [*relu["notes"], "in-place-view"]
    relu["inputs"][0]["gradient"]["norm"] *= 1.001


def forgotten(note: str) -> Callable[[Data, Truth], None]:
    def fault(data: Data, truth: Truth) -> None:
        noted = [r for r in data["calls"] if any(n.startswith(note) for n in r["notes"])]
        assert noted
        noted[0]["notes"] = []

    fault.__name__ = f"forgotten_{note}"
    return fault


def one_zero_more(data: Data, truth: Truth) -> None:
    row(data, "relu")["outputs"][0]["activation"]["zeros"] += 1


def a_slightly_wrong_norm(data: Data, truth: Truth) -> None:
    row(data, "stem")["outputs"][0]["gradient"]["norm"] *= 1 + 2e-5


def sample_deviation(data: Data, truth: Truth) -> None:
    stats = row(data, "relu")["outputs"][0]["activation"]
    stats["std"] *= (stats["numel"] / (stats["numel"] - 1)) ** 0.5


def lost_alias(data: Data, truth: Truth) -> None:
    row(data, "cell")["aliases"] = []


def wrong_grad_fn(data: Data, truth: Truth) -> None:
    row(data, "norm")["outputs"][0]["grad_fn"] = "ReluBackward0"


FAULTS = (
    missed_call,
    invented_call,
    exchanged_calls,
    swapped_gradients,
    read_after_follower,
    input_read_after_the_call,
    halved_residual,
    branch_only,
    branch_with_skip,
    lost_parameter_gradient,
    gradient_of_one_call,
    unexplained_null,
    wrong_number_with_a_note,
    forgotten("pass-through"),
    forgotten("shared-input"),
    one_zero_more,
    a_slightly_wrong_norm,
    sample_deviation,
    lost_alias,
    wrong_grad_fn,
)


def test_without_a_fault_nothing_differs(pair: tuple[Data, Truth]) -> None:
    found = compare(*pair)
    assert not found.differences
    assert found.hidden == 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(
    pair: tuple[Data, Truth], fault: Callable[[Data, Truth], None]
) -> None:
    data = copy.deepcopy(pair[0])
    fault(data, pair[1])
    assert compare(data, pair[1]).differences


class Repeat(nn.Module):
    """A million equal values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 0.37))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.repeat(1_000_000) + x


def test_a_float32_norm_of_a_million_values_is_found() -> None:
    model, x = Repeat(), torch.zeros(1)
    data = to_data(gradscope.inspect(model, x, loss=lambda out: out.mean()))
    truth = observe(model, (x,), {}, lambda out: out.mean())
    assert not compare(data, truth).differences
    values = truth.calls[0].outputs[0].record.detach()
    true = statistics(values)["norm"]
    naive = [float(torch.linalg.vector_norm(values)), float(torch.dot(values, values).sqrt())]
    wrong = max(naive, key=lambda norm: abs(norm - true))
    assert abs(wrong - true) > 1e-5 * true, "this machine's float32 norm happens to be right"
    data["calls"][0]["outputs"][0]["activation"]["norm"] = wrong
    [difference] = compare(data, truth).differences
    assert ".value.norm" in difference


def test_a_cancelling_deviation_is_found() -> None:
    """std from the sum of squares, where the mean is a thousand times as large."""
    torch.manual_seed(0)
    data, truth = observed(odd_nets.Offset(), torch.randn(6, 4))
    assert not compare(data, truth).differences
    lifted = row(data, "lift")["outputs"][0]["activation"]
    values = truth.calls[-1].outputs[0].record.detach()
    lifted["std"] = float(((values * values).mean() - values.mean() ** 2).clamp(min=0).sqrt())
    assert compare(data, truth).differences


def test_dropped_non_finite_values_are_found() -> None:
    torch.manual_seed(0)
    data, truth = observed(odd_nets.NonFinite(), torch.randn(6, 4))
    assert not compare(data, truth).differences
    row(data, "log")["outputs"][0]["activation"]["nan"] = 0
    assert compare(data, truth).differences


def test_a_hidden_gradient_needs_its_note() -> None:
    torch.manual_seed(0)
    data, truth = observed(nets.InPlaceView(), torch.randn(2, 3, 8, 8))
    relu = row(data, "relu")
    relu["inputs"][0]["gradient"], relu["notes"] = None, ["in-place-view"]
    found = compare(data, truth)
    assert (found.differences, found.hidden) == ([], 1)
    relu["notes"] = []
    assert compare(data, truth).differences
