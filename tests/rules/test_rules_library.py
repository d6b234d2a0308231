"""A library's own unused layers are intended; the user's are not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gradscope

pytestmark = pytest.mark.slow


def severities(model: nn.Module, x: Tensor, loss) -> dict[str, str]:
    """The severity of each finding about missing gradients, by code."""
    report = gradscope.check(model, x, loss=loss, select=["GS401", "GS402"])
    return {finding.code: finding.severity for finding in report.findings}


class Unused(nn.Module):
    """A head that forward computes and the loss does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.aux = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(x), self.aux(x)


class Around(nn.Module):
    """A library's network in the user's own module, used as ``how`` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        from torchvision.models.mobilenetv2 import InvertedResidual

        self.how = how
        self.backbone, self.head = InvertedResidual(4, 4, 1, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "no_grad":
            with torch.no_grad():
                x = self.backbone(x)
        elif self.how == "used":
            x = self.backbone(x)
        return self.head(x)


def googlenet() -> nn.Module:
    from torchvision.models.googlenet import GoogLeNet

    return GoogLeNet(num_classes=3, init_weights=False)


@pytest.mark.parametrize("how", ["no_grad", "not called"])
def test_what_the_user_does_to_a_library_is_an_error(how: str) -> None:
    torch.manual_seed(0)
    found = severities(Around(how), torch.randn(2, 4, 8, 8), lambda out: out.sum())
    assert set(found.values()) == {"error"}


def test_a_used_one_is_silent() -> None:
    torch.manual_seed(0)
    assert severities(Around("used"), torch.randn(2, 4, 8, 8), lambda out: out.sum()) == {}


def test_the_users_own_unused_head_is_an_error() -> None:
    found = severities(Unused(), torch.randn(2, 4), lambda out: out[0].sum())
    assert found == {"GS401": "error"}


def test_a_librarys_unused_head_is_a_warning() -> None:
    torch.manual_seed(0)
    found = severities(googlenet(), torch.randn(2, 3, 64, 64), lambda out: out.logits.sum())
    assert found == {"GS401": "warning"}
