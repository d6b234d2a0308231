"""From a config's ``input`` and ``target`` to tensors: values, places of errors, freshness."""

import json
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from gradscope.errors import ConfigError, GradscopeError, ModelError, Place
from gradscope.loading.inputs import Batch, make_batches
from gradscope.loading.sources import Context
from gradscope.loading.specs import ModelKind

PYTHON = ModelKind("python", "./net.py:Net")
DETECTION = ModelKind("torchvision", "fasterrcnn_resnet50_fpn", category="detection")


@pytest.fixture(autouse=True)
def random_state_is_put_back():
    with torch.random.fork_rng():
        yield


@dataclass
class Maker:
    """make_batches with everything but the config at hand."""

    directory: Path
    model: nn.Module = field(default_factory=lambda: nn.Linear(2, 2))
    kind: ModelKind = PYTHON
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    seed: int = 0
    data: Any = None  # what a `_target_` gives: called anew each time
    notices: list[str] = field(default_factory=list)
    target: Any = None

    def starter(self, config_input, config_target=None):
        context = Context(
            model=self.model,
            kind=self.kind,
            directory=self.directory,
            place=lambda key: Place("model.yaml", key=key),
            device=torch.device(self.device),
            dtype=self.dtype,
            instantiate=lambda mapping, key: self.data(),
        )
        start, self.notices, self.target = make_batches(
            config_input, config_target, context, seed=self.seed
        )
        return start

    def batches(self, config_input, config_target=None) -> list[Batch]:
        start = self.starter(config_input, config_target)
        first, second = list(start()), list(start())
        assert str(first) == str(second), "a fresh start gives the same values"
        return first

    def __call__(self, config_input, config_target=None) -> Batch:
        (batch,) = self.batches(config_input, config_target)
        return batch

    def one(self, config_input):
        batch = self(config_input)
        assert batch.kwargs == {}
        (value,) = batch.args
        return value


@pytest.fixture
def make(tmp_path):
    return Maker(tmp_path)


def drawn(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape)


class TestShape:
    CASES: ClassVar = {
        "normal": ({"shape": [2, 3]}, lambda: drawn(2, 3)),
        "one number": ({"shape": []}, lambda: drawn(1)[0]),
        "a bare size": ({"shape": 4}, lambda: drawn(4)),
        "empty": ({"shape": [0, 4]}, lambda: torch.empty(0, 4)),
        "zeros": ({"shape": [2], "fill": "zeros"}, lambda: torch.zeros(2)),
        "ones of integers": (
            {"shape": [2], "fill": "ones", "dtype": "int64"},
            lambda: torch.ones(2).long(),
        ),
        "a number": ({"shape": [2], "fill": 0.25}, lambda: torch.full((2,), 0.25)),
        "not a number": ({"shape": [2], "fill": float("nan")}, lambda: torch.full((2,), torch.nan)),
        "counting": ({"shape": [2, 2], "fill": "arange"}, lambda: torch.arange(4.0).reshape(2, 2)),
        "another dtype": ({"shape": [2], "dtype": "float64"}, lambda: drawn(2).double()),
        "torch's own name of it": ({"shape": [2], "dtype": "torch.half"}, lambda: drawn(2).half()),
        "booleans": (
            {"shape": [2], "fill": True, "dtype": "bool"},
            lambda: torch.ones(2, dtype=torch.bool),
        ),
        "a batch": ({"shape": [1, 2], "batch": 3}, lambda: drawn(3, 2)),
    }

    @pytest.mark.parametrize(("spec", "expected"), CASES.values(), ids=CASES)
    def test_values(self, make, spec, expected):
        torch.testing.assert_close(make.one(spec), expected(), equal_nan=True)

    def test_whole_numbers_are_drawn_in_range(self, make):
        found = make.one({"shape": [500], "fill": "randint(3)"})
        assert found.dtype == torch.int64
        assert found.unique().tolist() == [0, 1, 2]
        found = make.one({"shape": [500], "fill": "randint(-1, 2)", "dtype": "float32"})
        assert found.unique().tolist() == [-1.0, 0.0, 1.0]
        assert make.one({"shape": [9], "dtype": "bool"}).dtype == torch.bool

    def test_every_dtype_starts_from_the_same_numbers(self, make):
        wide = Maker(make.directory, dtype=torch.float64).one({"shape": [5]})
        assert torch.equal(wide, make.one({"shape": [5]}).double())

    def test_complex_numbers(self, make):
        found = make.one({"shape": [5], "dtype": "complex64", "requires_grad": True})
        assert found.is_complex() and found.imag.abs().sum() > 0 and found.requires_grad

    def test_on_meta_there_are_shapes_only(self, make):
        make.device = "meta"
        for spec in ({"shape": [10**7, 10**7]}, {"values": [1.0]}):
            assert make.one(spec).device.type == "meta"
        assert make.one({"shape": [2], "fill": "randint(3)"}).dtype == torch.int64

    REFUSED: ClassVar = {
        "a text": ({"shape": "2x3"}, "input.shape", "shape"),
        "a negative size": ({"shape": [2, -1]}, "input.shape", "shape"),
        "an unknown dtype": ({"shape": [2], "dtype": "flot32"}, "input.dtype", "not a dtype"),
        "no fill for integers": ({"shape": [2], "dtype": "int64"}, "input.dtype", "draws no"),
        "an unknown fill": ({"shape": [2], "fill": "randm"}, "input.fill", "unknown fill"),
        "nothing to draw": ({"shape": [2], "fill": "randint(0)"}, "input.fill", "leaves no number"),
        "half of an integer": (
            {"shape": [2], "fill": 0.5, "dtype": "int64"},
            "input.fill",
            "not an integer",
        ),
        "too large": ({"shape": [10**7, 10**7]}, "input.shape", "cannot be made"),
        "gradients of integers": (
            {"shape": [2], "fill": "randint(3)", "requires_grad": True},
            "input.requires_grad",
            "cannot require a gradient",
        ),
        "a batch of one number": ({"shape": [], "batch": 2}, "input.batch", "has no batch"),
        "an empty batch": ({"shape": [2], "batch": 0}, "input.batch", "batch"),
        "two kinds": ({"shape": [2], "values": [1]}, "input.values", "one kind"),
        "a word beside it": (
            {"shape": [2], "transform": {}},
            "input.transform",
            "does not go with",
        ),
    }

    @pytest.mark.parametrize(("spec", "key", "message"), REFUSED.values(), ids=REFUSED)
    def test_refused(self, make, spec, key, message):
        with pytest.raises(ConfigError, match=message) as caught:
            make(spec)
        assert caught.value.problems[0].place.key == key


class TestValues:
    CASES: ClassVar = {
        "integers": ([[1, 2], [3, 4]], torch.tensor([[1, 2], [3, 4]])),
        "fractions": ([1, 2.5], torch.tensor([1.0, 2.5])),
        "booleans": ([True, False], torch.tensor([True, False])),
        "one": (3, torch.tensor(3)),
        "none": ([], torch.tensor([])),
    }

    @pytest.mark.parametrize(("values", "expected"), CASES.values(), ids=CASES)
    def test_values(self, make, values, expected):
        torch.testing.assert_close(make.one({"values": values}), expected)

    def test_doubles_are_rounded_once(self, make):
        make.dtype = torch.float64
        assert make.one({"values": [0.1]}).item() == 0.1

    def test_modifiers(self, make):
        found = make.one({"values": [1, 2], "dtype": "float32", "requires_grad": True, "batch": 3})
        assert found.tolist() == [1.0, 2.0, 1.0]
        assert found.is_leaf and found.requires_grad

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([[1], [2, 3]], "make no tensor"),
            (["a"], "is not a number"),
            ([2**70], "make no tensor"),
        ],
    )
    def test_refused(self, make, values, message):
        with pytest.raises(ConfigError, match=message) as caught:
            make({"values": values})
        assert caught.value.problems[0].place.key == "input.values"


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
TENSOR = torch.from_numpy(ARRAY)


def write(path: Path) -> Path:
    """One array in each kind of file."""
    if path.suffix == ".npy":
        np.save(path, ARRAY)
    elif path.suffix == ".npz":
        np.savez(path, x=ARRAY)
    elif path.suffix == ".safetensors":
        save_file({"x": TENSOR}, path)
    else:
        torch.save(TENSOR, path)
    return path


class Malicious:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


class TestFile:
    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".pth", ".safetensors"])
    def test_one_array_is_a_tensor(self, make, tmp_path, suffix):
        write(tmp_path / f"x{suffix}")
        found = make.one({"file": f"x{suffix}", "requires_grad": True})
        torch.testing.assert_close(found.detach(), TENSOR)
        assert found.is_leaf and found.requires_grad

    def test_several_are_keyword_arguments(self, make, tmp_path):
        np.savez(tmp_path / "a.npz", x=ARRAY, y=ARRAY[0])
        save_file({"x": TENSOR, "y": TENSOR[0].clone()}, tmp_path / "a.safetensors")
        torch.save({"x": TENSOR, "y": TENSOR[0]}, tmp_path / "a.pt")
        for name in ("a.npz", "a.safetensors", "a.pt"):
            batch = make({"file": name})
            assert batch.args == () and set(batch.kwargs) == {"x", "y"}
            assert torch.equal(batch.kwargs["y"], TENSOR[0])

    def test_a_list_is_positional(self, make, tmp_path):
        torch.save((TENSOR, TENSOR + 1), tmp_path / "a.pt")
        assert len(make({"file": "a.pt"}).args) == 2

    def test_odd_arrays(self, make, tmp_path):
        np.save(tmp_path / "a.npy", np.asfortranarray(ARRAY.astype(">f8")))
        np.save(tmp_path / "b.npy", np.float32(3))
        assert torch.equal(make.one({"file": "a.npy"}), TENSOR)
        assert make.one({"file": "b.npy"}).shape == ()

    def test_a_parameter_becomes_a_leaf_of_its_own(self, make, tmp_path):
        torch.save(nn.Parameter(TENSOR), tmp_path / "a.pt")
        found = make.one({"file": "a.pt"})
        assert type(found) is torch.Tensor and not found.requires_grad

    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
    @pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
    def test_damaged(self, make, tmp_path, suffix, damage):
        path = write(tmp_path / f"x{suffix}")
        whole = path.read_bytes()
        cut = {"truncated": whole[: len(whole) * 2 // 3], "text": b"hello", "empty": b""}
        path.write_bytes(cut[damage])
        with pytest.raises(ConfigError, match=r"cannot be read|is empty|not loaded") as caught:
            make({"file": path.name})
        assert caught.value.problems[0].place.key == "input.file"

    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt"])
    def test_code_is_not_run(self, make, tmp_path, suffix, monkeypatch):
        monkeypatch.chdir(tmp_path)
        path = Path(f"x{suffix}")
        if suffix == ".pt":
            torch.save([Malicious()], path)
        else:
            array = np.array([Malicious()], dtype=object)
            (np.save if suffix == ".npy" else np.savez)(path, array)
        with pytest.raises(ConfigError, match="could run code"):
            make({"file": path.name})
        assert not Path("executed").exists()

    def test_missing(self, make, tmp_path):
        write(tmp_path / "input.npy")
        with pytest.raises(ConfigError, match="there is no file") as caught:
            make({"file": "inputs.npy"})
        assert caught.value.problems[0].help == "did you mean `input.npy`?"

    def test_another_kind(self, make, tmp_path):
        (tmp_path / "x.csv").write_text("1,2")
        with pytest.raises(ConfigError, match=r"is none of \.npy"):
            make({"file": "x.csv"})

    @pytest.mark.parametrize("content", [{}, [], {"x": 3}, "text", {"a": {"b": TENSOR}}])
    def test_what_holds_no_tensors(self, make, tmp_path, content):
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(ConfigError, match="not tensors"):
            make({"file": "x.pt"})

    def test_text_arrays(self, make, tmp_path):
        np.save(tmp_path / "x.npy", np.array(["a", "b"]))
        with pytest.raises(ConfigError, match="cannot be read"):
            make({"file": "x.npy"})


@pytest.fixture
def pictures(tmp_path):
    """Two pictures of 8 × 6 pixels and a larger one."""
    for name, size, color in (("a", (8, 6), 51), ("b", (8, 6), 102), ("big", (20, 12), 255)):
        Image.new("RGB", size, (color, 0, color)).save(tmp_path / f"{name}.png")
    return tmp_path


class Weights:
    """A torchvision weights entry, as far as it matters."""

    meta: ClassVar = {}

    def __str__(self):
        return "Net_Weights.V1"

    def transforms(self):
        return lambda image: torch.full((3, 4, 4), float(image.getpixel((0, 0))[0]))


class TestImage:
    def test_pixels(self, make, pictures):
        found = make.one({"image": "a.png"})
        assert found.shape == (1, 3, 6, 8)
        torch.testing.assert_close(found[0, :, 0, 0], torch.tensor([0.2, 0.0, 0.2]))
        assert make.notices == ["input: a.png through pixel / 255"]

    def test_a_pattern_is_a_batch(self, make, pictures):
        found = make.one({"image": "?.png", "batch": 3})
        assert found[:, 0, 0, 0].tolist() == pytest.approx([0.2, 0.4, 0.2])

    def test_what_the_first_convolution_takes(self, make, pictures):
        make.model = nn.Sequential(nn.Conv2d(1, 2, 3))
        assert make.one({"image": "a.png"}).shape == (1, 1, 6, 8)
        assert make.one({"image": "a.png", "transform": {"invert": True}}).shape == (1, 1, 6, 8)
        Image.new("L", (8, 6), 51).save(pictures / "grey.png")
        make.model = nn.Sequential(nn.Conv2d(3, 2, 3))
        assert make.one({"image": "grey.png"}).shape == (1, 3, 6, 8)
        make.model = nn.Linear(2, 2)
        assert make.one({"image": "grey.png"}).shape == (1, 1, 6, 8)

    @pytest.mark.parametrize("known", ["weights", "default_weights"])
    def test_the_weights_own_transform(self, make, pictures, known):
        make.kind = ModelKind("torchvision", "net", **{known: Weights()})
        found = make.one({"image": ["a.png", "big.png"]})
        assert found[:, 0, 0, 0].tolist() == [51.0, 255.0]
        assert make.notices == ["input: 2 pictures through the transform of Net_Weights.V1"]
        make.model = nn.Conv2d(1, 1, 1)
        assert make.one({"image": "a.png"}).shape == (1, 1, 4, 4)

    def test_the_configs_transform_wins(self, make, pictures):
        make.kind = ModelKind("torchvision", "net", weights=Weights())
        found = make.one({"image": "a.png", "transform": {"resize": 3}})
        assert found.shape == (1, 3, 3, 4)
        assert make.notices == []

    def test_real_presets(self, make, pictures):
        from torchvision.models import ResNet18_Weights

        entry = ResNet18_Weights.IMAGENET1K_V1
        make.kind = ModelKind("torchvision", "resnet18", default_weights=entry)
        expected = entry.transforms()(Image.open(pictures / "big.png"))
        torch.testing.assert_close(make.one({"image": "big.png"})[0], expected)

    TRANSFORMS: ClassVar = {
        "nothing": ({}, (3, 6, 8), 0.2),
        "the shorter side": ({"resize": 12}, (3, 12, 16), 0.2),
        "height and width": ({"resize": [5, 9]}, (3, 5, 9), 0.2),
        "the middle": ({"crop": 4}, (3, 4, 4), 0.2),
        "beyond the edge": ({"crop": [10, 8]}, (3, 10, 8), 0.0),
        "negative": ({"invert": True}, (3, 6, 8), 0.8),
        "normalised": ({"mean": 0.1, "std": [0.5, 1.0, 1.0]}, (3, 6, 8), 0.2),
        "grey": ({"grayscale": True}, (1, 6, 8), 21 / 255),
    }

    @pytest.mark.parametrize(("transform", "shape", "first"), TRANSFORMS.values(), ids=TRANSFORMS)
    def test_transforms(self, make, pictures, transform, shape, first):
        found = make.one({"image": "a.png", "transform": transform})[0]
        assert found.shape == shape
        assert found[0, 0, 0].item() == pytest.approx(first, abs=1e-6)

    def test_a_transform_of_torchvisions(self, make, pictures):
        from torchvision import transforms

        make.data = lambda: transforms.Compose([transforms.Resize((4, 5)), transforms.ToTensor()])
        spec = {"_target_": "torchvision.transforms.Compose"}
        assert make.one({"image": "a.png", "transform": spec}).shape == (1, 3, 4, 5)
        make.data = lambda: transforms.Resize((4, 5))
        with pytest.raises(ConfigError, match="gave Image, not a tensor"):
            make.one({"image": "a.png", "transform": spec})

    REFUSED: ClassVar = {
        "of different sizes": ({"image": "*.png"}, "input.image", "different sizes"),
        "without a match": ({"image": "*.jpg"}, "input.image", "no file matches"),
        "missing": ({"image": "c.png"}, "input.image", "there is no picture"),
        "a bad size": (
            {"image": "a.png", "transform": {"resize": 0}},
            "input.transform.resize",
            "not a size",
        ),
        "a divisor of zero": (
            {"image": "a.png", "transform": {"std": 0}},
            "input.transform.std",
            "`std` is 0",
        ),
        "means for other channels": (
            {"image": "a.png", "transform": {"mean": [0.5, 0.5]}},
            "input.transform.mean",
            "2 numbers for a picture of 3 channels",
        ),
        "an unknown transform": (
            {"image": "a.png", "transform": {"rezise": 3}},
            "input.transform.rezise",
            "unknown",
        ),
    }

    @pytest.mark.parametrize(("spec", "key", "message"), REFUSED.values(), ids=REFUSED)
    def test_refused(self, make, pictures, spec, key, message):
        with pytest.raises(ConfigError, match=message) as caught:
            make(spec)
        assert caught.value.problems[0].place.key == key

    def test_inside_a_list_a_picture_has_no_batch(self, make, pictures):
        images, single = make([[{"image": "a.png"}, {"image": "big.png"}], {"image": "a.png"}]).args
        assert [tuple(image.shape) for image in images] == [(3, 6, 8), (3, 12, 20)]
        assert single.shape == (1, 3, 6, 8)

    def test_detection_models_take_a_list(self, make, pictures):
        make.kind = DETECTION
        (images,) = make({"image": "*.png"}).args
        assert [len(image.shape) for image in images] == [3, 3, 3]

    def test_a_photograph(self, make, tmp_path):
        from sklearn.datasets import load_sample_image

        pixels = load_sample_image("flower.jpg")
        Image.fromarray(pixels).save(tmp_path / "flower.png")
        found = make.one({"image": "flower.png"})
        assert torch.equal(found[0], torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255)


class TestTokens:
    def test_for_any_model(self, make):
        assert make.one({"tokens": [[1, 2], [3, 4]]}).tolist() == [[1, 2], [3, 4]]
        assert make.one({"tokens": [1, 2]}).tolist() == [[1, 2]]

    @pytest.fixture
    def bert(self, make, tmp_path):
        transformers = pytest.importorskip("transformers")
        config = transformers.BertConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            vocab_size=12,
            pad_token_id=3,
        )
        words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "hello", "world", "again"]
        (tmp_path / "vocab.txt").write_text("\n".join(words))
        config.save_pretrained(tmp_path)
        make.model = transformers.BertModel(config)
        make.kind = ModelKind("hf", "tiny", hf_config=config, tokenizer=str(tmp_path))
        return make

    @pytest.mark.slow
    def test_rows_are_padded_for_transformers(self, bert):
        batch = bert({"tokens": [[5, 6, 7], [5]]})
        assert batch.args == ()
        assert batch.kwargs["input_ids"].tolist() == [[5, 6, 7], [5, 3, 3]]
        assert batch.kwargs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
        assert bert.notices == ["input: rows padded to 3 tokens with id 3"]

    def test_text(self, bert):
        batch = bert({"text": ["hello world", "again"]})
        assert batch.kwargs["input_ids"].tolist() == [[1, 5, 6, 2], [1, 7, 2, 3]]
        assert batch.kwargs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
        assert bert.model(**batch.kwargs).last_hidden_state.shape == (2, 4, 8)

    def test_text_of_unknown_words(self, bert):
        bert({"text": "hello nobody"})
        assert not any("knows no word" in note for note in bert.notices)
        bert({"text": ["nobody", "else"]})
        assert "input: the tokenizer knows no word of the text" in bert.notices

    def test_as_one_of_several_arguments(self, bert):
        batch = bert({"input_ids": {"text": "hello"}, "attention_mask": {"tokens": [[1, 1, 1]]}})
        assert batch.kwargs["input_ids"].tolist() == [[1, 5, 2]]

    def test_without_a_tokenizer(self, bert, tmp_path):
        empty = tmp_path / "empty"
        empty.mkdir()
        bert.kind = ModelKind("hf", "tiny", hf_config=bert.kind.hf_config, tokenizer=str(empty))
        # Of an empty folder some versions of transformers make one without words.
        refused = "there is no tokenizer for tiny|there is no vocabulary"
        with pytest.raises(ConfigError, match=refused) as caught:
            bert({"text": "hello"})
        assert "tokens" in caught.value.problems[0].help
        bert.kind = PYTHON
        with pytest.raises(ConfigError, match="has no tokenizer"):
            bert({"text": "hello"})

    @pytest.mark.parametrize("files", [{}, {"tokenizer_config.json": "{}"}, {"vocab.txt": ""}])
    def test_a_tokenizer_without_words(self, bert, tmp_path, files):
        """transformers makes one of a config alone, to which every word is unknown."""
        folder = tmp_path / "bare"
        bert.kind.hf_config.save_pretrained(folder)
        for name, text in files.items():
            (folder / name).write_text(text)
        bert.kind = ModelKind("hf", "tiny", hf_config=bert.kind.hf_config, tokenizer=str(folder))
        with pytest.raises(ConfigError, match="bare has no tokenizer") as caught:
            bert({"text": "hello"})
        (problem,) = caught.value.problems
        assert "`tokenizer.save_pretrained(" in problem.help
        assert "`input: {tokens: [[1, 2, 3]]}`" in problem.help

    @pytest.mark.parametrize(
        ("settings", "note"),
        [
            ("{}", "by the model's type: the folder names no tokenizer"),
            ('{"tokenizer_class": "BertTokenizer"}', None),
            ('{"tokenizer_class": "BertTokenizerFast"}', None),
            ('{"tokenizer_class": "Nobodys"}', "as transformers has no Nobodys"),
        ],
    )
    def test_a_tokenizer_that_the_folder_does_not_name(self, bert, tmp_path, settings, note):
        (tmp_path / "tokenizer_config.json").write_text(settings)
        model = {"type": "WordLevel", "vocab": {"hello": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
        whole = {"version": "1.0", "model": model, "added_tokens": []}
        (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
        bert({"text": "hello"})
        said = [line.partition(", ")[2] for line in bert.notices]
        assert said == ([note] if note else [])

    @pytest.mark.parametrize("tokens", ["hello", [["a"]], [[-1]], [], [[1.5]]])
    def test_refused(self, make, tokens):
        with pytest.raises(ConfigError) as caught:
            make({"tokens": tokens})
        assert caught.value.problems[0].place.key == "input.tokens"

    def test_a_decoder_gets_its_start(self, make):
        transformers = pytest.importorskip("transformers")
        config = transformers.T5Config(
            d_model=8,
            d_ff=8,
            d_kv=4,
            num_layers=1,
            num_heads=2,
            vocab_size=9,
            decoder_start_token_id=2,
        )
        make.model = transformers.T5ForConditionalGeneration(config)
        make.kind = ModelKind("hf", "t5", hf_config=config)
        batch = make({"tokens": [[1, 2], [3, 4]]})
        assert batch.kwargs["decoder_input_ids"].tolist() == [[2], [2]]
        assert make.model(**batch.kwargs).logits.shape == (2, 1, 9)


SOURCE = {"values": [1.0]}


class TestGrammar:
    def test_a_list_is_positional(self, make):
        batch = make([SOURCE, {"values": [2.0]}])
        assert [arg.item() for arg in batch.args] == [1.0, 2.0] and batch.kwargs == {}

    def test_a_mapping_of_sources_is_keyword_arguments(self, make):
        batch = make({"x": SOURCE, "values": {"shape": [2]}})
        assert batch.args == () and set(batch.kwargs) == {"x", "values"}

    def test_plain_values_are_marked(self, make):
        batch = make({"x": SOURCE, "use_cache": {"value": False}, "names": {"value": ["a"]}})
        assert batch.kwargs["use_cache"] is False and batch.kwargs["names"] == ["a"]
        with pytest.raises(ConfigError) as caught:
            make({"x": SOURCE, "use_cache": False})
        assert caught.value.problems[0].place.key == "input.use_cache"

    def test_sources_nest(self, make):
        batch = make([[SOURCE, SOURCE], [{"boxes": SOURCE, "deep": {"more": [SOURCE]}}]])
        images, targets = batch.args
        assert len(images) == 2 and torch.is_tensor(targets[0]["deep"]["more"][0])

    @pytest.mark.parametrize("nothing", [[], {}])
    def test_no_input_at_all(self, make, nothing):
        batch = make(nothing)
        assert batch.args == () and batch.kwargs == {}

    @pytest.mark.parametrize(
        "config", ["photo.png", 3, [1.0, 2.0], {"shpe": [2]}, {"x": {}}, [None]]
    )
    def test_what_is_no_source(self, make, config):
        with pytest.raises(ConfigError) as caught:
            make(config)
        assert caught.value.problems[0].place.key.startswith("input")

    def test_every_start_gives_fresh_leaves(self, make):
        start = make.starter({"values": [1.0], "requires_grad": True})
        first = next(start()).args[0]
        first.sum().backward()
        first.detach().zero_()
        second = next(start()).args[0]
        assert second.item() == 1.0 and second.grad is None


BUILD = {"_target_": "./data.py:batches"}
X, Y = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 0])
Named = namedtuple("Named", ["x", "y"])


class TestDataFunction:
    ONE: ClassVar = {
        # what came: (data, args, kwargs, target)
        "a tensor": (X, (X,), {}, None),
        "an array": (X.numpy(), (X,), {}, None),
        "inputs and target": ((X, Y), (X,), {}, Y),
        "ids as numbers": ((X, [1, 0]), (X,), {}, Y),
        "several inputs": (((X, Y), None), (X, Y), {}, None),
        "keyword inputs": (({"a": X}, Y), (), {"a": X}, Y),
        "a mapping": ({"a": X, "b": Y}, (), {"a": X, "b": Y}, None),
        "a named mapping": ({"inputs": X, "target": Y}, (X,), {}, Y),
        "a named mapping of inputs": ({"inputs": (X, X)}, (X, X), {}, None),
        "inputs among others": ({"inputs": X, "mask": Y}, (), {"inputs": X, "mask": Y}, None),
        "nested": (([[X, X]], None), ([X, X],), {}, None),
        "text": (({"a": "hello", "n": 3}, None), (), {"a": "hello", "n": 3}, None),
    }

    @pytest.mark.parametrize(("data", "args", "kwargs", "target"), ONE.values(), ids=ONE)
    def test_one_batch(self, make, data, args, kwargs, target):
        make.data = lambda: data
        batch = make(BUILD)
        assert str(batch.args) == str(args)
        assert str(batch.kwargs) == str(kwargs)
        assert str(batch.target) == str(target)

    MANY: ClassVar = {
        "a list": lambda: [X, (X + 1, Y), {"a": X}],
        "a generator": lambda: (part for part in [X, (X + 1, Y), {"a": X}]),
    }

    @pytest.mark.parametrize("data", MANY.values(), ids=MANY)
    def test_an_iterable_of_batches(self, make, data):
        make.data = data
        first, second, third = make.batches(BUILD)
        assert first.target is None and torch.equal(second.target, Y)
        assert torch.equal(third.kwargs["a"], X)

    def test_a_loader_that_shuffles_is_the_same_in_every_start(self, make):
        make.data = lambda: DataLoader(TensorDataset(X, Y), batch_size=1, shuffle=True)
        batches = make.batches(BUILD)
        assert [batch.args[0].shape for batch in batches] == [(1, 3), (1, 3)]
        assert {batch.target.item() for batch in batches} == {0, 1}

    def test_what_the_model_draws_does_not_change_the_data(self, make):
        make.data = lambda: (torch.randn(2) for _ in range(3))
        quiet = make.batches(BUILD)
        start = make.starter(BUILD)
        for batch, expected in zip(start(), quiet, strict=True):
            torch.rand(7)
            assert torch.equal(batch.args[0], expected.args[0])

    def test_placed_in_the_runs_dtype(self, make):
        make.dtype = torch.float64
        leaf = torch.ones(2, requires_grad=True)
        make.data = lambda: ({"a": leaf, "b": leaf, "ids": Y}, torch.ones(2))
        batch = make(BUILD)
        a = batch.kwargs["a"]
        assert a.dtype == torch.float64 and a.is_leaf and a.requires_grad and a is not leaf
        assert batch.kwargs["b"] is a, "one tensor given twice stays one"
        assert batch.kwargs["ids"].dtype == torch.int64
        assert batch.target.dtype == torch.float64

    def test_containers_are_kept(self, make):
        packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
        make.data = lambda: ((packed, Named(X, Y)), None)
        found, named = make(BUILD).args
        assert isinstance(found, PackedSequence) and isinstance(named, Named)
        make.data = lambda: [packed]
        assert isinstance(make.one(BUILD), PackedSequence)

    def test_a_detection_batch(self, make):
        make.kind = DETECTION
        targets = [{"boxes": torch.ones(1, 4)}]
        make.data = lambda: [([X], targets)]
        batch = make(BUILD)
        assert str(batch.args) == str(([X], targets)) and batch.target is None

    REFUSED: ClassVar = {
        "None": (lambda: None, "gave None"),
        "a text": (lambda: "data", "gave 'data'"),
        "nothing": (lambda: iter(()), "gave no batch"),
        "single samples": (lambda: TensorDataset(X), "single samples"),
        "three parts": (lambda: [(X, X, Y)], "a batch of 3 parts"),
    }

    @pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
    def test_refused(self, make, data, message):
        make.data = data
        with pytest.raises(ConfigError, match=message) as caught:
            make.batches(BUILD)
        assert caught.value.problems[0].place.key == "input"
        assert caught.value.problems[0].help

    def test_what_the_users_code_raises(self, make):
        def broken():
            yield X
            raise ZeroDivisionError("mine")

        make.data = broken
        with pytest.raises(ModelError, match="ZeroDivisionError: mine") as caught:
            make.batches(BUILD)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_as_one_of_several_sources(self, make):
        make.data = lambda: X.numpy()
        assert torch.equal(make([BUILD, SOURCE]).args[0], X)


class TestTarget:
    CASES: ClassVar = {
        "class ids": ([1, 0], Y),
        "one for all": (3, torch.tensor(3)),
        "values": ([[0.5], [1.0]], torch.tensor([[0.5], [1.0]])),
        "a source": ({"values": [1, 0]}, Y),
        "random": ("random", "random"),
        "none": (None, None),
    }

    @pytest.mark.parametrize(("target", "expected"), CASES.values(), ids=CASES)
    def test_forms(self, make, target, expected):
        make(SOURCE, target)
        assert str(make.target) == str(expected)

    def test_a_file(self, make, tmp_path):
        np.save(tmp_path / "y.npy", np.array([1, 0]))
        make(SOURCE, "y.npy")
        assert torch.equal(make.target, Y)
        np.savez(tmp_path / "y.npz", a=ARRAY, b=ARRAY)
        with pytest.raises(ConfigError, match="holds 2 arrays"):
            make(SOURCE, "y.npz")

    def test_a_missing_file(self, make):
        with pytest.raises(ConfigError, match="there is no file") as caught:
            make(SOURCE, "labels.npy")
        assert caught.value.problems[0].place.key == "target"

    def test_drawn_after_the_input(self, make):
        batch = make({"shape": [2]}, {"shape": [3], "fill": "rand"})
        torch.manual_seed(0)
        assert torch.equal(batch.args[0], torch.randn(2))
        expected = torch.rand(3)
        assert torch.equal(batch.target, expected) and torch.equal(make.target, expected)

    def test_beside_a_data_function(self, make):
        make.data = lambda: [X, (X, Y)]
        first, second = make.batches(BUILD, [0, 0])
        assert first.target is None and torch.equal(second.target, Y)
        assert make.target.tolist() == [0, 0]

    def test_numbers_in_a_mapping_are_values(self, make):
        target = [{"boxes": [[0.0, 1.0]], "labels": {"values": [1]}}, {}]
        make(SOURCE, target)
        first, second = make.target
        assert first["boxes"].shape == (1, 2) and first["labels"].tolist() == [1] and second == {}

    def test_detection_models_take_theirs_as_an_argument(self, make):
        make.kind = DETECTION
        target = [{"boxes": {"values": [[0.0, 0.0, 2.0, 2.0]]}, "labels": {"values": [1]}}]
        images, targets = make([[{"shape": [3, 8, 8]}]], target).args
        assert len(images) == 1 and targets[0]["labels"].tolist() == [1]
        assert make.target is None

    @pytest.mark.parametrize(
        "target", [["cat"], {"shpe": "x"}, [[1], [2, 3]], [None], "labels.txt"]
    )
    def test_refused(self, make, target):
        with pytest.raises(GradscopeError) as caught:
            make(SOURCE, target)
        assert caught.value.problems[0].place.key.startswith("target")


NAMES = (
    *("shape", "image", "file", "text", "tokens", "values", "value", "fill", "dtype"),
    *("requires_grad", "batch", "transform"),
)


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_whose_name_is_that_of_a_key(name, tmp_path):
    """By the name alone, and beside another."""
    make = Maker(tmp_path)
    alone = make({name: {"values": [1.0]}})
    assert (alone.args, alone.kwargs) == ((), {name: torch.tensor([1.0])})
    both = make({name: {"values": [1.0]}, "x": {"values": [2.0]}})
    assert both.kwargs == {name: torch.tensor([1.0]), "x": torch.tensor([2.0])}
