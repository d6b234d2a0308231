"""The guards around every test complain where they must."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from guards import PACKAGE, still_set, switches
from torch import nn

CHANGES = {
    "a mode": lambda m: m.eval(),
    "a frozen parameter": lambda m: m.weight.requires_grad_(False),
    "a gradient that was not there": lambda m: m(torch.ones(2, 3)).sum().backward(),
    "a weight": lambda m: m.weight.data.add_(1),
    "a hook": lambda m: m.register_forward_hook(lambda *_: None),
    "torch's random state": lambda _: torch.rand(1),
    "random's state": lambda _: random.random(),
    "numpy's random state": lambda _: np.random.rand(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_model_is_noticed(change, unchanged):
    with pytest.raises(AssertionError), unchanged(model := nn.Linear(3, 2)):
        change(model)


def test_a_moved_buffer_is_noticed(unchanged):
    with pytest.raises(AssertionError, match="buffer"), unchanged(model := nn.BatchNorm1d(3)):
        model(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))


def test_a_model_left_alone_passes(unchanged):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with unchanged(model):
        model.state_dict()


def as_gradscope(source: str) -> dict[str, object]:
    """Run code as if it stood in a file of the package."""
    names: dict[str, object] = {"nn": nn, "torch": torch}
    exec(compile(source, str(Path(PACKAGE) / "planted.py"), "exec"), names)
    return names


@pytest.mark.parametrize(
    "source",
    [
        "kept = nn.Linear(3, 2); handle = kept.register_forward_hook(lambda *_: None)",
        "kept = torch.ones(2, requires_grad=True); handle = kept.register_hook(lambda g: None)",
        "kept = torch.ones(2, requires_grad=True) * 2; handle = kept.grad_fn.register_hook(print)",
    ],
    ids=["module", "tensor", "node"],
)
def test_a_hook_left_by_gradscope_is_noticed(source, handles):
    names = as_gradscope(source)
    assert handles == [names["handle"]]
    assert still_set(names["handle"])
    names["handle"].remove()
    assert not still_set(names["handle"])


def test_a_turned_switch_is_noticed():
    before = switches()
    with torch.no_grad():
        assert switches() != before
    assert switches() == before


def test_a_hook_of_the_tests_own_is_none_of_our_business(handles):
    nn.Linear(3, 2).register_forward_hook(lambda *_: None)
    assert handles == []
