"""The reference against full backward hooks; `test_truth` holds it against plain steps."""

from __future__ import annotations

import ast
import contextlib
import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from truth.cases import ALL, Case, weighted_sum
from truth.reductions import statistics
from truth.reference import observe
from truth.steps import truth_of

# Nested reentrant checkpoints: the inner one's first pass runs without gradients, as it should.
pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),
    pytest.mark.slow,
]


HOOKABLE = ("plain", "repeated-cell", "tied-transformer", "autocast", "called-twice")


# Token ids need no gradient, of which full backward hooks warn.
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("case", [c for c in ALL if c.name in HOOKABLE], ids=lambda case: case.name)
def test_the_twin_has_the_gradients_of_full_backward_hooks(case: Case) -> None:
    dtype = torch.float64 if case.double else torch.float32
    truth = truth_of(case, dtype)
    model, inputs = case.build(dtype)
    args, kwargs = case.arguments(inputs)
    seen: dict[str, list[tuple[Any, Any]]] = {}
    for name, module in model.named_modules():
        rows = seen.setdefault(name, [])
        module.register_full_backward_hook(lambda m, i, o, rows=rows: rows.append((i, o)))
    cast = torch.autocast("cpu", case.autocast) if case.autocast else contextlib.nullcontext()
    torch.manual_seed(0)
    with cast:
        loss = weighted_sum(model(*args, **kwargs))
    loss.backward()
    met = 0
    for call in truth.calls:
        # Backward meets the calls of a module from the last to the first.
        if not any(slot.gradient is not None for slot in call.outputs):
            continue
        inward, outward = seen[call.name][-1 - call.call]
        if any(call.shared(slot) for slot in call.inputs):
            inward = (sum(gradient for gradient in inward if gradient is not None),)
        for slot, gradient in zip(call.inputs, inward, strict=False):
            met += _same(slot.gradient, gradient, f"{call.name} input {slot.path}")
        for slot, gradient in zip(call.outputs, outward, strict=False):
            met += _same(slot.gradient, gradient, f"{call.name} output {slot.path}")
    assert met > 5


def _same(ours: Tensor | None, theirs: Tensor | None, where: str) -> bool:
    if ours is None or theirs is None:
        return False  # hooks report zeros or None where there is no path; nothing to compare
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, msg=where)
    return True


def test_the_model_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    before = copy.deepcopy(model.state_dict())
    call = nn.Module.__call__
    observe(model, (torch.randn(2, 3),), {}, weighted_sum)
    assert nn.Module.__call__ is call
    assert model[1].inplace
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_input_gradients_go_through_the_call_alone() -> None:
    """y = a·x + x with a scalar layer: through the call a, of the tensor a + 1."""
    model = _Residual()
    truth = observe(model, (torch.tensor([[2.0]]),), {}, torch.sum)
    stem, branch = truth.calls[1], truth.calls[2]
    assert branch.name == "branch"
    assert branch.inputs[0].gradient is not None and stem.outputs[0].total is not None
    assert branch.inputs[0].gradient.item() == 3.0
    assert stem.outputs[0].total.item() == 4.0


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = nn.Linear(1, 1), nn.Linear(1, 1)
        with torch.no_grad():
            self.branch.weight.fill_(3.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.branch(x) + x


def test_statistics_of_a_hand_made_tensor() -> None:
    stats = statistics(torch.tensor([3.0, 4.0, 0.0, float("nan"), float("-inf")]))
    assert stats["norm"] == pytest.approx(5.0, rel=1e-14)
    assert stats["mean"] == pytest.approx(7 / 3, rel=1e-14)
    assert stats["std"] == pytest.approx((26 / 9) ** 0.5, rel=1e-14)
    assert (stats["min"], stats["max"]) == (0.0, 4.0)
    assert (stats["zeros"], stats["nan"], stats["inf"]) == (1, 1, 1)
    assert stats["values"] == [3.0, 4.0, 0.0, "nan", "-inf"]


def test_statistics_beyond_float32() -> None:
    assert statistics(torch.full((4,), 1e30))["norm"] == pytest.approx(2e30, rel=1e-6)
    assert statistics(torch.full((4,), 1e-200).double() * 0 + 1e-200)["norm"] == 2e-200
    assert statistics(torch.tensor([3 + 4j]))["norm"] == pytest.approx(5.0)
    assert statistics(torch.empty(0, 3))["mean"] is None


@pytest.mark.parametrize("name", ["reference", "reductions", "containers"])
def test_the_reference_imports_nothing_of_gradscope(name: str) -> None:
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text())
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    roots = {str(module).split(".")[0] for module in found} - sys.stdlib_module_names
    assert roots <= {"torch", "truth"}
    assert {m for m in found if str(m).startswith("truth")} <= {"truth.containers"}
