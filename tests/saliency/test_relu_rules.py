"""ReLU rules act on operations, whichever way they are written, and say what they covered."""

from __future__ import annotations

import pytest
import torch
from saliency.saliency_nets import Functional, network, off, trained, vit
from torch import Tensor, nn
from torch.nn import functional as F

from gradscope.errors import OptionError
from gradscope.saliency import deconvnet, gradient, guided_backprop
from gradscope.saliency._subject import Subject
from gradscope.saliency.guided_backprop import deconvnet_rule, guided_rule, ruled_gradient

PICTURES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
RULES = {"deconvnet": deconvnet, "guided": guided_backprop}


def pair() -> tuple[nn.Module, nn.Module]:
    """The same network with ReLUs of every kind, and with modules alone."""
    torch.manual_seed(2)
    every, modules = Functional().eval(), Functional(modules=True).eval()
    modules.load_state_dict(every.state_dict())
    return every, modules


@pytest.mark.parametrize("method", RULES.values(), ids=RULES)
def test_every_kind_of_relu_counts(method):
    maps = []
    for net in pair():
        with Subject(net, PICTURES) as subject:
            maps.append(method.attribute(subject))
            assert subject.notes == [
                "5 of 5 ReLU operations followed the rule; not ReLU and left alone: 1 GELU"
            ]
            plain = gradient.attribute(subject)
        assert off(plain, maps[-1]) > 1e-3
    assert off(*maps) < 1e-6


def test_one_relu_by_hand():
    """A = relu(x), S = 2·A₀ − 3·A₁ + 4·A₂ at x = (1, 1, −1)."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a = F.relu(x).flatten(1)
            return (a * torch.tensor([2.0, -3.0, 4.0])).sum(1, keepdim=True)

    inputs = torch.tensor([1.0, 1.0, -1.0]).view(1, 3, 1, 1)
    with Subject(Net(), inputs) as subject:
        assert subject.input_gradient.flatten().tolist() == [2, -3, 0]
        assert ruled_gradient(subject, deconvnet_rule)[0].flatten().tolist() == [2, 0, 4]
        assert ruled_gradient(subject, guided_rule)[0].flatten().tolist() == [2, 0, 0]


@pytest.mark.parametrize("relu6", [F.relu6, nn.ReLU6(), lambda t: t.clamp(0, 6)])
def test_relu6_counts_as_one(relu6):
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return relu6(x).flatten(1)[:, :1]

    with Subject(Net(), torch.ones(1, 3, 2, 2)) as subject:
        guided_backprop.attribute(subject)
    assert subject.notes == ["1 of 1 ReLU operation followed the rule (1 of them ReLU6)"]


@pytest.mark.parametrize(
    "other", [lambda t: t.clamp(min=0.5), lambda t: t.clamp(-1, 1), F.gelu, nn.Hardtanh()]
)
def test_what_is_no_relu_is_refused(other):
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return other(x).flatten(1)[:, :1]

    with (
        pytest.raises(OptionError, match="no ReLU"),
        Subject(Net(), torch.ones(1, 3, 2, 2)) as subject,
    ):
        deconvnet.attribute(subject)


def test_a_transformer_of_gelus_is_refused():
    with pytest.raises(OptionError, match="2 GELU"), Subject(vit().eval(), network("vit")[1]) as s:
        guided_backprop.attribute(s)


def test_the_rule_leaves_with_its_map():
    """The graph that serves all methods has plain ReLUs again after a rule was on it."""
    inputs = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    with Subject(trained(), inputs) as subject:
        plain = gradient.attribute(subject)
    with Subject(trained(), inputs, total=True) as subject:
        deconvnet.attribute(subject)
        guided = guided_backprop.attribute(subject)
        assert torch.equal(gradient.attribute(subject), plain)
        assert not torch.equal(guided, plain)
