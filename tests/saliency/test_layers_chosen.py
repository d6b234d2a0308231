"""The target layer that is chosen, and how outputs become maps."""

from __future__ import annotations

import pytest
import torch
from saliency.saliency_nets import Pooled, digits, network, trained, vit
from torch import Tensor, nn
from torchvision import models

from gradscope.capture.activation_maps import as_map
from gradscope.errors import OptionError
from gradscope.saliency import grad_cam
from gradscope.saliency._subject import Subject


def chosen(net: nn.Module, inputs: Tensor) -> tuple[str, tuple[int, ...]]:
    with Subject(net.eval(), inputs) as subject:
        assert f"`{subject.layer}`" in subject.choice.description
        return subject.layer, tuple(subject.activation.shape[2:])


PICTURE = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "layer", "grid"),
    [
        (models.resnet18, "layer4", (2, 2)),
        (models.densenet121, "features", (2, 2)),
        (models.mobilenet_v2, "features", (2, 2)),
        (models.mobilenet_v3_small, "features", (2, 2)),
        (models.efficientnet_b0, "features", (2, 2)),
        (models.shufflenet_v2_x0_5, "conv5", (2, 2)),
        (models.squeezenet1_1, "classifier.2", (3, 3)),
        (models.convnext_tiny, "features", (2, 2)),
        (models.swin_t, "permute", (2, 2)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_torchvision(make, layer, grid):
    assert chosen(make(num_classes=3), PICTURE) == (layer, grid)


def test_vgg_before_its_pools():
    net, _ = network("vgg11")
    assert chosen(net, PICTURE) == ("features.19", (4, 4))


def test_googlenet_with_heads_that_are_not_read():
    net = models.googlenet(num_classes=3, init_weights=False, aux_logits=True)
    assert chosen(net, PICTURE) == ("inception5b", (2, 2))


def test_the_demo_net():
    assert chosen(trained(), digits(3)) == ("relu2", (8, 8))


def test_vit_reads_its_class_token():
    """Behind the last attention no patch reaches the score: the norm before it is taken."""
    net = vit()
    assert chosen(net, PICTURE[:, :, :32, :32]) == ("encoder.layers.encoder_layer_1.ln_1", (4, 4))


def test_vit_whose_weights_are_zero_still_has_a_layer():
    net = vit()
    nn.init.zeros_(net.heads.head.weight)
    layer, grid = chosen(net, PICTURE[:, :, :32, :32])
    assert (layer.split(".")[0], grid) == ("encoder", (4, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "layer", "grid"),
    [
        ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2}, "blocks.1.norm1", (4, 4)),
        (
            "vit_small_patch16_224",
            {"img_size": 64, "depth": 2, "reg_tokens": 4},
            "blocks.1.norm1",
            (4, 4),
        ),
        (
            "vit_tiny_patch16_224",
            {"img_size": 64, "depth": 2, "class_token": False, "global_pool": "avg"},
            "blocks.1.norm2",
            (4, 4),
        ),
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 2}, "norm", (2, 2)),
        ("convnext_atto", {}, "stages", (2, 2)),
        ("resnet18", {}, "layer4", (2, 2)),
    ],
    ids=["vit", "registers", "pooled-vit", "swin", "convnext", "resnet"],
)
def test_timm(name, options, layer, grid):
    timm = pytest.importorskip("timm", reason="timm is an extra")
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=3, **options)
    assert chosen(net, PICTURE) == (layer, grid)


@pytest.mark.parametrize("kind", ["ViT", "Swin"])
def test_transformers(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is an extra")
    torch.manual_seed(0)
    common = {"image_size": 64, "num_labels": 3}
    if kind == "ViT":
        config = transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            patch_size=16, **common,
        )  # fmt: skip
        net = transformers.ViTForImageClassification(config)
        expected = ("layernorm_before", (4, 4))
    else:
        config = transformers.SwinConfig(
            embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2, **common
        )
        net = transformers.SwinForImageClassification(config)
        expected = ("layernorm", (8, 8))
    layer, grid = chosen(net, PICTURE)
    assert (layer.rpartition(".")[2], grid) == expected


def test_a_last_map_that_no_module_makes():
    class Late(Pooled):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.last(self.relu(self.conv(x))))
            return self.fc(torch.cat([x[:, :4], x[:, 4:]], dim=1).mean(dim=(2, 3)))

    assert chosen(Late(), PICTURE) == ("last", (16, 16))


def test_a_model_without_maps():
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    with pytest.raises(OptionError, match="no layer") as error, Subject(net, digits(3)) as subject:
        grad_cam.attribute(subject)
    assert "gradient" in error.value.problems[0].help


def test_what_is_no_picture():
    net = nn.Sequential(nn.Linear(4, 3))
    with (
        pytest.raises(OptionError, match="not a picture"),
        Subject(net, torch.ones(2, 4)) as subject,
    ):
        grad_cam.attribute(subject)


def test_a_choice_serves_other_images():
    net, inputs = network("resnet18")
    with Subject(net, inputs) as first, Subject(net, inputs, layer=first.choice) as second:
        assert second.choice is first.choice


@pytest.mark.parametrize(
    ("shape", "size", "found"),
    [
        ((1, 5, 7, 7), (28, 28), (5, 7, 7)),
        ((1, 7, 7, 6), (28, 28), (7, 7, 6)),  # both fit: channels first, as convolutions have it
        ((1, 7, 7, 768), (224, 224), (768, 7, 7)),
        ((1, 4, 8, 96), (32, 64), (96, 4, 8)),
        ((1, 197, 6), (224, 224), (6, 14, 14)),
        ((1, 201, 6), (224, 224), (6, 14, 14)),
        ((1, 1 + 8 * 4, 6), (64, 32), (6, 8, 4)),
        ((1, 49, 6), (224, 224), (6, 7, 7)),
        ((1, 6, 1, 1), (28, 28), None),
        ((1, 6), (28, 28), None),
        ((1, 3, 6), (28, 28), None),
        ((1, 2, 6, 7, 7), (28, 28), None),
    ],
)
def test_maps_of_outputs(shape, size, found):
    made = as_map(torch.zeros(shape), size)
    assert (None if made is None else tuple(made.shape[1:])) == found


def test_class_and_register_tokens_are_dropped_from_the_front():
    tokens = torch.arange(9.0).view(1, 9, 1)
    assert as_map(tokens, (32, 32), patches=(2, 2)).flatten().tolist() == [5, 6, 7, 8]


def test_a_layer_norm_has_its_channels_last():
    made = as_map(torch.zeros(1, 7, 7, 7), (28, 28), module=nn.LayerNorm(7))
    assert made.stride() == torch.zeros(1, 7, 7, 7).permute(0, 3, 1, 2).stride()


def test_attention_weights_are_no_map_of_their_own():
    assert as_map(torch.zeros(1, 2, 17, 8), (32, 32), strict=True) is None
