"""Some of ``python -m tests.comparison.faults``, on the smallest of its networks."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("transformers")

from comparison.faults import WAYS, Try, compared, faults, honest
from comparison.nets import built
from comparison.planted import FAULTS


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_fault_of_each_kind_is_found(way):
    assert [one.what for one in faults("small-gpt2", way, len(FAULTS), 0) if not one.right] == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_same_computed_otherwise_is_no_fault(way):
    """A compiled model is in ``tests/engine/test_diff.py``."""
    tries = honest("small-gpt2", way, 0, compiled=False)
    assert [one.what for one in tries if not one.right] == []


@pytest.mark.slow
def test_a_fault_that_is_not_found_is_not_right():
    net = built("small-gpt2", 0)
    report = compared(net, copy.deepcopy(net.model), "live")
    assert Try("", None, report).right
    assert not Try("", ("GD101", "transformer.h.0"), report).right
