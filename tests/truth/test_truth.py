"""Every number of a report against the twin's, the twin's gradients against those of a plain step,
and these with and without observation.

Each case runs in float64, where the twin's own rounding is far below the bounds, and in float32.
The clones add nothing and change no kernel, so the twin's float32 gradients are as a rule
bit-identical to the plain step's; but where three or more gradients meet at one tensor (a cell
called five times) they may be added in another order. A float32 case whose twin is inexact for that
reason, and whose report then differs in numbers alone, is skipped: float64 holds it to account.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import gradscope
from gradscope.records.json import to_data
from truth.cases import ALL, ZOO, Case
from truth.compare import Comparison, compare
from truth.reference import Truth, observe
from truth.steps import identical, inspected, plain_step, report_of, truth_of

pytestmark = [
    pytest.mark.numbers,
    pytest.mark.slow,
    # Nested reentrant checkpoints: the inner one's first pass runs without gradients, as it should.
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),
]

#: Differences that rounding can make, unlike a null, a missing call or a wrong note.
ROUNDED = re.compile(r"\.gradient\.(norm|mean|std|min|max|zeros|values): ")

#: Cases in which an input gradient may be null with the note `in-place-view`.
VIEWS = {"in-place-view", "in-place-half", "view-chain"}


def has_gradients_of(
    plain: dict[str, Tensor | None], truth: Truth, *, rtol: float, atol: float
) -> None:
    """The twin has the parameter gradients of a plain step."""
    for name, gradient in plain.items():
        found = truth.parameters[name][1]
        assert (gradient is None) == (found is None), name
        if gradient is not None:
            torch.testing.assert_close(
                found, gradient, rtol=rtol, atol=atol, equal_nan=True, msg=name
            )


def check(case: Case, found: Comparison) -> None:
    assert not found.differences, f"{len(found.differences)} differences:\n" + "\n".join(
        found.differences[:20]
    )
    assert found.hidden == 0 or case.name in VIEWS, f"{found.hidden} gradients are hidden"


@pytest.mark.parametrize("case", [case for case in ALL if case.double], ids=lambda case: case.name)
def test_reports_are_true_in_float64(case: Case) -> None:
    dtype = torch.float64
    truth = truth_of(case, dtype)
    has_gradients_of(plain_step(case, dtype), truth, rtol=1e-9, atol=1e-12)
    check(case, compare(report_of(case, dtype), truth))


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_reports_are_true_in_float32_and_gradients_bit_identical(case: Case) -> None:
    plain, (observed, report) = plain_step(case), _observed(case)
    different = [name for name, g in plain.items() if not identical(g, observed.get(name))]
    if different:
        again = plain_step(case)
        repeats = all(identical(plain[name], again[name]) for name in plain)
        assert not repeats, f"gradients differ under observation: {different}"
    truth = truth_of(case)
    if not case.double:
        has_gradients_of(plain, truth, rtol=1e-5, atol=1e-6)
    found = compare(report, truth)
    rounded = found.differences and all(ROUNDED.search(text) for text in found.differences)
    if rounded and not all(identical(truth.parameters[n][1], g) for n, g in plain.items()):
        assert case.double, "nothing else holds this case to account"
        pytest.skip("this machine rounds the twin's float32 gradients differently")
    check(case, found)


def _observed(case: Case) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The gradients that arrive at the parameters of an observed step, and the report's data."""
    model, inputs = case.build()
    observed: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            observed[name] = parameter.grad.detach().clone()

        return hook

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(keep(name))
    report = inspected(model, inputs, case)
    assert all(parameter.grad is None for parameter in model.parameters())
    return observed, report


@pytest.mark.parametrize("case", ZOO[:1], ids=lambda case: case.name)
def test_verify_says_the_same(case: Case) -> None:
    verified = report_of(case, verify=True)["run"]["verified"]
    assert verified == {"repeatable": True, "identical": True, "max_difference": 0.0}


def test_a_named_loss_with_a_target() -> None:
    case = ZOO[0]
    target = torch.tensor([3, 7])
    model, inputs = case.build()
    truth = observe(
        model, (inputs,), {}, lambda out: torch.nn.functional.cross_entropy(out, target)
    )
    report = gradscope.inspect(model, inputs, target=target, loss="cross_entropy")
    found = compare(to_data(report), truth)
    check(case, found)
    assert found.compared > 300
