"""The trust checks: each on a map that must pass and on one that it must reject."""

from __future__ import annotations

import copy

import pytest
import torch
from saliency.saliency_nets import Pooled, network
from scipy.stats import spearmanr
from torch import nn

from gradscope.saliency import (
    grad_cam,
    gradient,
    input_x_gradient,
    integrated_gradients,
    occlusion,
    rise,
    smooth_grad,
)
from gradscope.saliency._checks import (
    areas,
    blank,
    completeness,
    curves,
    randomisation,
    spearman,
    spread,
)
from gradscope.saliency._subject import Objective, Subject

pytestmark = pytest.mark.numbers


@pytest.fixture
def digits():
    net, x = network("digits")
    with Subject(net, x) as subject:
        yield subject


# Completeness


def test_integrated_gradients_are_complete(digits):
    maps = integrated_gradients.attribute(digits, n_steps=200)
    for found in completeness(digits, maps):
        assert found["residual_share"] < 0.01
        assert found["sum"] - found["gain"] == found["residual"]


@pytest.mark.slow
def test_another_baselines_map_is_not_complete(digits):
    maps = integrated_gradients.attribute(digits, n_steps=200)
    assert all(found["residual_share"] > 0.05 for found in completeness(digits, maps, baseline=1.0))


@pytest.mark.slow
def test_half_of_a_map_is_not_complete(digits):
    maps = integrated_gradients.attribute(digits, n_steps=200) / 2
    assert all(0.45 < found["residual_share"] < 0.55 for found in completeness(digits, maps))


def test_completeness_without_a_gain(digits):
    blank_picture = torch.zeros_like(digits.inputs)
    with Subject(digits.model, blank_picture) as subject:
        found = completeness(subject, torch.zeros(2, 28, 28))
    assert all(f["residual_share"] is None for f in found)


class Offset(nn.Module):
    """Scores of the size of 100, of which a picture's mean makes the difference."""

    def forward(self, x):
        mean = x.mean((1, 2, 3))
        return torch.stack([100 + mean, -mean], dim=1)


@pytest.mark.parametrize(("mean", "judged"), [(1e-5, False), (0.0, False), (1e-2, True)])
def test_a_gain_of_some_roundings_is_none(mean, judged):
    picture = torch.full((1, 1, 4, 4), mean)
    with Subject(Offset(), picture, Objective(torch.tensor([0]))) as subject:
        (found,) = completeness(subject, torch.zeros(1, 4, 4))
    assert (found["residual_share"] is not None) is judged


# Deletion and insertion


class Logistic(nn.Module):
    """Two classes whose logits are (0, w·x): the probability of class 1 is sigmoid(w·x)."""

    def __init__(self, weights):
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights))

    def forward(self, x):
        score = x.flatten(1) @ self.weights
        return torch.stack([torch.zeros_like(score), score], dim=1)


def test_areas_by_hand():
    net, x = Logistic([4.0, 3.0, 2.0, 1.0]), torch.ones(1, 1, 2, 2)
    maps = torch.tensor([[[4.0, 3.0], [2.0, 1.0]]])
    with Subject(net, x, Objective(torch.tensor([1]))) as subject:
        found = areas(subject, maps, steps=4)
    # Deletion takes 4, 3, 2, 1 from 10; insertion gives them to 0.
    gone = torch.tensor([10.0, 6.0, 3.0, 1.0, 0.0]).double().sigmoid()
    back = torch.tensor([0.0, 4.0, 7.0, 9.0, 10.0]).double().sigmoid()
    for area, curve in ((found.deletion, gone), (found.insertion, back)):
        by_hand = (curve[0] / 2 + curve[1] + curve[2] + curve[3] + curve[4] / 2) / 4
        assert float(area) == pytest.approx(float(by_hand), rel=1e-6)


def test_a_reversed_map_loses_both_ways():
    net, x = Logistic([4.0, 3.0, 2.0, 1.0]), torch.ones(1, 1, 2, 2)
    maps = torch.tensor([[[4.0, 3.0], [2.0, 1.0]]])
    with Subject(net, x, Objective(torch.tensor([1]))) as subject:
        good, bad = areas(subject, maps, steps=4), areas(subject, -maps, steps=4)
    assert good.deletion < bad.deletion
    assert good.insertion > bad.insertion


@pytest.mark.slow
def test_a_good_map_beats_chance_and_its_negative_does_not(digits):
    maps = occlusion.attribute(digits)
    for found in curves(digits, maps):
        assert found["deletion"] < found["deletion_random"]
        assert found["insertion"] > found["insertion_random"]
    for found in curves(digits, -maps):
        assert found["deletion"] > found["deletion_random"]
        assert found["insertion"] < found["insertion_random"]


def test_a_constant_map_is_a_random_one():
    """Ties are drawn: by position, a constant map would delete from the top left."""
    net, x = Logistic([8.0] + [0.0] * 63), torch.ones(1, 1, 8, 8)
    with Subject(net, x, Objective(torch.tensor([1])), seed=3) as subject:
        found = areas(subject, torch.zeros(1, 8, 8), steps=64)
    assert float(found.deletion) > 0.51  # position order would delete the one pixel first


@pytest.mark.slow
def test_images_of_a_batch_do_not_mix(digits):
    maps = occlusion.attribute(digits)
    together = areas(digits, maps, steps=5)
    for i in range(2):
        with Subject(digits.model, digits.inputs[i : i + 1]) as subject:
            alone = areas(subject, maps[i : i + 1], steps=5)
        assert float(alone.insertion) == pytest.approx(float(together.insertion[i]), rel=1e-5)


# Rank correlation


def test_spearman_is_scipys():
    torch.manual_seed(0)
    a, b = torch.randint(0, 9, (6, 7)).float(), torch.randint(0, 9, (6, 7)).float()
    expected = spearmanr(a.flatten().numpy(), b.flatten().numpy()).statistic
    assert spearman(a, b) == pytest.approx(float(expected), abs=1e-12)
    assert spearman(a, a.exp()) == pytest.approx(1)
    assert spearman(a, -a) == pytest.approx(-1)
    assert spearman(a, torch.ones_like(a)) is None


# Randomisation


def test_a_map_of_the_picture_alone_survives_randomisation(digits):
    def edges(subject):
        return subject.inputs.diff(dim=3, append=subject.inputs[..., :1]).abs().sum(1)

    for found in randomisation(digits, edges, edges(digits)):
        assert found["similarity"] == pytest.approx(1)
        assert all(rho == pytest.approx(1) for _, rho in found["cascade"])


def test_a_map_of_the_model_does_not(digits):
    for found in randomisation(digits, grad_cam.attribute, grad_cam.attribute(digits)):
        assert found["similarity"] is None or found["similarity"] < 0.8
        layers = [layer for layer, _ in found["cascade"]]
        assert layers[0] == "out"
        assert layers[-1] == "conv1"


def test_randomisation_leaves_the_model_alone(digits):
    before = copy.deepcopy(digits.model.state_dict())
    randomisation(digits, gradient.attribute, gradient.attribute(digits))
    after = digits.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_model_that_cannot_be_copied_says_so():
    class Keeps(Pooled):
        def forward(self, x):
            self.kept = super().forward(x)
            return self.kept

    with Subject(Keeps().eval(), torch.randn(1, 3, 16, 16)) as subject:
        maps = gradient.attribute(subject)
        (found,) = randomisation(subject, gradient.attribute, maps)
    assert found["similarity"] is None
    assert "copied" in found["similarity_note"]


# Spread


def test_what_draws_nothing_has_no_spread(digits):
    for found in spread(digits, gradient.attribute, gradient.attribute(digits)):
        assert found["spread"] == 0
        assert found["seed_similarity"] == pytest.approx(1)


@pytest.mark.slow
def test_few_masks_spread_more_than_many(digits):
    def few(subject):
        return rise.attribute(subject, n_samples=20)

    def many(subject):
        return rise.attribute(subject, n_samples=500)

    noisy = spread(digits, few, few(digits))
    calm = spread(digits, many, many(digits))
    for a, b in zip(noisy, calm, strict=True):
        assert a["spread"] > 1.5 * b["spread"] > 0
        assert a["seed_similarity"] < b["seed_similarity"]


@pytest.mark.slow
def test_the_seed_of_noise_counts(digits):
    found = spread(digits, smooth_grad.attribute, smooth_grad.attribute(digits))
    assert all(f["spread"] > 0 for f in found)


# Blank maps


def why(net, x, method, target=0, **options):
    with Subject(net.eval(), x, Objective(torch.full((len(x),), target)), **options) as subject:
        maps = method.attribute(subject)
        return blank(subject, maps, method.reads)[0]["blank"]


@pytest.mark.slow
def test_a_map_with_a_shape_is_not_blank(digits):
    for method in (gradient, grad_cam, occlusion):
        found = blank(digits, method.attribute(digits), method.reads)
        assert [f["blank"] for f in found] == [None, None]


def test_all_weights_negative():
    net = Pooled()
    with torch.no_grad():
        net.fc.weight[0] = -1.0
    net.last = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.ReLU())
    assert "all weights are negative" in why(net, torch.randn(1, 3, 16, 16), grad_cam, layer="last")


def test_nothing_positive():
    net = Pooled()
    with torch.no_grad():
        net.fc.weight[0] = 1.0
        net.last.weight.zero_()
        net.last.weight[:, :, 1, 1] = -0.1
        net.last.bias.fill_(-1.0)
    said = why(net, torch.randn(1, 3, 16, 16), grad_cam, layer="last")
    assert "nothing positive" in said


def test_a_silent_layer():
    net = Pooled()
    with torch.no_grad():
        net.conv.weight.zero_()
        net.conv.bias.fill_(-1.0)
    assert "silent" in why(net, torch.randn(1, 3, 16, 16), grad_cam, layer="relu")


class Clipped(Pooled):
    def forward(self, x):
        return (super().forward(x) - 100).relu()


def test_no_gradient_arrives():
    x = torch.randn(1, 3, 16, 16)
    assert "no gradient arrives" in why(Clipped(), x, grad_cam, layer="last")
    assert "zero at every pixel" in why(Clipped(), x, gradient)
    assert "did not move" in why(Clipped(), x, occlusion)


def test_the_picture_itself_is_empty():
    assert "same value" in why(Pooled(), torch.zeros(1, 3, 16, 16), input_x_gradient)


def test_what_is_not_finite(digits):
    maps = torch.full((2, 28, 28), float("nan"))
    assert "NaN" in blank(digits, maps, ("input",))[0]["blank"]


def test_rounding_is_no_shape(digits):
    maps = 1 + 1e-8 * torch.rand(2, 28, 28, dtype=torch.float64)
    assert "everywhere" in blank(digits, maps, ("input",))[0]["blank"]
