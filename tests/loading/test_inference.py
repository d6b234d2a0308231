"""Inputs for configs that give none: each family's own size, and what is said about it."""

from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from gradscope import demo
from gradscope.errors import ConfigError
from gradscope.loading.inputs import make_batches
from gradscope.loading.kinds import ModelKind


@pytest.fixture(autouse=True)
def random_state_is_put_back():
    with torch.random.fork_rng():
        yield


def infer(model, kind, config=None, target=None, **options):
    """The one batch that is inferred, the notices and the target."""
    start, notices, target = make_batches(
        config,
        target,
        model=model,
        model_kind=kind,
        directory=Path(),
        place=lambda key: None,
        device=torch.device(options.get("device", "cpu")),
        dtype=torch.float32,
        seed=0,
        instantiate=pytest.fail,
    )
    (batch,) = start()
    return batch, notices, target


class TestDemo:
    def test_one_digit_and_its_label(self):
        batch, notices, target = infer(nn.Conv2d(1, 1, 5), ModelKind("demo", "demo"))
        (image,) = batch.args
        label = demo.DIGITS[0][1]
        assert image.shape == (1, 1, 28, 28) and 0 <= image.min() < image.max() <= 1
        assert target.tolist() == [label]
        assert notices == [
            f"input: a bundled handwritten {label}, pixel / 255 (inferred from demo)"
        ]

    def test_a_target_of_ones_own_stays(self):
        _, _, target = infer(nn.Conv2d(1, 1, 5), ModelKind("demo", "demo"), target=[3])
        assert target.tolist() == [3]

    def test_more_of_it(self):
        batch, notices, target = infer(
            nn.Conv2d(1, 1, 5), ModelKind("demo", "lecture"), {"batch": 3}
        )
        assert batch.args[0].shape == (3, 1, 28, 28) and target.shape == (3,)
        assert notices[0].endswith("(inferred from demo:lecture)")


class TestTorchvision:
    """With torchvision's own weights entries, which say the size, and models on meta."""

    SIZES: ClassVar = {
        "resnet18": [2, 3, 224, 224],
        "inception_v3": [2, 3, 299, 299],
        "swin_v2_t": [2, 3, 256, 256],
        "efficientnet_b1": [2, 3, 240, 240],
        "deeplabv3_mobilenet_v3_large": [2, 3, 224, 224],
        "r3d_18": [2, 3, 16, 112, 112],
        "s3d": [2, 3, 16, 224, 224],
        "mvit_v2_s": [2, 3, 16, 224, 224],
        "swin3d_t": [2, 3, 16, 224, 224],
    }

    @staticmethod
    def kind(name):
        from torchvision import models

        module = models.get_model_builder(name).__module__
        category = module.removeprefix("torchvision.models.").partition(".")
        return ModelKind(
            "torchvision",
            name,
            default_weights=models.get_model_weights(name).DEFAULT,
            category=category[0] if category[1] else "classification",
        )

    @pytest.mark.parametrize(("name", "shape"), SIZES.items())
    def test_sizes(self, name, shape):
        batch, notices, target = infer(nn.Linear(1, 1), self.kind(name))
        assert list(batch.args[0].shape) == shape
        assert notices == [f"input: randn {shape} (inferred from torchvision:{name})"]
        assert target is None

    def test_what_the_model_itself_takes_comes_first(self):
        from torchvision.models import vit_b_16

        with torch.device("meta"):
            model = vit_b_16(image_size=64)
            model.conv_proj = nn.Conv2d(1, 768, 16, 16)
        batch, _, _ = infer(model, self.kind("vit_b_16"), device="meta")
        assert batch.args[0].shape == (2, 1, 64, 64)

    def test_optical_flow(self):
        batch, notices, _ = infer(nn.Linear(1, 1), self.kind("raft_small"))
        assert [list(image.shape) for image in batch.args] == [[1, 3, 128, 128]] * 2
        assert not torch.equal(*batch.args)
        assert "two randn" in notices[0]

    HEADS: ClassVar = {
        "faster": (SimpleNamespace(), {"boxes", "labels"}),
        "mask": (SimpleNamespace(mask_predictor=1), {"boxes", "labels", "masks"}),
        "keypoint": (
            SimpleNamespace(
                keypoint_predictor=SimpleNamespace(
                    kps_score_lowres=SimpleNamespace(out_channels=17)
                )
            ),
            {"boxes", "labels", "keypoints"},
        ),
    }

    @pytest.mark.parametrize(("heads", "keys"), HEADS.values(), ids=HEADS)
    def test_detection(self, heads, keys):
        model = nn.Linear(1, 1)
        model.roi_heads = heads
        kind = ModelKind("torchvision", "rcnn", category="detection")
        images, targets = infer(model, kind)[0].args
        assert [list(image.shape) for image in images] == [[3, 224, 224]] * 2
        assert all(set(target) == keys for target in targets)
        assert targets[0]["labels"].dtype == torch.int64 and targets[0]["boxes"].shape == (2, 4)
        if "masks" in keys:
            assert targets[0]["masks"].dtype == torch.uint8
        if "keypoints" in keys:
            assert targets[0]["keypoints"].shape == (2, 17, 3)
        batch, _, _ = infer(model.eval(), kind)
        assert len(batch.args) == 1

    @pytest.mark.slow
    def test_a_real_detection_model_trains_on_it(self):
        from torchvision.models.detection import ssdlite320_mobilenet_v3_large

        model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
        batch, _, _ = infer(model, self.kind("ssdlite320_mobilenet_v3_large"))
        losses = model(*batch.args)
        assert all(loss.isfinite() for loss in losses.values())


def test_timm():
    timm = pytest.importorskip("timm")
    small = timm.create_model("resnet10t")
    kind = ModelKind("timm", "resnet10t", data_config=timm.data.resolve_model_data_config(small))
    assert infer(small, kind)[0].args[0].shape == (2, 3, 176, 176)
    vit = timm.create_model("vit_tiny_patch16_224", img_size=64, in_chans=1, depth=1)
    kind = ModelKind("timm", "vit", data_config=timm.data.resolve_model_data_config(vit))
    batch, _, _ = infer(vit, kind)
    assert vit(*batch.args).shape == (2, 1000)


SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
TEXT = {**SMALL, "vocab_size": 30}
EYES = {**SMALL, "image_size": 16, "patch_size": 8}
PAIR = {
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "vocab_size": 30,
}
GPT = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 30}
TRANSFORMERS = {
    # what: (model, config, settings, shapes of the keyword arguments)
    "causal": ("GPT2LMHeadModel", "GPT2Config", GPT, {"input_ids": [2, 16]}),
    "few positions": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**GPT, "n_positions": 8},
        {"input_ids": [2, 6]},
    ),
    "one row without padding": (
        "GPT2ForSequenceClassification",
        "GPT2Config",
        GPT,
        {"input_ids": [1, 16]},
    ),
    "positions after padding": (
        "RobertaModel",
        "RobertaConfig",
        {**TEXT, "max_position_embeddings": 18},
        {"input_ids": [2, 16]},
    ),
    "encoder and decoder": (
        "BartModel",
        "BartConfig",
        PAIR,
        {"input_ids": [2, 16], "decoder_input_ids": [2, 16]},
    ),
    "pictures": ("ViTModel", "ViTConfig", EYES, {"pixel_values": [2, 3, 16, 16]}),
    "text and pictures": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": TEXT, "vision_config": EYES},
        {"input_ids": [2, 16], "pixel_values": [2, 3, 16, 16]},
    ),
    "clips": (
        "VideoMAEModel",
        "VideoMAEConfig",
        {**EYES, "num_frames": 4},
        {"pixel_values": [2, 4, 3, 16, 16]},
    ),
    "speech": (
        "WhisperModel",
        "WhisperConfig",
        {**PAIR, "max_source_positions": 20, "pad_token_id": 0},
        {"input_features": [2, 80, 40], "decoder_input_ids": [2, 16]},
    ),
    "a spectrogram": (
        "ASTModel",
        "ASTConfig",
        {**SMALL, "max_length": 32, "num_mel_bins": 16},
        {"input_values": [2, 32, 16]},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "config", "settings", "shapes"), TRANSFORMERS.values(), ids=TRANSFORMERS
)
def test_transformers(model, config, settings, shapes):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, config)(**settings)
    model = getattr(transformers, model)(config).eval()
    batch, notices, _ = infer(model, ModelKind("hf", "tiny", hf_config=config))
    assert batch.args == ()
    assert {name: list(tensor.shape) for name, tensor in batch.kwargs.items()} == shapes
    assert notices[0].endswith(f"(inferred from the config of {type(model).__name__})")
    model(**batch.kwargs)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(7, 3)

    def forward(self, x, mask=None):
        return self.stem(x)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, ids, other):
        return self.table(ids) + other


class Alone(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.ones(2))

    def forward(self):
        return self.x * 3


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.ConvTranspose2d(9, 6, 4), nn.BatchNorm2d(6))

    def forward(self, z):
        return self.net(z)


class Triple(nn.Module):
    def forward(self, x):
        return x * 3


CERTAIN = {
    "linear": (nn.Linear(3, 4), [2, 3]),
    "linear behind what keeps shapes": (
        nn.Sequential(nn.Sequential(nn.ReLU()), nn.Flatten(), nn.Linear(8, 2)),
        [2, 8],
    ),
    "convolutions of any size": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), [2, 3, 32, 32]),
    "a generator": (
        nn.Sequential(nn.ConvTranspose2d(9, 6, 4), nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 3, 4)),
        [2, 9, 1, 1],
    ),
    "a decoder": (
        nn.Sequential(nn.ConvTranspose1d(9, 6, 3, 2, 1, 1), nn.BatchNorm1d(6)),
        [2, 9, 8],
    ),
    "a decoder of volumes": (nn.ConvTranspose3d(5, 4, 2, 2), [2, 5, 8, 8, 8]),
    "a sequence": (nn.Conv1d(5, 4, 3), [2, 5, 32]),
    "ids": (nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 1)), [2, 16]),
    "an LSTM": (nn.LSTM(5, 6), [16, 2, 5]),
    "an LSTM with the batch first": (nn.LSTM(5, 6, batch_first=True), [2, 16, 5]),
    "a cell": (nn.GRUCell(5, 6), [2, 5]),
    "a norm": (nn.LayerNorm([3, 5]), [2, 3, 5]),
    "an encoder layer": (nn.TransformerEncoderLayer(8, 2), [2, 16, 8]),
}


@pytest.mark.parametrize(("model", "shape"), CERTAIN.values(), ids=CERTAIN)
def test_the_first_layer_says_it(model, shape):
    batch, notices, _ = infer(model, ModelKind("python", "./net.py:Net"))
    assert list(batch.args[0].shape) == shape
    assert "(inferred from the first layer, " in notices[0]
    model(*batch.args)


def test_a_model_that_takes_nothing():
    batch, notices, _ = infer(Alone(), ModelKind("python", "./net.py:Alone"))
    assert batch.args == () and batch.kwargs == {}
    assert notices == ["input: none: forward takes no arguments (inferred from ./net.py:Alone)"]


UNCERTAIN = {
    "a class of one's own": (
        Own(),
        "try input.shape=[2, 7]: it fits the first layer `stem`, Linear",
    ),
    "two arguments": (
        Two(),
        "try `input: {ids: {shape: [2, 16], dtype: int64, fill: randint(9)}, other: {shape: […]}}`",
    ),
    "no layers": (Triple(), "try input.shape=[2, 8], with the shape"),
    "a generator of one's own": (
        Generator(),
        "try input.shape=[2, 9, 1, 1]: it fits the first layer `net.0`, ConvTranspose2d",
    ),
    "a norm behind what changes the shape": (
        nn.Sequential(nn.PixelShuffle(2), nn.BatchNorm2d(6)),
        "try input.shape=[2, 8], with the shape that its forward takes",
    ),
    "a norm behind a layer that says nothing": (
        nn.Sequential(nn.Bilinear(3, 4, 6), nn.BatchNorm1d(6)),
        "try input.shape=[2, 8], with the shape that its forward takes",
    ),
    "a size that only a later layer knows": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(9, 2)),
        "try input.shape=[2, 3, 32, 32]: it fits the first layer `0`, Conv2d",
    ),
}


@pytest.mark.parametrize(("model", "help"), UNCERTAIN.values(), ids=UNCERTAIN)
def test_what_cannot_be_inferred_is_suggested(model, help):
    with pytest.raises(ConfigError, match="cannot be inferred") as caught:
        infer(model, ModelKind("python", "./net.py:Net"))
    assert help in caught.value.problems[0].help


def test_wishes_about_an_inferred_input():
    batch, notices, _ = infer(
        nn.Linear(3, 4), ModelKind("python", "Net"), {"batch": 5, "requires_grad": True}
    )
    assert batch.args[0].shape == (5, 3) and batch.args[0].requires_grad
    assert "randn [5, 3]" in notices[0]
