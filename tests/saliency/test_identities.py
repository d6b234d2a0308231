"""Identities between methods, whatever the network."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from saliency.saliency_nets import Pooled, digits, network, off, trained
from torch import nn

from gradscope.errors import OptionError
from gradscope.saliency import (
    cam,
    eigen_cam,
    grad_cam,
    gradient,
    hires_cam,
    input_x_gradient,
    integrated_gradients,
    occlusion,
    rise,
    smooth_grad,
    var_grad,
    xgrad_cam,
)
from gradscope.saliency._subject import Objective, Subject

pytestmark = pytest.mark.numbers


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [0.0, 0.3])
def test_integrated_gradients_are_complete(baseline):
    with Subject(trained(), digits(3, 7)) as subject:
        found = integrated_gradients.attribute(subject, n_steps=200, baseline=baseline)
        with torch.no_grad():
            start = subject.score(torch.full_like(subject.inputs, baseline))
        rise = subject.scores - start
    assert torch.allclose(found.sum(dim=(1, 2)), rise, rtol=2e-3)


def test_one_step_of_integrated_gradients_is_the_middle():
    with Subject(trained(), digits(3)) as subject:
        found = integrated_gradients.attribute(subject, n_steps=1)
    with Subject(trained(), digits(3) / 2, Objective(torch.tensor([3]))) as half:
        expected = 2 * input_x_gradient.attribute(half)
    assert off(found, expected) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "resnet18"])
def test_without_noise_smooth_grad_is_the_gradient_and_var_grad_nothing(name):
    """Against the gradient in float64: samples that share a pass round otherwise than one alone."""
    model, inputs, *more = network(name)
    with Subject(deepcopy(model).double(), inputs.double(), *more) as subject:
        exact = gradient.attribute(subject)
    with Subject(model, inputs, *more) as subject:
        assert off(gradient.attribute(subject), exact) < 1e-6
        assert off(smooth_grad.attribute(subject, n_samples=3, sigma=0), exact) < 1e-6
        assert float(var_grad.attribute(subject, n_samples=3, sigma=0).max()) < 1e-9


def test_input_x_gradient_is_conserved_without_biases():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=2, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(144, 10, bias=False),
    )  # fmt: skip
    with Subject(net, digits(3, 7)) as subject:
        found = input_x_gradient.attribute(subject)
        assert torch.allclose(found.sum(dim=(1, 2)), subject.scores, rtol=1e-4)


def test_hires_cam_is_conserved_where_a_linear_layer_follows():
    """Before the ReLU, and up to the bias: the paper's guarantee."""
    with Subject(Pooled().eval(), torch.randn(2, 3, 16, 16)) as subject:
        products = (subject.gradient * subject.activation).sum(dim=(1, 2, 3))
        bias = subject.model.fc.bias[subject.target]
        assert torch.allclose(products + bias, subject.scores, atol=1e-5)
        assert hires_cam.attribute(subject).shape == (2, 16, 16)


@pytest.mark.parametrize("versus", [None, torch.tensor([0, 1])])
def test_cam_is_grad_cam_up_to_scale_on_its_own_head(versus):
    torch.manual_seed(5)
    net, inputs = Pooled().eval(), torch.randn(2, 3, 32, 32)
    with Subject(net, inputs, Objective(torch.tensor([3, 4]), versus)) as subject:
        positions = subject.activation.shape[2] * subject.activation.shape[3]
        other = grad_cam.attribute(subject) * positions
        assert other.any()
        assert off(cam.attribute(subject), other) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_cam_reads_real_heads(name):
    net, _ = network(name)
    with Subject(net, torch.randn(1, 3, 64, 64)) as subject:
        assert cam.attribute(subject).shape == (1, 64, 64)


@pytest.mark.parametrize("name", ["digits", "vgg11", "vit"])
def test_cam_refuses_other_heads(name):
    with pytest.raises(OptionError, match="averages") as error, Subject(*network(name)) as subject:
        cam.attribute(subject)
    assert "grad-cam" in error.value.problems[0].help


def test_xgrad_cam_is_grad_cam_where_the_gradient_is_even():
    torch.manual_seed(5)
    with Subject(Pooled().eval(), torch.randn(1, 3, 32, 32), layer="last") as subject:
        assert off(xgrad_cam.attribute(subject), grad_cam.attribute(subject)) < 1e-3


def test_eigen_cam_of_one_blob_is_the_blob():
    blob = torch.zeros(1, 3, 4, 4)
    blob[0, :, 1, 2] = torch.tensor([1.0, 2.0, 3.0])
    found = eigen_cam.projected(blob)[0]
    assert found.argmax() == 6
    assert found[1, 2] > 3


def test_eigen_cam_knows_no_class():
    maps = []
    for target in (2, 5):
        with Subject(trained(), digits(3), Objective(torch.tensor([target]))) as subject:
            maps.append(eigen_cam.attribute(subject))
    assert torch.equal(*maps)


def test_options_that_make_no_map():
    with Subject(trained(), digits(3)) as subject:
        for refused in (
            lambda: smooth_grad.attribute(subject, n_samples=0),
            lambda: var_grad.attribute(subject, sigma=-1.0),
            lambda: integrated_gradients.attribute(subject, n_steps=0),
        ):
            with pytest.raises(OptionError) as error:
                refused()
            assert error.value.problems[0].help


def test_points_share_passes_and_halve_where_memory_runs_out(monkeypatch):
    """Another device takes several points at once, fewer after a failure; the map is the same."""
    from gradscope.saliency import _gradients

    with Subject(trained(), digits(3, 7)) as subject:
        expected = smooth_grad.attribute(subject, n_samples=7)
    monkeypatch.setattr(_gradients, "ROWS", 10)
    sizes = []

    def limited(subject, inputs):
        sizes.append(len(inputs))
        if len(inputs) > 4:
            raise torch.OutOfMemoryError
        return original(subject, inputs)

    original = _gradients._gradient
    monkeypatch.setattr(_gradients, "_gradient", limited)
    with Subject(trained(), digits(3, 7)) as subject:
        assert off(smooth_grad.attribute(subject, n_samples=7), expected) < 1e-5
    # The first sample alone; it comes along until a pass of several has been seen to agree.
    assert sizes == [2, 10, 4, 4, 4, 2]


class Flattened(nn.Module):
    """Its view holds for one storage only: channels-last inputs fail."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 16 * 16, 5)

    def forward(self, x):
        return self.fc(torch.tanh(self.conv(x)).view(len(x), -1))


def test_a_model_that_only_one_memory_layout_suits_keeps_it():
    torch.manual_seed(0)
    model, x = Flattened().eval(), torch.randn(1, 3, 16, 16)
    with pytest.raises(RuntimeError):
        model(x.expand(4, -1, -1, -1).contiguous(memory_format=torch.channels_last))
    with Subject(model, x, Objective(torch.tensor([2]))) as subject:
        plain = gradient.attribute(subject)
        assert off(smooth_grad.attribute(subject, n_samples=8, sigma=0), plain) < 1e-6


class Alone(Flattened):
    """Takes one picture and no more, as a class token that nobody expanded has it."""

    def forward(self, x):
        return self.fc(torch.tanh(self.conv(x)).reshape(1, -1))


class Sociable(Flattened):
    """Model whose output for a picture depends on the others."""

    def forward(self, x):
        return super().forward(x - 0.5 * x.mean(0))


@pytest.mark.parametrize("kind", [Alone, Sociable])
@pytest.mark.parametrize("method", [smooth_grad, integrated_gradients, var_grad])
def test_pictures_that_must_not_share_a_pass_do_not(kind, method, monkeypatch):
    from gradscope.saliency import _gradients

    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(1, 3, 16, 16)
    with Subject(model, x, Objective(torch.tensor([2]))) as subject:
        found = method.attribute(subject)
    monkeypatch.setattr(_gradients, "ROWS", 1)
    with Subject(model, x, Objective(torch.tensor([2]))) as subject:
        assert torch.equal(found, method.attribute(subject))


@pytest.mark.parametrize("method", [occlusion, rise])
def test_a_model_for_one_picture_is_perturbed_one_by_one(method):
    torch.manual_seed(0)
    model, x = Alone().eval(), torch.randn(1, 3, 16, 16)
    options = {"window": 4, "stride": 4} if method is occlusion else {"n_samples": 16}
    with Subject(model, x, Objective(torch.tensor([2]))) as subject:
        assert method.attribute(subject, **options).isfinite().all()
        assert subject.batches.single is not None
