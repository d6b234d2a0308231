"""Segmentations: what is explained is a mean over pixels of a class's map, as captum would have it.

The other implementation is captum's on a model that returns that mean by itself.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from saliency.saliency_nets import off
from torch import Tensor, nn

import gradscope
from gradscope.errors import OptionError
from gradscope.saliency import (
    grad_cam,
    gradient,
    hires_cam,
    input_x_gradient,
    integrated_gradients,
    occlusion,
    read_pixels,
)
from gradscope.saliency._subject import Objective, Subject

WITHIN = 1e-5
CLASSES = 3


class Straight(nn.Module):
    """Class maps at the input's size, from a bottleneck of a quarter."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 8, 4, stride=4), nn.ReLU())
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(self.middle(self.down(x))))


class Skipping(Straight):
    """A U-Net's skip path, and a mapping with a second, smaller answer, as torchvision's have."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = nn.Conv2d(3, 8, 1)
        self.aux = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        low = self.middle(self.down(x))
        return {"out": self.head(self.up(low) + self.skip(x)), "aux": self.aux(low)}


class Coarse(Straight):
    """Class maps at half the input's size."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.down(x))


NETS = {"straight": Straight, "skipping": Skipping, "coarse": Coarse}


def network(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    return NETS[name]().double().eval(), torch.randn(2, 3, 16, 16).double()


def answer(output: Tensor | dict[str, Tensor]) -> Tensor:
    return output["out"] if isinstance(output, dict) else output


class Mean(nn.Module):
    """The model whose scores [N, classes] are means of its maps over chosen pixels."""

    def __init__(self, net: nn.Module, weights: Tensor) -> None:
        super().__init__()
        self.net = net
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x) // len(self.weights)
        return (answer(self.net(x)) * self.weights.repeat(rows, 1, 1)[:, None]).sum((2, 3))


def weights_of(maps: Tensor, pixels: str | Tensor | None, target: Tensor) -> Tensor:
    """The pixels' shares, one picture and one pixel after the other."""
    weights = maps.new_zeros(len(maps), *maps.shape[2:])
    for i, one in enumerate(maps):
        for row in range(one.shape[1]):
            for column in range(one.shape[2]):
                if isinstance(pixels, Tensor):
                    chosen = (pixels[i] * one.shape[1] // 16).tolist() == [row, column]
                else:
                    best = int(one[:, row, column].argmax())
                    chosen = pixels == "all" or best == int(target[i])
                weights[i, row, column] = float(chosen)
    return weights / weights.sum((1, 2), keepdim=True)


@pytest.fixture(scope="module")
def captum():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("captum.attr", reason="the second implementation")


WAYS = {"predicted": None, "all": "all", "one": torch.tensor([[3, 12], [15, 0]])}


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETS)
def test_the_mean_over_pixels_is_captums(name, way, captum):
    net, inputs = network(name)
    maps = answer(net(inputs)).detach()
    target = maps.sum((2, 3)).argmax(1)
    plain = Mean(net, weights_of(maps, WAYS[way], target))
    with Subject(net, inputs, Objective(target), pixels=WAYS[way]) as subject:
        found = {
            kind: kind.attribute(subject)
            for kind in (gradient, input_x_gradient, integrated_gradients, grad_cam, hires_cam)
        }
        assert off(subject.logits, plain(inputs)) <= WITHIN
        layer = net.get_submodule(subject.layer)
        activation, slope = subject.activation, subject.gradient
    x = inputs.clone().requires_grad_()
    theirs = captum.Saliency(plain).attribute(x, target)
    assert off(found[gradient], theirs.amax(1)) <= WITHIN
    theirs = captum.InputXGradient(plain).attribute(x, target).detach()
    assert off(found[input_x_gradient], theirs.sum(1)) <= WITHIN
    theirs = captum.IntegratedGradients(plain).attribute(inputs, target=target, n_steps=50)
    assert off(found[integrated_gradients], theirs.sum(1)) <= WITHIN
    theirs = captum.LayerGradCam(plain, layer).attribute(inputs, target).detach()[:, 0]
    assert off(grad_cam.weighted(activation, slope), theirs) <= WITHIN


@pytest.mark.numbers
@pytest.mark.parametrize("name", NETS)
def test_occlusion_is_captums(name, captum):
    net, inputs = network(name)
    maps = answer(net(inputs)).detach()
    target = maps.sum((2, 3)).argmax(1)
    with Subject(net, inputs, Objective(target)) as subject:
        mine = occlusion.attribute(subject, window=4, stride=4)
    plain = Mean(net, weights_of(maps, None, target))
    theirs = captum.Occlusion(plain).attribute(inputs, (3, 4, 4), (3, 4, 4), target=target)
    assert off(mine, theirs[:, 0]) <= WITHIN


def test_the_class_is_the_one_that_covers_most_but_for_the_background():
    maps = torch.full((1, 3, 4, 4), -1.0)
    maps[0, 0], maps[0, 1, 0], maps[0, 2, 1, :3] = 0.0, 1.0, 9.0

    class Given(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean() * 0 + maps

    picture = torch.ones(1, 3, 4, 4)
    with Subject(Given(), picture) as subject:
        assert subject.target.tolist() == [0]
        assert subject.segmentation is not None
        assert subject.segmentation.shares.tolist() == [[9 / 16, 4 / 16, 3 / 16]]
    with Subject(Given(), picture, background=0) as subject:
        assert subject.target.tolist() == [1]
        assert subject.scores.tolist() == [1.0]


@pytest.mark.parametrize(
    ("values", "share"),
    [([[-1.0, 2.0], [3.0, -4.0]], 0.5), ([[0.1, 0.2], [0.7, 0.3]], 0.25)],
    ids=["logits", "probabilities"],
)
def test_a_single_map_is_a_class_where_it_says_so(values, share):
    class Given(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean() * 0 + torch.tensor(values)[None, None]

    with Subject(Given(), torch.ones(1, 3, 2, 2)) as subject:
        assert subject.segmentation is not None
        assert subject.segmentation.shares.tolist() == [[share]]


def test_the_layer_is_the_bottleneck_and_no_class_map():
    net, inputs = network("skipping")
    with Subject(net, inputs) as subject:
        assert subject.layer == "middle"
        assert "coarsest" in subject.choice.description


def test_a_class_that_is_predicted_nowhere_is_explained_everywhere_and_said():
    net = Straight().eval()
    with torch.no_grad():
        net.head.bias.copy_(torch.tensor([99.0, 0.0, 0.0]))
    made = gradscope.saliency(net, torch.randn(1, 3, 16, 16), target=1, methods=["gradient"])
    (image,) = made.report.images
    assert image.pixels == "predicted"
    assert [one.pixels for one in image.top] == [1.0]
    assert "no pixel is predicted as class 1" in str(image.maps[0].note)
    assert any("the pixels predicted as it" in notice for notice in made.report.run.notices)


def test_checks_keep_the_pixels_of_the_picture():
    net, inputs = network("straight")
    made = gradscope.saliency(net, inputs, methods=["gradient"], check=True, pixels=(3, 5))
    for image in made.report.images:
        assert 0 <= image.maps[0].checks["deletion"] <= 1
        assert image.pixels == "3,5"
        assert image.top[0].probability is None


def test_a_classifier_has_no_pixels():
    with pytest.raises(OptionError, match="no class maps"):
        gradscope.saliency("demo", torch.rand(1, 1, 28, 28), pixels="all")


@pytest.mark.parametrize("word", ["", "some", "3", "3,4,5", "-1,2", "a,b", "1.5,2"])
def test_words_that_name_no_pixels(word):
    with pytest.raises(OptionError, match="names no pixels"):
        read_pixels(word)


def test_pixels_are_read():
    assert read_pixels(" 3, 40") == (3, 40)
    assert read_pixels("all") == "all"
