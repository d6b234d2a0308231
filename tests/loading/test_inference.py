"""Inputs for configs that give none: each family's own size, and what is reported about it."""

from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from gradscope import demo
from gradscope.errors import ConfigError
from gradscope.loading.inputs import make_batches
from gradscope.loading.sources import Context
from gradscope.loading.specs import ModelKind


@pytest.fixture(autouse=True)
def random_state_is_put_back():
    with torch.random.fork_rng():
        yield


def infer(model, kind, config=None, target=None, **options):
    """The one batch that is inferred, the notices and the target."""
    context = Context(
        model=model,
        kind=kind,
        directory=Path(),
        place=lambda key: None,
        device=torch.device(options.get("device", "cpu")),
        dtype=torch.float32,
        instantiate=pytest.fail,
    )
    start, notices, target = make_batches(config, target, context, seed=0)
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
    "speech in frames": (
        "Speech2TextModel",
        "Speech2TextConfig",
        {**PAIR, "input_feat_per_channel": 16, "conv_channels": 16},
        {"input_features": [2, 64, 16], "decoder_input_ids": [2, 16]},
    ),
    "sound in channels": (
        "EncodecModel",
        "EncodecConfig",
        {"num_filters": 4, "hidden_size": 8, "codebook_size": 16, "upsampling_ratios": [8, 4]},
        {"input_values": [2, 1, 16000]},
    ),
    "series": (
        "PatchTSTModel",
        "PatchTSTConfig",
        {"num_input_channels": 3, "context_length": 16, "patch_length": 4, "patch_stride": 4}
        | {"d_model": 8, "num_attention_heads": 2, "ffn_dim": 8, "num_hidden_layers": 1},
        {"past_values": [2, 16, 3]},
    ),
    "bytes": (
        "PerceiverForMaskedLM",
        "PerceiverConfig",
        {"num_latents": 4, "d_latents": 8, "d_model": 8, "num_self_attends_per_block": 1}
        | {"num_self_attention_heads": 2, "num_cross_attention_heads": 2, "vocab_size": 30}
        | {"max_position_embeddings": 16},
        {"inputs": [2, 16]},
    ),
    "a trajectory": (
        "DecisionTransformerModel",
        "DecisionTransformerConfig",
        {"state_dim": 5, "act_dim": 3, "hidden_size": 8, "n_layer": 1, "n_head": 2},
        {"states": [2, 4, 5], "actions": [2, 4, 3], "rewards": [2, 4, 1]}
        | {"returns_to_go": [2, 4, 1], "timesteps": [2, 4], "attention_mask": [2, 4]},
    ),
    "text with a token for each patch of a picture": (
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**EYES, "model_type": "clip_vision_model"},
            "image_token_index": 29,
        },
        {"input_ids": [2, 20], "pixel_values": [2, 3, 16, 16]},
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


class Flattening(nn.Module):
    """Its linear layer fixes the side of the picture."""

    def __init__(self, side):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(1, 2, 5), nn.MaxPool2d(2)
        self.fc = nn.Linear(2 * ((side - 4) // 2) ** 2, 3)

    def forward(self, x):
        return self.fc(self.pool(self.conv(x)).flatten(1))


class Pictures(nn.Module):
    """Reads the sides of its picture before it flattens it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 3)

    def forward(self, x):
        n, c, h, w = x.shape
        return self.fc(x.reshape(n, c * h * w))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        b, t, c = x.shape
        return self.qkv(x).view(b, t, 3, c)


class LaterFirst(nn.Module):
    """Its last layer is registered first."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(16, 4), nn.Linear(8, 16)

    def forward(self, x):
        return self.head(self.body(x))


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.wanted = nn.Embedding(9, 4), nn.Embedding(7, 4)

    def forward(self, src, tgt):
        return self.source(src) + self.wanted(tgt)


class Denoising(nn.Module):
    """Two arguments that two kinds of layers take, the second one's registered first."""

    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(50, 4)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x, t):
        return self.conv(x) + self.time(t)[..., None, None]


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.positions = nn.Embedding(9, 4), nn.Embedding(8, 4)

    def forward(self, ids, targets=None):
        return self.table(ids) + self.positions(torch.arange(ids.shape[1]))


class Any_(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(5, 3)

    def forward(self, *args, **kwargs):
        return self.stem(args[0])


FITTING = {
    # what: (model, what the note says)
    "one's own class": (Own(), "randn [2, 7] (inferred from stem, Linear)"),
    "a side of 32": (Flattening(32), "randn [2, 1, 32, 32] (inferred from conv, Conv2d)"),
    "a side of 28": (Flattening(28), "randn [2, 1, 28, 28] (inferred from conv, Conv2d)"),
    "a side of 224": (Flattening(224), "randn [2, 1, 224, 224] (inferred from conv, Conv2d)"),
    "a picture that is flattened": (Pictures(), "randn [2, 3, 4, 4] (inferred from fc, Linear)"),
    "a sequence": (Attention(), "randn [2, 16, 8] (inferred from qkv, Linear)"),
    "a layer that comes later": (LaterFirst(), "randn [2, 8] (inferred from body, Linear)"),
    "a generator": (Generator(), "randn [2, 9, 1, 1] (inferred from net.0, ConvTranspose2d)"),
    "few positions": (Positions(), "randint(9) [2, 8] (inferred from table, Embedding)"),
    "any arguments": (Any_(), "randn [2, 5] (inferred from stem, Linear)"),
    "a size that only a later layer knows": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 26**2, 2)),
        "randn [2, 3, 28, 28] (inferred from 0, Conv2d)",
    ),
    "two arguments of two layers": (
        Tables(),
        "src randint(9) [2, 16], tgt randint(7) [2, 16] "
        "(inferred from source, Embedding and wanted, Embedding)",
    ),
    "two arguments of two kinds": (
        Denoising(),
        "x randn [2, 3, 32, 32], t randint(50) [2] "
        "(inferred from conv, Conv2d and time, Embedding)",
    ),
}


@pytest.mark.parametrize(("model", "note"), FITTING.values(), ids=FITTING)
def test_what_fits_is_taken(model, note):
    torch.manual_seed(0)
    batch, notices, _ = infer(model, ModelKind("python", "./net.py:Net"))
    assert notices == [f"input: {note}"]
    model(*batch.args, **batch.kwargs)


class Counting(nn.Module):
    """Changes itself, prints, and keeps statistics."""

    def __init__(self):
        super().__init__()
        self.norm, self.calls = nn.BatchNorm2d(3), 0

    def forward(self, x):
        self.calls += 1
        print("forward")
        with torch.no_grad():
            self.norm.weight.mul_(2)
        return self.norm(x)


def test_a_trial_leaves_no_trace(capsys):
    model = Counting()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    infer(model, ModelKind("python", "./net.py:Net"))
    assert model.calls == 0
    assert capsys.readouterr() == ("", "")
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


class Misspelt(Own):
    def forward(self, x):
        return self.steem(x)


class Unknown(Own):
    def forward(self, x):
        return F.relu(self.stem(x))  # noqa: F821


@pytest.mark.parametrize("model", [Misspelt(), Unknown()])
def test_a_bug_is_left_to_the_run_to_explain(model):
    _, notices, _ = infer(model, ModelKind("python", "./net.py:Net"))
    assert notices == ["input: randn [2, 7] (inferred from stem, Linear)"]


class TakesMapping(Own):
    def forward(self, inputs):
        return self.stem(inputs["features"])


class Indexed(Own):
    def forward(self, x, edges):
        return self.stem(x)[edges[0]]


class Uncopied(Own):
    def __deepcopy__(self, memo):
        raise TypeError("holds a lock")


class OwnWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 5))

    def forward(self, x):
        return x @ self.weight


REFUSED = {
    # what: (model, the note or None, the help)
    "a mapping": (
        TakesMapping(),
        "with [2, 7] forward raised IndexError: ",
        "write the shape that forward takes as `inputs`: input.shape=[2, …]",
    ),
    "indices": (
        Indexed(),
        "with [2, 7] and [2, 7] forward raised IndexError: ",
        "write forward's arguments: `input: {x: {shape: [2, …]}, edges: {shape: [2, …]}}`",
    ),
    "no copy": (
        Uncopied(),
        "no input was tried: a copy of the model raised TypeError: holds a lock",
        "try input.shape=[2, 7]: it fits the first layer `stem`, Linear",
    ),
    "no layers": (Triple(), None, "write the shape that forward takes as `x`: input.shape=[2, …]"),
    "parameters of its own": (OwnWeight(), None, "write the shape that forward takes as `x`: "),
    "a layer that no size fits": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(9, 2)),
        "with [2, 3, 32, 32] forward raised RuntimeError: ",
        "write the shape that forward takes as `input`: ",
    ),
    "a norm behind what changes the shape": (
        nn.Sequential(nn.PixelShuffle(2), nn.BatchNorm2d(6)),
        None,
        "write the shape that forward takes as `input`: ",
    ),
    "a norm behind a layer that says nothing": (
        nn.Sequential(nn.Bilinear(3, 4, 6), nn.BatchNorm1d(6)),
        None,
        "write the shape that forward takes as `input`: ",
    ),
    "no forward": (
        nn.ModuleList([nn.Linear(3, 4)]),
        None,
        "try input.shape=[2, 3]: it fits the first layer `0`, Linear",
    ),
}


@pytest.mark.parametrize(("model", "note", "help"), REFUSED.values(), ids=REFUSED)
def test_what_nothing_fits_is_said(model, note, help):
    with pytest.raises(ConfigError, match="cannot be inferred") as caught:
        infer(model, ModelKind("python", "./net.py:Net"))
    (problem,) = caught.value.problems
    assert problem.help.startswith(help)
    assert [line for line in problem.notes if not line.startswith(note or "")] == []
    assert bool(problem.notes) == bool(note)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_script_shows_no_layers():
    with pytest.raises(ConfigError, match="cannot be inferred"):
        infer(torch.jit.script(nn.Linear(3, 4)), ModelKind("python", "./net.py:Net"))


def test_the_note_counts_the_trials():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(9, 2))
    with pytest.raises(ConfigError) as caught:
        infer(model, ModelKind("python", "./net.py:Net"))
    assert caught.value.problems[0].notes[0].endswith("; 11 other shapes failed too")


def test_wishes_about_an_inferred_input():
    batch, notices, _ = infer(
        nn.Linear(3, 4), ModelKind("python", "Net"), {"batch": 5, "requires_grad": True}
    )
    assert batch.args[0].shape == (5, 3) and batch.args[0].requires_grad
    assert "randn [5, 3]" in notices[0]
