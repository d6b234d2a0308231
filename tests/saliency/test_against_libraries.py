"""Every method against captum or pytorch-grad-cam, where the definitions agree: 1e-5."""

from __future__ import annotations

import warnings

import pytest
import torch
from saliency.saliency_nets import network, off
from torch import nn

from gradscope.saliency import (
    deconvnet,
    eigen_cam,
    grad_cam,
    grad_cam_plus_plus,
    gradient,
    guided_backprop,
    guided_grad_cam,
    hires_cam,
    input_x_gradient,
    integrated_gradients,
    layer_cam,
    smooth_grad,
    var_grad,
    xgrad_cam,
)
from gradscope.saliency._subject import Objective, Subject

pytestmark = [pytest.mark.numbers, pytest.mark.slow]

NETS = ("digits", "resnet18", "vgg11", "densenet121", "vit")
CONVOLUTIONAL = NETS[:4]
TARGETS = torch.tensor([2, 5])
WITHIN = 1e-5


@pytest.fixture(scope="module")
def captum():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("captum.attr", reason="the second implementation")


@pytest.fixture(scope="module")
def cams():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("pytorch_grad_cam", reason="the second implementation")


def map_of(method, name, layer=None, **options):
    net, inputs = network(name)
    with Subject(net, inputs, Objective(TARGETS), layer=layer) as subject:
        return method.attribute(subject, **options)


@pytest.mark.parametrize("name", NETS)
def test_gradient(name, captum):
    net, inputs = network(name)
    theirs = captum.Saliency(net).attribute(inputs.requires_grad_(), TARGETS)
    assert off(map_of(gradient, name), theirs.amax(dim=1)) <= WITHIN


@pytest.mark.parametrize("name", NETS)
def test_input_x_gradient(name, captum):
    net, inputs = network(name)
    theirs = captum.InputXGradient(net).attribute(inputs.requires_grad_(), TARGETS).detach()
    assert off(map_of(input_x_gradient, name), theirs.sum(dim=1)) <= WITHIN


@pytest.mark.parametrize("name", NETS)
def test_integrated_gradients(name, captum):
    net, inputs = network(name)
    total = captum.IntegratedGradients(net)
    theirs = total.attribute(inputs, torch.full_like(inputs, 0.1), TARGETS, n_steps=8)
    mine = map_of(integrated_gradients, name, n_steps=8, baseline=0.1)
    assert off(mine, theirs.sum(dim=1)) <= WITHIN


@pytest.mark.parametrize("name", ["digits", "resnet18"])
@pytest.mark.parametrize(
    ("method", "kind"), [(smooth_grad, "smoothgrad"), (var_grad, "vargrad")], ids=["mean", "var"]
)
def test_noise(name, method, kind, captum, monkeypatch):
    """captum draws its noise for all samples at once: it is handed the draws made here."""
    net, inputs = network(name)
    net = net.double()
    inputs = inputs[:1].double()
    sigma = 0.15 * float(inputs.max() - inputs.min())
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(inputs.shape[1:], generator=generator).double() for _ in range(4)]
    with Subject(net, inputs, Objective(TARGETS[:1])) as subject:
        mine = method.attribute(subject, n_samples=4)
    monkeypatch.setattr(torch, "normal", lambda mean, std: torch.stack(drawn) * std)
    tunnel = captum.NoiseTunnel(captum.Saliency(net))
    theirs = tunnel.attribute(inputs, nt_type=kind, nt_samples=4, stdevs=sigma, target=2, abs=False)
    assert off(mine, theirs.abs().amax(dim=1)) <= WITHIN


@pytest.mark.parametrize("name", ["digits", "resnet18", "vgg11"])
@pytest.mark.parametrize(
    ("method", "theirs"),
    [(deconvnet, "Deconvolution"), (guided_backprop, "GuidedBackprop")],
    ids=["deconvnet", "guided"],
)
def test_relu_rules(name, method, theirs, captum):
    net, inputs = network(name)
    separate_relus(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(captum, theirs)(net).attribute(inputs.requires_grad_(), TARGETS)
    assert off(map_of(method, name), expected.detach().abs().amax(dim=1)) <= WITHIN


def separate_relus(net: nn.Module) -> None:
    """captum reads each ReLU module once, and not in place: give every use its own."""
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
        if type(module).__name__ == "BasicBlock":
            first, second = nn.ReLU(), nn.ReLU()
            module.relu = _Alternating(first, second)


class _Alternating(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.parts[self.turn % len(self.parts)]
        self.turn += 1
        return part(x)


LAYERS = {
    "digits": "relu2",
    "resnet18": "layer2",
    "vgg11": "features.14",
    "densenet121": "features.denseblock3",
    "vit": "encoder.layers.encoder_layer_1.ln_1",
}


def folded(tensor):
    """Fold tokens as pytorch-grad-cam's users do for a transformer."""
    return tensor[:, 1:].reshape(len(tensor), 4, 4, -1).permute(0, 3, 1, 2)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("method", "theirs"),
    [
        (grad_cam, "GradCAM"),
        (grad_cam_plus_plus, "GradCAMPlusPlus"),
        (xgrad_cam, "XGradCAM"),
        (hires_cam, "HiResCAM"),
        (layer_cam, "LayerCAM"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_cams(name, method, theirs, cams, monkeypatch):
    """The maps before pytorch-grad-cam stretches them, upsampled as OpenCV does it."""
    net, inputs = network(name)
    unstretched(monkeypatch)
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    layer = net.get_submodule(LAYERS[name])
    transform = {"reshape_transform": folded} if name == "vit" else {}
    with getattr(cams, theirs)(net, [layer], **transform) as cam:
        expected = torch.from_numpy(cam(inputs, [ClassifierOutputTarget(int(t)) for t in TARGETS]))
    assert expected.any()
    assert off(map_of(method, name, LAYERS[name]), expected) <= WITHIN


def unstretched(monkeypatch):
    import cv2
    import numpy as np

    def resized(cam, target_size=None):
        return cam if target_size is None else np.stack([cv2.resize(c, target_size) for c in cam])

    monkeypatch.setattr("pytorch_grad_cam.base_cam.scale_cam_image", resized)


def test_an_activation_that_is_overwritten_in_place(cams, monkeypatch):
    """A convolution before an in-place ReLU: pytorch-grad-cam reads what the ReLU left there."""
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    unstretched(monkeypatch)
    net, inputs = network("vgg11")
    targets = [ClassifierOutputTarget(int(t)) for t in TARGETS]
    mine = map_of(grad_cam, "vgg11", "features.13")
    with cams.GradCAM(net, [net.features[13]]) as cam:
        overwritten = torch.from_numpy(cam(inputs, targets))
    net.features[14].inplace = False
    with cams.GradCAM(net, [net.features[13]]) as cam:
        kept = torch.from_numpy(cam(inputs, targets))
    assert off(mine, kept) <= WITHIN
    assert off(mine, overwritten) > 1e-2


@pytest.mark.parametrize("name", NETS)
def test_eigen_cam(name, cams):
    """Before the ReLU and up to its sign, which both definitions leave open."""
    from pytorch_grad_cam.utils.svd_on_activations import get_2d_projection

    net, inputs = network(name)
    with Subject(net, inputs, layer=LAYERS[name]) as subject:
        mine = eigen_cam.projected(subject.activation)
        theirs = torch.from_numpy(get_2d_projection(subject.activation.numpy()))
    for one, other in zip(mine, theirs, strict=True):
        assert min(off(one, other), off(one, -other)) <= WITHIN


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_grad_cam_without_relu_is_captums(name, captum):
    net, inputs = network(name)
    theirs = captum.LayerGradCam(net, net.get_submodule(LAYERS[name])).attribute(inputs, TARGETS)
    with Subject(net, inputs, Objective(TARGETS), layer=LAYERS[name]) as subject:
        mine = grad_cam.weighted(subject.activation, subject.gradient)
    assert off(mine, theirs.detach()[:, 0]) <= WITHIN


def test_guided_grad_cam(captum):
    """With captum's own upsampling switched to the bilinear kind."""
    net, inputs = network("digits")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = captum.GuidedGradCam(net, net.relu2).attribute(
            inputs.requires_grad_(), TARGETS, interpolate_mode="bilinear"
        )
    found = map_of(guided_grad_cam, "digits", "relu2")
    assert off(found, theirs.detach().abs().amax(dim=1)) <= WITHIN
