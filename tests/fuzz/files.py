"""Files of other people's formats, damaged: weights, arrays, pictures, models' folders."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from hypothesis import strategies as st
from PIL import Image

from fuzz.attempts import Attempt
from fuzz.configs import CONFIGS
from fuzz.values import ARGUMENTS, NUMBERS, VALUES, damaged, trees
from gradscope.demo.networks import SimpleNet

_IMAGES = ("png", "jpg", "gif", "webp", "bmp", "tiff", "ppm")
_WEIGHTS = ("pt", "safetensors")
_ARRAYS = ("npy", "npz", "pt", "safetensors")
_BERT = json.loads((CONFIGS / "bert-tiny" / "config.json").read_text(encoding="utf-8"))
_BESIDE = {
    "preprocessor_config.json": {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 32, "width": 32},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "model_max_length": 32},
    "tokenizer.json": {
        "version": "1.0",
        "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
        "added_tokens": [],
    },
    "generation_config.json": {"max_length": 20},
}


@cache
def _picture(suffix: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    image, file = Image.fromarray(pixels), io.BytesIO()
    more = [image.rotate(90)] if suffix in ("gif", "webp", "tiff", "png") else []
    format = {"jpg": "jpeg"}.get(suffix, suffix)
    image.save(file, format, **({"save_all": True, "append_images": more} if more else {}))
    return file.getvalue()


@cache
def _tensors(suffix: str, weights: bool) -> bytes:
    torch.manual_seed(0)
    state = SimpleNet().state_dict() if weights else {"x": torch.ones(2, 1, 28, 28)}
    file = io.BytesIO()
    if suffix == "pt":
        torch.save(state, file)
    elif suffix == "meta":
        torch.save({name: value.to("meta") for name, value in state.items()}, file)
    elif suffix == "safetensors":
        return safetensors.torch.save(dict(state))
    elif suffix == "npz":
        np.savez(file, **{name: value.numpy() for name, value in state.items()})
    else:
        np.save(file, next(iter(state.values())).numpy())
    return file.getvalue()


@st.composite
def checkpoints(draw: st.DrawFn) -> Attempt:
    """Weights whose bytes are damaged, most often in the header."""
    file = f"saved.{draw(st.sampled_from(_WEIGHTS))}"
    content = draw(damaged(_tensors(Path(file).suffix[1:], True)))
    words = ("inspect", "demo", f"checkpoint={file}")
    return Attempt("checkpoint", words, {file: content})


@st.composite
def shapes_alone(draw: st.DrawFn) -> Attempt:
    """A file of tensors without values, whole or damaged."""
    whole = _tensors("meta", draw(st.booleans()))
    content = whole if draw(st.booleans()) else draw(damaged(whole))
    key = draw(st.sampled_from(["input.file", "target", "checkpoint", "input.x.file"]))
    words = (
        "inspect",
        "demo",
        f"{key}=saved.pt",
        *draw(st.sampled_from([(), ("--device", "meta")])),
    )
    return Attempt("checkpoint", words, {"saved.pt": content})


@st.composite
def arrays(draw: st.DrawFn) -> Attempt:
    """An input or a target whose bytes are damaged."""
    file = f"saved.{draw(st.sampled_from(_ARRAYS))}"
    content = draw(damaged(_tensors(Path(file).suffix[1:], False)))
    key = draw(st.sampled_from(["input.file", "input.file", "target", "backward.gradient"]))
    return Attempt("checkpoint", ("inspect", "demo", f"{key}={file}"), {file: content})


@st.composite
def images(draw: st.DrawFn) -> Attempt:
    """A picture whose bytes are damaged."""
    file = f"saved.{draw(st.sampled_from(_IMAGES))}"
    content = draw(damaged(_picture(Path(file).suffix[1:])))
    words = draw(
        st.sampled_from(
            [
                ("inspect", "demo", f"input.image={file}"),
                ("saliency", file, "-m", "demo", "--method", "gradient", "-o", "made.png"),
                ("features", "activations", file, "-m", "demo", "-o", "made.png"),
            ]
        )
    )
    return Attempt("image", words, {file: content})


@st.composite
def transforms(draw: st.DrawFn) -> Attempt:
    """A transform in which a value or two are something else."""
    usual = {"resize": 28, "crop": [28, 28], "mean": [0.5], "std": 0.5, "grayscale": True}
    word = f"input.transform={json.dumps(draw(trees(usual)))}".replace("\0", "")
    words = ("inspect", "demo", "input.image=saved.png", word)
    return Attempt("image", words, {"saved.png": _picture("png")})


_BUILT = st.sampled_from(
    [
        *("RandomCrop", "CenterCrop", "Resize", "Pad", "Normalize", "RandomErasing", "ToTensor"),
        *("FiveCrop", "RandomRotation", "Grayscale", "Lambda", "ToPILImage", "GaussianBlur"),
        *("v2.RandomCrop", "v2.ToDtype", "v2.Resize", "Compose", "LinearTransformation"),
    ]
)
_OF_TRANSFORMS = st.sampled_from(
    ["size", "padding", "mean", "std", "degrees", "p", "kernel_size", "dtype", "transforms"]
)


@st.composite
def built_transforms(draw: st.DrawFn) -> Attempt:
    """A transform of torchvision's with any arguments."""
    values = st.one_of(NUMBERS, VALUES, st.sampled_from([1000, [29, 29], 0.5, [0.5]]))
    tree = draw(st.dictionaries(_OF_TRANSFORMS, values, max_size=2))
    tree["_target_"] = f"torchvision.transforms.{draw(_BUILT)}"
    word = f"input.transform={json.dumps(tree)}".replace("\0", "")
    return Attempt("image", ("inspect", "demo", "input.image=saved.png", word), _saved())


def _saved() -> dict[str, bytes]:
    return {"saved.png": _picture("png")}


@st.composite
def folders(draw: st.DrawFn) -> Attempt:
    """A model's folder as transformers saves it, in whose files values are something else."""
    content = _BERT if draw(st.booleans()) else draw(trees(_BERT))
    files: dict[str, str | bytes] = {"m/config.json": json.dumps(content)}
    for name in draw(st.lists(st.sampled_from(sorted(_BESIDE)), max_size=2, unique=True)):
        tree = draw(st.one_of(trees(_BESIDE[name]), VALUES))
        files[f"m/{name}"] = json.dumps(tree)
    reads = ("input.text=a", "input.image=saved.png", "input.tokens=[[1, 2]]", "weights=DEFAULT")
    words = ("inspect", "hf:./m", draw(st.sampled_from(reads)))
    return Attempt("model", words, {**files, "saved.png": _picture("png")})


@st.composite
def environments(draw: st.DrawFn) -> Attempt:
    """Variables that gradscope or a library reads, with any values."""
    names = [
        *("COLUMNS", "LINES", "TERM", "NO_COLOR", "HOME", "XDG_CACHE_HOME", "TZ"),
        *("TMPDIR", "GRADSCOPE_ALLOW", "TORCH_HOME", "HF_HOME", "PYTHONIOENCODING", "LANG"),
        *("LC_ALL", "CI", "GITHUB_ACTIONS", "MPLBACKEND", "OMP_NUM_THREADS", "COLORTERM"),
    ]
    given = draw(st.dictionaries(st.sampled_from(names), ARGUMENTS, min_size=1, max_size=3))
    words = draw(
        st.sampled_from(
            [
                *(("inspect", "demo"), ("graph", "demo"), ("doctor",), ("rules", "GS101")),
                *(("check", "demo", "-f", "github"), ("inspect", "demo", "model.x=${env:HOME}")),
                *(("saliency", "-m", "demo", "--method", "gradient", "-o", "made.png"),),
                *(("inspect", "torchvision:resnet18", "weights=DEFAULT", "-l", "conv1"),),
            ]
        )
    )
    return Attempt("environment", words, {}, given)
