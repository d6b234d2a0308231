"""Contract of every method file; a new file is tested without being named here."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from saliency.saliency_nets import Pooled

from gradscope import plugins
from gradscope.saliency._subject import Objective, Subject

ROOM = "gradscope.saliency"
METHODS = plugins.names(ROOM)

#: What a perturbation method is reported, so that it is done in no time.
QUICK = {"n_samples": 12, "n_steps": 5, "window": 4, "stride": 4}

TYPES = {"int", "float", "bool", "str", "int | None", "float | None", "str | None"}


def run(name, inputs, target, *, seed=0):
    method = plugins.load(ROOM, name)
    torch.manual_seed(7)
    net = method_net(name)
    options = {k: QUICK[k] for k in inspect.signature(method.attribute).parameters if k in QUICK}
    with Subject(net, inputs, Objective(target), seed=seed) as subject:
        return method.attribute(subject, **options), net


def method_net(name):
    if name != "scouter":
        return Pooled().eval()
    pytest.skip("works on models with its own head, and has tests of its own")


def inputs():
    return torch.randn(3, 3, 20, 16, generator=torch.Generator().manual_seed(1))


TARGETS = torch.tensor([1, 4, 0])


def test_the_room_is_not_empty():
    assert {"gradient", "grad-cam", "guided-grad-cam", "integrated-gradients"} <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_signature_and_words(name):
    method = plugins.load(ROOM, name)
    subject, *options = inspect.signature(method.attribute).parameters.values()
    assert subject.name == "subject"
    for option in options:
        assert option.kind is option.KEYWORD_ONLY
        assert option.annotation in TYPES
        assert option.default is not option.empty
    first = method.__doc__.partition("\n")[0]
    assert re.match(r"\S.*: .+\.$", first), first
    assert "[N, H, W]" in method.attribute.__doc__
    assert re.search(r"\d{4}", method.paper)
    assert isinstance(method.signed, bool)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_map(name):
    found, _ = run(name, inputs(), TARGETS)
    assert found.shape == (3, 20, 16)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert found.isfinite().all()
    assert found.any()
    if not plugins.load(ROOM, name).signed:
        assert found.min() >= 0


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_model_is_left_alone(name):
    _, net = run(name, inputs(), TARGETS)
    torch.manual_seed(7)
    fresh = method_net(name)
    for module, other in zip(net.modules(), fresh.modules(), strict=True):
        assert module.training == other.training
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for parameter, other in zip(net.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(parameter, other)
        assert parameter.requires_grad
        assert parameter.grad is None


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_map(name):
    first, second = (run(name, inputs(), TARGETS, seed=3)[0] for _ in range(2))
    if "scores" in plugins.load("gradscope.saliency", name).reads:
        # How many pictures share a pass is measured, and another number rounds otherwise.
        assert (first - second).abs().max() <= 1e-6 * max(1.0, float(first.abs().max()))
    else:
        assert torch.equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_batch_equals_its_single_images(name):
    together, _ = run(name, inputs(), TARGETS)
    for image, target, found in zip(inputs(), TARGETS, together, strict=True):
        alone, _ = run(name, image[None], target[None])
        assert float((alone[0] - found).abs().max()) <= 1e-5 * float(found.abs().max())


RANDOM = [
    name
    for name in METHODS
    if "n_samples" in inspect.signature(plugins.load(ROOM, name).attribute).parameters
]


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_gives_another_map(name):
    first, second = (run(name, inputs(), TARGETS, seed=seed)[0] for seed in (0, 1))
    assert not torch.equal(first, second)
