"""Tensors are known by identity, stay free to be freed, and may be swapped."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import swap_tensors

import gradscope
from gradscope.api.reading import read_history
from gradscope.capture.remembered import (
    TensorPlace,
    TensorValues,
    buffer_places,
    observe_swaps,
    parameter_places,
    remembered,
)
from gradscope.runfile.reader import RunFile
from gradscope.training.optimizers import Optimizers


@pytest.fixture
def refused():
    """The calls for a tensor that is in a graph; swaps are observed."""
    found: list[int] = []
    with ExitStack() as patches:
        observe_swaps(patches, lambda: found.append(1))
        yield found
    assert torch.utils.weakref is weakref


def test_a_tensor_is_not_kept_alive():
    tensor = torch.ones(2)
    known = remembered(tensor)
    assert known() is tensor and remembered(tensor) is known
    del tensor
    assert known() is None


def test_a_new_tensor_with_the_id_of_another_is_not_that_one():
    values = TensorValues[str]()
    for _ in range(100):  # most have the id of the one before
        tensor = torch.ones(2)
        assert values.get(tensor) is None
        values[tensor] = "mine"
        assert values.get(tensor) == "mine"
        known = remembered(tensor)
        del tensor
        assert not known.is_still(torch.ones(2))


def test_a_swap_leaves_the_identity_and_ends_the_content(refused):
    one, other = torch.ones(2), torch.zeros(3)
    first, second = remembered(one), remembered(other)
    swap_tensors(one, other)  # imported before it was observed
    assert one.shape == (3,)
    assert first() is one and second() is other
    assert not first.is_still(one)
    assert remembered(one) is not first and remembered(one).is_still(one)
    swap_tensors(one, other)
    assert first() is one and one.shape == (2,)
    del one
    assert first() is None
    assert not refused


def test_without_observation_a_remembered_tensor_is_refused():
    tensor = torch.ones(2)
    known = remembered(tensor)
    with pytest.raises(RuntimeError, match="has weakref associated"):
        swap_tensors(tensor, torch.zeros(2))
    assert known() is tensor


def test_a_weak_reference_of_the_script_is_still_refused(refused):
    one, other = torch.ones(2), torch.zeros(3)
    own, known = weakref.ref(one), remembered(one)
    with pytest.raises(RuntimeError, match="has weakref associated") as raised:
        swap_tensors(one, other)
    assert "gradscope" not in str([entry.path for entry in raised.traceback[1:]])
    assert known() is one is own()


def test_a_tensor_in_a_graph_is_said_before_it_is_refused(refused):
    layer = nn.Linear(2, 2)
    held = layer(torch.ones(1, 2, requires_grad=True)).square()
    with pytest.raises(RuntimeError, match="use_count"):
        swap_tensors(layer.weight, nn.Parameter(torch.ones(2, 2)))
    assert refused
    del held, refused[:]
    swap_tensors(layer.weight, nn.Parameter(torch.ones(2, 2)))
    assert not refused


def test_places_of_parameters_and_buffers():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net.append(net[0])
    assert [place() for place in parameter_places(net)] == [*net.parameters()]
    assert [place() for place in buffer_places(net)] == [*net.buffers()]
    assert not any(map(weakref.getweakrefcount, [*net.parameters(), *net.buffers()]))
    place = TensorPlace(net[0], "bias")
    net[0].bias = nn.Parameter(torch.ones(2))
    assert place() is net[0].bias
    del net[0].bias
    assert place() is None
    del net
    gc.collect()
    assert place() is None


def test_parameters_are_known_after_their_optimizer_was_freed():
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizers = Optimizers(lambda _: None)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    lasting = optimizers.known(optimizer).lasting
    assert lasting.alive() == parameters
    assert not any(map(weakref.getweakrefcount, parameters))
    del optimizer
    gc.collect()
    assert [*optimizers] == []
    assert all(a is b for a, b in zip(lasting.alive(), parameters, strict=True))
    del parameters[1]
    assert lasting.each()[1] is None and len(lasting.alive()) == 2


def _loop(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(torch.randn(8, 4)), torch.arange(8) % 2).backward()
        optimizer.step()


def test_facts_are_right_after_a_swap(tmp_path: Path):
    """A parameter whose content was swapped is in its optimizer still, and has its name."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    out = tmp_path / "run.grads"
    try:
        with gradscope.watch(net, every=1, out=out):
            for _ in range(2):  # the second time with another optimizer
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                _loop(net, optimizer, 3)
                net.double()
                net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()})
                net.float()
                _loop(net, optimizer, 3)
                del optimizer
                gc.collect()
                net.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    with RunFile.open(out) as recorded:
        history = read_history(recorded, calls=True)
        codes = {finding.code for finding in recorded.findings}
    assert len(history.steps) == 12
    assert {step.optimizer for step in history.steps} == {"optimizer"}
    assert not codes & {"GS401", "GS402", "GS404", "GS801"}, codes


def test_a_dropped_graph_is_freed(tmp_path: Path):
    """What a forward without a backward has saved for it is not held until the step ends."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inner: list[weakref.ref[torch.Tensor]] = []
    net[1].register_forward_hook(lambda *a: inner.append(weakref.ref(a[2])))
    with gradscope.watch(net, optimizer, every=100, out=tmp_path / "run.grads"):
        for _ in range(3):  # an outer step that is sampled, then others
            net(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        inner.clear()
        net(torch.randn(2, 4)).sum()
        assert [one() for one in inner] == [None]
