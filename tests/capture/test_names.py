"""Names of modules and parameters, which are kept until a module changes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from gradscope.capture.names import (
    modules_of,
    named_modules,
    named_parameters,
    parameters_below,
    parameters_of,
)


def net() -> nn.Sequential:
    shared = nn.Linear(3, 3)
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(shared, nn.ReLU()), shared)


def replaced(model: nn.Sequential) -> None:
    model[0] = nn.Linear(2, 3)


def replaced_directly(model: nn.Sequential) -> None:
    model._modules["0"] = nn.Linear(2, 3)


def renamed(model: nn.Sequential) -> None:
    model._modules = {f"part{name}": one for name, one in model._modules.items()}


def removed(model: nn.Sequential) -> None:
    del model[1][0]


def grown(model: nn.Sequential) -> None:
    model[1].append(nn.Linear(3, 3))


def other_parameter(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.ones(3, 2))


def without_bias(model: nn.Sequential) -> None:
    model[2].bias = None


def parametrized(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(model[0])


class Narrow(nn.Linear):
    pass


def other_class(model: nn.Sequential) -> None:
    model[0].__class__ = Narrow


CHANGES = (
    *(replaced, replaced_directly, renamed, removed, grown),
    *(other_parameter, without_bias, parametrized, other_class),
)


def expect_own(model: nn.Module) -> None:
    """Compare with PyTorch's own walks."""
    assert modules_of(model) == list(model.modules())
    assert list(map(id, parameters_of(model))) == list(map(id, model.parameters()))
    first = {id(p): name for name, p in model.named_parameters()}
    found = named_parameters(model).items()
    assert {id(p): named.name for p, named in found} == first
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert {name for _, named in found for name in (named.name, *named.aliases)} == every
    modules = named_modules(model).items()
    assert {one: named.name for one, named in modules} == {m: n for n, m in model.named_modules()}
    assert all(type(one).__name__ == named.types[0] for one, named in modules)
    for module, own in parameters_below(model).items():
        assert list(map(id, own)) == list(map(id, module.parameters()))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_names_are_found_again_after_a_change(change):
    model = net()
    for _ in range(2):
        expect_own(model)
    change(model)
    for _ in range(2):
        expect_own(model)


def test_names_are_not_kept_with_the_model():
    model = net()
    expect_own(model)
    gone = [weakref.ref(model), weakref.ref(model[0]), weakref.ref(model[0].weight)]
    del model
    gc.collect()
    assert [one() for one in gone] == [None, None, None]


class Prefixed(nn.Module):
    """A wrapper with names of its own, as FSDP has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.prefix = nn.Linear(2, 2), "one"

    def named_parameters(self, *args, **kwargs):
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield f"{self.prefix}.{name}", parameter


def test_a_class_with_a_walk_of_its_own_is_asked_each_time():
    model = Prefixed()
    for model.prefix in ("one", "two"):
        names = [named.name for named in named_parameters(model).values()]
        assert names == [f"{model.prefix}.inner.weight", f"{model.prefix}.inner.bias"]


def test_parameters_have_no_weak_reference() -> None:
    """``torch.utils.swap_tensors``, which conversions of modules may use, refuses such tensors."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    named_parameters(net), parameters_of(net), parameters_below(net)
    assert not any(weakref.getweakrefs(parameter) for parameter in net.parameters())
    torch.utils.swap_tensors(net[0].weight, nn.Parameter(torch.ones(2, 2)))
    assert [*named_parameters(net)] == [*net.parameters()] == parameters_of(net)
