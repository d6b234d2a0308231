"""Inputs that once broke the contract, minimised: found by the fuzzer or by a user."""

from __future__ import annotations

import io
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile.commands import gradscope
from PIL import Image

from fuzz.attempts import Attempt, faults
from fuzz.configs import CONFIGS
from gradscope import demo
from gradscope.demo.networks import SimpleNet

LARGE = (2**63, 10**24)
DIGITS = f"0x{'f' * 5000}"
FOUND = [
    *(f"input.shape=[1, {n}]" for n in LARGE),
    *(f"input.batch={n}" for n in (10**12, 2**63 - 1, *LARGE)),
    *(f"input={{shape: [3], batch: {n}}}" for n in (10**12, 2**63)),
    *(f"input={{values: [3], batch: {n}}}" for n in (10**12, 2**63)),
    *(f"input.tokens=[[{n}]]" for n in LARGE),
    *(f"{key}={DIGITS}" for key in ("seed", "input.batch", "target")),
    f"input.shape=[{DIGITS}]",
    f"rules.thresholds={{GS101: {{ratio: {DIGITS}}}}}",
    f"interventions=[{{layers: '**', do: scale, value: {DIGITS}}}]",
    *(f"input={{shape: [1, 1, 28, 28], fill: {n}}}" for n in (*LARGE, -(2**63) - 1, DIGITS)),
    *(f"input={{shape: [2], dtype: int64, fill: {n}}}" for n in (*LARGE, -(2**63) - 1, "1e30")),
    *(f"input={{shape: [2], fill: randint({n})}}" for n in (*LARGE, "9" * 900, -(10**24))),
    *(f"input={{shape: [2], fill: 'randint({n}, 3)'}}" for n in (-(2**64), 2**64)),
    f"a{'.b' * 10_000}=1",
    *(f"{key}=~nobody/a.{end}" for key, end in (("checkpoint", "pt"), ("input.image", "png"))),
    *(f"model={spec}" for spec in ("./~.py:Net", "hf:~nobody/m", "~nobody.net.Net")),
]


#: Pipes into which nobody writes, and files without an end.
STREAMS = [
    *(("inspect", "demo", f"{key}=PIPE") for key in ("checkpoint", "input.image", "input.file")),
    *(("show", "/dev/zero"), ("check", "demo", "--baseline", "PIPE"), ("inspect", "PIPE")),
    *(("show", "PIPE"), ("why", "PIPE"), ("graph", "PIPE"), ("show", "run.db")),
    *(("saliency", "PIPE", "-m", "demo"), ("inspect", "hf:m"), ("inspect", "./net.py:Net")),
    *(("inspect", "demo", f"{key}=/dev/zero") for key in ("checkpoint", "input.image", "target")),
]
PICTURE = (Path(demo.__file__).parent / "digits" / "digit-1.png").read_bytes()
BERT = json.loads((CONFIGS / "bert-tiny" / "config.json").read_text(encoding="utf-8"))
LARGE_MODELS = [
    {"_target_": "torch.nn.LSTM", "input_size": 4, "hidden_size": 4, "num_layers": 10**7},
    {"_target_": "timm.create_model", "model_name": "vit_tiny_patch16_224", "depth": 10**7},
    {"_target_": "torchvision.models.densenet.DenseNet", "block_config": [10**7, 1]},
    {"_target_": "torch.nn.Linear", "in_features": 10**12, "out_features": 1},
    {"_target_": "torchvision.models.resnet18", "num_classes": 10**30},
]


@pytest.mark.parametrize("word", FOUND, ids=lambda word: word[:50])
def test_the_contract_holds(word: str) -> None:
    assert faults(Attempt("key", ("inspect", "demo", word))) == []


#: Transforms that a picture of 28 by 28 does not suit, or that give no tensor.
BUILT = [
    *("RandomCrop, size: 1000", "v2.RandomCrop, size: 1000", "Resize, size: -1", "ToPILImage"),
    *("Normalize, mean: 0, std: 1", "FiveCrop, size: 28", "CenterCrop, size: -3"),
    "Compose, transforms: [{_target_: torchvision.transforms.RandomCrop, size: 29}]",
]


@pytest.mark.slow
@pytest.mark.parametrize("built", BUILT, ids=lambda built: built.split(",")[0])
def test_a_transform_that_does_not_suit(built):
    word = f"input.transform={{_target_: torchvision.transforms.{built}}}"
    for words in (
        ("inspect", "demo", "input.image=a.png", word),
        ("saliency", "a.png", "-m", "demo", "--method", "gradient", "-o", "made.png", word),
    ):
        assert faults(Attempt("image", words, {"a.png": PICTURE})) == []


@cache
def _meta(kind: str) -> bytes:
    empty = torch.empty(2, 1, 28, 28, device="meta")
    content = {"tensor": empty, "list": [torch.ones(1), empty], "dict": {"x": empty}}
    with torch.device("meta"):
        content["weights"] = SimpleNet().state_dict()
    file = io.BytesIO()
    torch.save(content[kind], file)
    return file.getvalue()


@pytest.mark.parametrize("key", ["input.file", "target", "checkpoint", "input.x.file"])
@pytest.mark.parametrize("kind", ["tensor", "list", "dict", "weights"])
def test_tensors_without_values(kind, key):
    attempt = Attempt("checkpoint", ("inspect", "demo", f"{key}=x.pt"), {"x.pt": _meta(kind)})
    assert faults(attempt) == []


@cache
def _animation(suffix: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (3, 40, 40, 3), dtype=np.uint8)
    first, *others = map(Image.fromarray, pixels)
    file = io.BytesIO()
    first.save(file, suffix, save_all=True, append_images=others)
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["gif", "tiff", "webp", "png"])
def test_an_animation_that_is_cut_short(suffix):
    whole = _animation(suffix)
    for part in (0.1, 0.34, 0.5, 0.9):
        files = {f"a.{suffix}": whole[: int(part * len(whole))]}
        for words in (
            ("inspect", "demo", f"input.image=a.{suffix}"),
            ("saliency", f"a.{suffix}", "-m", "demo", "--method", "gradient", "-o", "made.png"),
            ("features", "activations", f"a.{suffix}", "-m", "demo", "-o", "made.png"),
        ):
            assert faults(Attempt("image", words, files)) == []


@pytest.mark.parametrize("crop", [[261_513, 10**7], 2**63])
def test_a_picture_that_is_too_large(crop: object) -> None:
    word = f"input.transform={{crop: {crop}}}"
    files = {"a.png": PICTURE}
    assert faults(Attempt("image", ("inspect", "demo", "input.image=a.png", word), files)) == []


@pytest.mark.parametrize("words", STREAMS, ids=" ".join)
def test_what_never_ends_is_not_read(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps(BERT))
    suffix = {"input.image=PIPE": ".png", "input.file=PIPE": ".npy", "checkpoint=PIPE": ".pt"}
    file = f"p{suffix.get(words[-1], '.png' if words[0] == 'saliency' else '')}"
    for name in (file, "m/tokenizer.json", "run.db", "net.py"):
        os.mkfifo(name)
    found = gradscope([word.replace("PIPE", file) for word in words])
    assert (found.code, found.faults()) == (2, [])


@pytest.mark.parametrize("model", LARGE_MODELS, ids=lambda model: model["_target_"])
def test_a_model_that_cannot_be_built(model):
    files = {"c.yaml": json.dumps({"model": model})}
    assert faults(Attempt("model", ("inspect", "c.yaml"), files)) == []


@pytest.mark.slow
@pytest.mark.parametrize("field", ["num_hidden_layers", "num_labels", "hidden_size", "vocab_size"])
def test_a_transformer_that_cannot_be_built(field):
    files = {"m/config.json": json.dumps({**BERT, field: 10**12})}
    assert faults(Attempt("model", ("inspect", "hf:m"), files)) == []


@pytest.mark.slow
@pytest.mark.parametrize("architectures", [True, 5, "BertModel", {"BertModel": 1}, [[]], [None]])
def test_a_config_whose_architectures_are_no_list_of_names(architectures):
    files = {"m/config.json": json.dumps({**BERT, "architectures": architectures})}
    assert faults(Attempt("model", ("inspect", "hf:m"), files)) == []
