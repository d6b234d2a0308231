"""Each broken program gets its cause, module, file and line; its mended twin has none missing."""

from __future__ import annotations

import pytest
import torch

from explain.missing import detached, no_grad, non_differentiable, not_called, not_in_loss
from explain.missing.cases import CASES, missing_names
from gradscope.explain.missing.explain_missing import explain_missing

# What PyTorch says of three of the programs.
NO_INPUT = "ignore:None of the inputs have requires_grad:UserWarning"
SCALARS = "ignore:Converting a tensor with requires_grad=True to a scalar:UserWarning"
COPIES = "ignore:To copy construct from a tensor:UserWarning"

# Importing them fills the table.
PROGRAMS = (detached, no_grad, non_differentiable, not_called, not_in_loss)


def test_the_table_is_whole() -> None:
    files = {case.build.__module__ for case in CASES.values()}
    assert files == {module.__name__ for module in PROGRAMS}
    causes = [one.cause for case in CASES.values() for one in case.expected]
    assert len(CASES) == 108
    assert all(causes.count(cause) >= 10 for cause in causes)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings(NO_INPUT, SCALARS, COPIES)
def test_broken_program(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model, forward = case.build(False)
    missing = missing_names(model, forward)
    assert missing
    answers = explain_missing(model, forward, missing)
    got = {(a.cause, a.module, a.location) for a in answers}
    assert got == {
        (e.cause, e.module, case.line(e.mark) if e.mark else None) for e in case.expected
    }
    behind = [name for a in answers for name in a.upstream]
    assert sorted(behind) == sorted(missing)
    for one in case.expected:
        assert one.name is None or any(one.name == a.name for a in answers)
    for one in answers:
        assert one.name == one.upstream[0]
        assert one.message.endswith(".") and one.advice


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings(SCALARS)
def test_mended_twin(name: str) -> None:
    torch.manual_seed(0)
    model, forward = CASES[name].build(True)
    assert missing_names(model, forward) == []
