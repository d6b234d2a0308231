"""Models of several inputs: one is explained, the others are held fixed, as captum holds them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from saliency.saliency_nets import off
from torch import Tensor, nn

import gradscope
from gradscope.errors import OptionError

WITHIN = 1e-5


class WithNumbers(nn.Module):
    """A picture, and numbers of each as a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6 + 4, 5)

    def forward(self, image: Tensor, *, numbers: Tensor, scale: Tensor | None = None) -> Tensor:
        features = self.conv(image).relu().mean((2, 3))
        scores = self.head(torch.cat([features, numbers], dim=1)).tanh()
        return scores if scale is None else scores * scale


class Pair(nn.Module):
    """Two pictures through one encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1)
        )
        self.head = nn.Linear(6, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = (self.encoder(x).relu().mean((2, 3)) for x in (left, right))
        return self.head((a - b).abs())


class Distance(Pair):
    """One number for each pair, and the pictures in a mapping."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        a, b = (self.encoder(batch[key]).flatten(1) for key in ("left", "right"))
        return (a - b).norm(dim=1)


class Repaired(Pair):
    """It writes into what it is given."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return super().forward(left.mul_(2), right.add_(1))


def case(name: str) -> tuple[nn.Module, Any, str | None, Any, Tensor]:
    """Model, inputs, the explained one's name, the same as captum calls it, and that one."""
    torch.manual_seed(5)
    left, right = torch.randn(2, 3, 12, 12), torch.randn(2, 3, 12, 12)
    if name == "keyword":
        numbers = torch.randn(2, 4)
        net = WithNumbers()
        return (
            net,
            {"image": left, "numbers": numbers},
            None,
            lambda x: net(x, numbers=numbers),
            left,
        )
    if name == "shared":
        net, numbers, scale = WithNumbers(), torch.randn(1, 4), torch.rand(5)
        given = {"image": left, "numbers": numbers, "scale": scale}
        return (
            net,
            given,
            "image",
            lambda x: net(x, numbers=numbers.expand(2, 4), scale=scale),
            left,
        )
    if name == "nested":
        net = Distance()
        given = ({"left": left, "right": right},)
        return net, given, "0.right", lambda x: net({"left": left, "right": x})[:, None], right
    net = Repaired() if name == "in place" else Pair()
    if name == "first":
        return net, (left, right), "0", lambda x: net(x, right), left
    return net, (left, right), "1", lambda x: net(left.clone(), x.clone()), right


CASES = ("keyword", "shared", "nested", "first", "second", "in place")


@pytest.fixture(scope="module")
def captum():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("captum.attr", reason="the second implementation")


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("name", CASES)
def test_maps_are_captums(name, captum):
    net, given, which, called, explained = case(name)
    net.eval()
    methods = ["gradient", "input-x-gradient", "integrated-gradients", "occlusion"]
    options = ["n_steps=8", "window=4", "stride=4"]
    made = gradscope.saliency(net, given, input=which, methods=methods, options=options)
    target = torch.tensor([image.target for image in made.report.images])
    mine = [torch.stack([maps[i] for maps in made.maps]) for i in range(len(methods))]
    # captum's rows of several steps lie side by side: a pair at a time needs no rows of its own.
    x = explained.clone().requires_grad_()
    gradients = captum.Saliency(called).attribute(x, target, abs=False)
    assert off(mine[0], gradients.abs().amax(1)) <= WITHIN
    assert off(mine[1], (x * gradients).detach().sum(1)) <= WITHIN
    theirs = captum.IntegratedGradients(called).attribute(
        explained, target=target, n_steps=8, internal_batch_size=2
    )
    assert off(mine[2], theirs.sum(1)) <= WITHIN
    theirs = captum.Occlusion(called).attribute(explained, (3, 4, 4), (3, 4, 4), target=target)
    assert off(mine[3], theirs[:, 0]) <= WITHIN


@pytest.mark.numbers
@pytest.mark.parametrize("which", ["first", "second"])
def test_of_a_shared_encoder_the_call_of_the_explained_picture_counts(which):
    net, given, name, called, explained = case(which)
    net.eval()
    made = gradscope.saliency(net, given, input=name, methods=["grad-cam"], layer="encoder")
    seen: list[Tensor] = []
    x = explained.clone().requires_grad_()
    handle = net.encoder.register_forward_hook(lambda m, i, o: seen.append(o))
    score = called(x)[range(2), [image.target for image in made.report.images]].sum()
    handle.remove()
    activation = seen[int(name)]
    (slope,) = torch.autograd.grad(score, activation)
    weighted = (slope.mean((2, 3), keepdim=True) * activation).sum(1).relu()[:, None]
    expected = nn.functional.interpolate(weighted, size=(12, 12), mode="bilinear")[:, 0].detach()
    assert off(torch.stack([maps[0] for maps in made.maps]), expected) <= WITHIN


def test_the_report_says_what_is_held():
    net, given, *_ = case("keyword")
    made = gradscope.saliency(net, given, methods=["gradient"], check=True)
    assert "input: `image` is explained; `numbers` kept fixed" in made.report.run.notices


def test_inputs_come_back_as_they_were():
    net, given, name, *_ = case("in place")
    before = [tensor.clone() for tensor in given]
    gradscope.saliency(net, given, input=name, methods=["gradient", "grad-cam", "occlusion"])
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True))


@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        ((torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8)), None, "2 inputs of the model are pict"),
        ((torch.ones(1, 3, 8, 8), torch.ones(1, 4)), "2", "has no input `2`"),
        ((torch.ones(1, 3, 8, 8), torch.ones(1, 4)), "1", "is not a picture"),
        ((torch.ones(1, 4), torch.ones(1, 4)), None, "no input of the model is a picture"),
        ([torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8)], None, "2 inputs of the model are pict"),
        ({"image": 3}, None, "no input of the model is a picture"),
        (["left.png", "right.png"], None, "no transform for picture files"),
    ],
)
def test_what_is_refused(given, name, message):
    with pytest.raises(OptionError, match=message) as error:
        gradscope.saliency(Pair(), given, input=name)
    assert error.value.problems[0].help
