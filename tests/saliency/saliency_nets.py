"""Small networks and subjects that the saliency tests share."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import gradscope.demo
from gradscope.demo.networks import SimpleNet

DEMO = Path(gradscope.demo.__file__).parent


def digits(*which: int) -> Tensor:
    """Bundled digits as the demo net reads them, [N, 1, 28, 28]."""
    pictures = [Image.open(DEMO / "digits" / f"digit-{digit}.png").convert("L") for digit in which]
    pixels = [torch.tensor(list(p.tobytes()), dtype=torch.float32) for p in pictures]
    return torch.stack(pixels).view(-1, 1, 28, 28) / 255


def trained() -> nn.Module:
    net = SimpleNet()
    net.load_state_dict(load_file(DEMO / "simple.safetensors"))
    return net.eval()


def vit() -> nn.Module:
    net = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=7)
    nn.init.normal_(net.heads.head.weight)  # torchvision starts it at zero: no gradient at all
    return net


def vgg11() -> nn.Module:
    """VGG-11's convolutions and in-place ReLUs under a head of a few neurons."""
    net = torchvision.models.vgg11(num_classes=7, init_weights=False)
    net.classifier = nn.Sequential(
        nn.Linear(512 * 49, 16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 7)
    )
    return net


MAKERS = {
    "resnet18": lambda: torchvision.models.resnet18(num_classes=7),
    "vgg11": vgg11,
    "densenet121": lambda: torchvision.models.densenet121(num_classes=7),
    "vit": vit,
}


def network(name: str) -> tuple[nn.Module, Tensor]:
    """A network of the caller's own, in eval mode, and two inputs for it."""
    net, inputs = _built(name)
    return copy.deepcopy(net), inputs.clone()


@functools.cache
def _built(name: str) -> tuple[nn.Module, Tensor]:
    """Random but seeded weights; those of the digits' network are trained."""
    if name == "digits":
        return trained(), digits(3, 7)
    torch.manual_seed(1)
    return MAKERS[name]().eval(), torch.randn(2, 3, 32, 32)


class Pooled(nn.Module):
    """Convolutions, average pooling, one linear layer: CAM's own head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.relu(self.conv(x)))
        return self.fc(x.mean(dim=(2, 3)))


class Functional(nn.Module):
    """ReLUs of every kind: functional, in place, reused, a method, ``clamp``; one GELU."""

    def __init__(self, *, modules: bool = False) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(6))
        self.relus = nn.ModuleList(nn.ReLU() for _ in range(5))
        self.reused = nn.ReLU(inplace=True)
        self.fc = nn.Linear(3, 4)
        self.modules_only = modules

    def forward(self, x: Tensor) -> Tensor:
        kinds = (
            F.relu,
            lambda t: F.relu(t, inplace=True),
            self.reused,
            self.reused,
            lambda t: t.clamp(min=0),
        )
        for conv, kind, module in zip(self.convs, kinds, self.relus, strict=False):
            x = module(conv(x)) if self.modules_only else kind(conv(x))
        return self.fc(F.gelu(self.convs[5](x)).mean(dim=(2, 3)))


def off(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest expected value."""
    return float((found.double() - expected.double()).abs().max() / expected.abs().max())
