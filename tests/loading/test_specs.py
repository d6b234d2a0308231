"""Models by spec: what each library builds, what it refuses, and what it never downloads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gradscope.errors import ConfigError, ModelError, Place, TargetError
from gradscope.loading import imports, specs
from gradscope.loading.targets import Targets


def place(key: str, *, of_key: bool = False) -> Place:
    return Place("model.yaml", 1, key=key)


@pytest.fixture
def targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Targets(tmp_path, (), place)


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """No file is fetched, whatever this machine could reach, and no cache is found."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no network here")

    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))


KINDS = {
    "classification": ("resnet18", "classification"),
    "segmentation": ("lraspp_mobilenet_v3_large", "segmentation"),
    "detection": ("ssdlite320_mobilenet_v3_large", "detection"),
    "video": ("r3d_18", "video"),
    "optical flow": ("raft_small", "optical_flow"),
    "quantization": ("quantized_resnet18", "quantization"),
    "one that warns of its initialisation": ("googlenet", "classification"),
}


DOTTED = {
    "a builder": {"_target_": "torchvision.models.resnet18", "num_classes": 10},
    "get_model": {"_target_": "torchvision.models.get_model", "name": "resnet18"},
    "get_model by position": {
        "_target_": "torchvision.models.get_model",
        "_args_": ["resnet18"],
    },
}


class TestTorchvision:
    @pytest.mark.parametrize(("name", "category"), KINDS.values(), ids=KINDS)
    def test_random_weights_without_a_download(self, targets, name, category):
        built = specs.build(f"torchvision:{name}", targets, device=torch.device("meta"))
        assert isinstance(built.model, nn.Module)
        assert built.kind.library == "torchvision"
        assert (built.kind.name, built.kind.category) == (name, category)
        assert built.kind.weights is None
        assert built.weights is None

    @pytest.mark.slow
    def test_a_detector_on_the_cpu_downloads_no_backbone(self, targets):
        built = specs.build("torchvision:ssdlite320_mobilenet_v3_large", targets)
        assert next(built.model.parameters()).device.type == "cpu"

    def test_default_weights_are_known_though_not_loaded(self, targets):
        kind = specs.build("torchvision:resnet18", targets).kind
        assert kind.weights is None
        assert len(kind.default_weights.meta["categories"]) == 1000

    def test_arguments(self, targets):
        asked = {"_target_": "torchvision:resnet18", "num_classes": 10}
        assert specs.build(asked, targets).model.fc.out_features == 10

    @pytest.mark.parametrize("asked", DOTTED.values(), ids=DOTTED)
    def test_a_dotted_name_is_the_same_model(self, targets, asked):
        kind = specs.build(asked, targets).kind
        assert (kind.library, kind.name) == ("torchvision", "resnet18")

    def test_an_unknown_name(self, targets):
        with pytest.raises(TargetError) as caught:
            specs.build("torchvision:resnet81", targets)
        assert caught.value.problems[0].help == "did you mean `resnet18`?"
        assert caught.value.problems[0].place == place("model")

    def test_unknown_weights(self, targets):
        with pytest.raises(ConfigError) as caught:
            specs.build("torchvision:resnet50", targets, weights="IMAGENET1K_V3")
        assert "IMAGENET1K_V" in str(caught.value.problems[0].help)

    @pytest.mark.parametrize("weights", ["DEFAULT", "IMAGENET1K_V1", "ResNet18_Weights.DEFAULT"])
    def test_weights_that_cannot_be_fetched(self, targets, weights, tmp_path):
        with pytest.raises(ConfigError) as caught:
            specs.build("torchvision:resnet18", targets, weights=weights)
        problem = caught.value.problems[0]
        assert "no network here" in problem.message
        assert "resnet18-f37072fd.pth" in str(problem.help)
        assert str(tmp_path / "hub" / "checkpoints") in str(problem.help)
        assert problem.place == place("weights")

    def test_a_backbone_that_cannot_be_fetched(self, targets):
        asked = {
            "_target_": "torchvision:ssdlite320_mobilenet_v3_large",
            "weights_backbone": "IMAGENET1K_V1",
        }
        with pytest.raises(ConfigError, match="MobileNet_V3_Large_Weights"):
            specs.build(asked, targets)

    def test_weights_from_the_cache(self, targets, tmp_path):
        import torchvision

        model = torchvision.models.squeezenet1_1()
        path = tmp_path / "hub" / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
        path.parent.mkdir(parents=True)
        torch.save(model.state_dict(), path)
        built = specs.build("torchvision:squeezenet1_1", targets, weights="DEFAULT")
        assert torch.equal(built.model.features[0].weight, model.features[0].weight)
        assert built.weights == "IMAGENET1K_V1"
        assert built.kind.weights.name == "IMAGENET1K_V1"
        assert "SqueezeNet1_1_Weights.IMAGENET1K_V1" in built.notices[0]

    def test_a_planted_file_in_the_cache_does_not_run(self, targets, tmp_path):
        path = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
        path.parent.mkdir(parents=True)
        torch.save({"x": Planted(tmp_path / "ran")}, path)
        with pytest.raises(ConfigError, match="is not loaded"):
            specs.build("torchvision:resnet18", targets, weights="DEFAULT")
        assert not (tmp_path / "ran").exists()

    def test_weights_on_meta_are_not_fetched(self, targets):
        meta = torch.device("meta")
        built = specs.build("torchvision:resnet18", targets, weights="DEFAULT", device=meta)
        assert next(built.model.parameters()).is_meta
        assert "not loaded" in built.notices[0]

    def test_a_builder_that_raises(self, targets):
        asked = {"_target_": "torchvision:resnet18", "num_classes": "ten"}
        with pytest.raises(ModelError) as caught:
            specs.build(asked, targets)
        assert "construction of the model failed" in caught.value.problems[0].message

    def test_built_for_another_torch(self, targets, monkeypatch):
        def fail(name: str) -> None:
            raise RuntimeError("operator torchvision::nms does not exist")

        monkeypatch.setattr(imports.importlib, "import_module", _failing("torchvision", fail))
        with pytest.raises(ConfigError) as caught:
            specs.build("torchvision:resnet18", targets)
        text = caught.value.render()
        assert torch.__version__.partition("+")[0] in text
        assert "torchvision " in text
        assert "pip install --force-reinstall torch torchvision" in text


class Planted:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def _failing(prefix: str, fail):
    original = imports.importlib.import_module

    def imported(name: str, *args: object):
        return fail(name) if name.startswith(prefix) else original(name, *args)

    return imported


class TestTimm:
    @pytest.fixture(autouse=True)
    def timm(self):
        return pytest.importorskip("timm")

    def test_a_model(self, targets):
        asked = {"_target_": "timm:resnet10t", "num_classes": 3}
        built = specs.build(asked, targets)
        assert built.model.num_classes == 3
        assert built.kind.library == "timm"
        assert built.kind.data_config["input_size"][0] == 3
        assert built.kind.pretrained_cfg["architecture"] == "resnet10t"

    def test_its_builder_by_the_dotted_name(self, targets):
        asked = {"_target_": "timm.create_model", "model_name": "resnet10t"}
        assert specs.build(asked, targets).kind.library == "timm"

    def test_an_unknown_name(self, targets):
        with pytest.raises(TargetError) as caught:
            specs.build("timm:resnet81", targets)
        assert caught.value.problems[0].help == "did you mean `resnet18`?"

    @pytest.mark.parametrize("weights", [None, "a1_in2k"])
    def test_unknown_weights(self, targets, weights):
        name = "timm:resnet18" if weights else "timm:resnet18.a1_in2k"
        with pytest.raises(ConfigError) as caught:
            specs.build(name, targets, weights=weights)
        assert caught.value.problems[0].help == "did you mean `a1_in1k`?"

    def test_weights_that_cannot_be_fetched(self, targets, tmp_path, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        with pytest.raises(ConfigError) as caught:
            specs.build("timm:resnet18", targets, weights="a1_in1k")
        assert "hf download timm/resnet18.a1_in1k" in str(caught.value.problems[0].help)

    def test_an_unknown_argument(self, targets):
        with pytest.raises(ConfigError) as caught:
            specs.build({"_target_": "timm:resnet10t", "num_clases": 3}, targets)
        assert caught.value.problems[0].help == "did you mean `num_classes`?"

    @pytest.mark.parametrize("name", ["hf-hub:timm/resnet18", "local-dir:./here"])
    def test_models_that_bring_their_own_config(self, targets, name):
        with pytest.raises(TargetError, match="names files to load"):
            specs.build(f"timm:{name}", targets)

    @pytest.mark.parametrize("argument", ["checkpoint_path", "pretrained_cfg"])
    def test_arguments_that_load_files(self, targets, argument):
        with pytest.raises(ConfigError, match=argument):
            specs.build({"_target_": "timm:resnet10t", argument: "x"}, targets)

    def test_not_installed(self, targets, monkeypatch):
        def fail(name: str) -> None:
            raise ModuleNotFoundError("No module named 'timm'", name="timm")

        monkeypatch.setattr(imports.importlib, "import_module", _failing("timm", fail))
        with pytest.raises(ConfigError) as caught:
            specs.build("timm:resnet18", targets)
        assert caught.value.problems[0].help == "pip install 'gradscope[timm]'"


MISSING = {
    "a folder": ("hf:./tinny", "did you mean `tiny`?"),
    "a folder without a config": ("hf:empty", "save_pretrained"),
    "an id": ("hf:someone/model", "hf download someone/model"),
    "a broken config": ("hf:broken", "save_pretrained"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def transformers(self):
        return pytest.importorskip("transformers")

    @pytest.fixture
    def folder(self, transformers, tmp_path):
        config = transformers.GPT2Config(
            n_layer=1,
            n_head=2,
            n_embd=8,
            vocab_size=11,
            n_positions=8,
            bos_token_id=0,
            eos_token_id=0,
            architectures=["GPT2LMHeadModel"],
        )
        config.save_pretrained(tmp_path / "tiny")
        return tmp_path / "tiny"

    def edit(self, folder: Path, **values: object) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    @pytest.mark.slow
    @pytest.mark.parametrize("spec", ["hf:tiny", "hf:./tiny", "hf:tiny/config.json"])
    def test_a_local_config(self, targets, folder, spec):
        built = specs.build(spec, targets)
        assert type(built.model).__name__ == "GPT2LMHeadModel"
        assert built.kind.library == "hf"
        assert built.kind.hf_config.vocab_size == 11
        assert Path(str(built.kind.tokenizer)) == folder

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("architectures", "expected"),
        [
            (["GPT2ForSequenceClassification"], "GPT2ForSequenceClassification"),
            (["GPT2ForTokenClassification"], "GPT2ForTokenClassification"),
            (None, "GPT2Model"),
            (["SomethingElse"], "GPT2Model"),
        ],
    )
    def test_the_class_follows_the_architectures(self, targets, folder, architectures, expected):
        self.edit(folder, architectures=architectures)
        assert type(specs.build("hf:tiny", targets).model).__name__ == expected

    def test_arguments_change_the_config(self, targets, folder):
        built = specs.build({"_target_": "hf:tiny", "n_layer": 2}, targets)
        assert len(built.model.transformer.h) == 2

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"model_args": {"checkpoint_path": "/x.pth"}}, "`checkpoint_path` may not stand in"),
            ({"model_args": {"pretrained_cfg": {"file": "/x"}}}, "`pretrained_cfg` may not stand"),
            ({"parts": [{"teacher": {"pretrained_path": "/x"}}]}, "`pretrained_path` may not"),
            ({"architecture": "local-dir:/x"}, "`architecture: local-dir:/x` may not stand in"),
            ({"vision_config": {"backbone": "hf-hub:a/b"}}, "`backbone: hf-hub:a/b` may not"),
            ({"backbone": "/"}, "`backbone: /` may not stand in"),
        ],
    )
    def test_a_config_that_names_files_elsewhere(self, targets, folder, values, said):
        self.edit(folder, **values)
        with pytest.raises(ConfigError, match=re.escape(said)):
            specs.build("hf:tiny", targets)

    @pytest.mark.parametrize(
        "values",
        [
            {"pretrained_cfg": {"file": "x", "input_size": [3, 8, 8]}},
            {"id2label": {"0": "local-dir:x", "1": "y"}},
            {"vision_config": {"architecture": "x", "pretrained_cfg": {"tag": "y"}}},
        ],
    )
    def test_a_config_that_only_says_what_it_is(self, targets, folder, values):
        self.edit(folder, **values)
        assert specs.build("hf:tiny", targets).kind.hf_config.n_embd == 8

    @pytest.mark.parametrize("depth", [101, 900, 100_000])
    def test_a_config_that_is_nested_too_deep(self, targets, folder, depth):
        text = f'{{"a": {"[" * depth}{"]" * depth}, {(folder / "config.json").read_text()[1:]}'
        (folder / "config.json").write_text(text)
        with pytest.raises(ConfigError, match="nested deeper than 100"):
            specs.build("hf:tiny", targets)

    def test_an_unknown_argument(self, targets, folder):
        with pytest.raises(ConfigError) as caught:
            specs.build({"_target_": "hf:tiny", "n_layr": 2}, targets)
        assert caught.value.problems[0].help == "did you mean `n_layer`?"

    def test_a_dotted_class_is_known_as_hf(self, targets):
        config = {"_target_": "transformers.GPT2Config", "n_layer": 1, "n_head": 2, "n_embd": 8}
        asked = {"_target_": "transformers.GPT2Model", "_args_": [config]}
        assert specs.build(asked, targets).kind.library == "hf"

    def test_weights_of_a_folder(self, targets, folder):
        saved = specs.build("hf:tiny", targets).model
        saved.save_pretrained(folder)
        built = specs.build("hf:tiny", targets, weights="DEFAULT")
        assert torch.equal(built.model.lm_head.weight, saved.lm_head.weight)
        assert built.weights == "DEFAULT"

    def test_weights_in_a_pickle_of_tensors(self, targets, folder):
        saved = specs.build("hf:tiny", targets).model
        torch.save(saved.state_dict(), folder / "pytorch_model.bin")
        built = specs.build("hf:tiny", targets, weights="DEFAULT")
        assert torch.equal(built.model.lm_head.weight, saved.lm_head.weight)

    def test_a_planted_pickle_does_not_run(self, targets, folder, tmp_path):
        torch.save({"x": Planted(tmp_path / "ran")}, folder / "pytorch_model.bin")
        with pytest.raises(ConfigError, match=r"is not loaded.*posix\.system"):
            specs.build("hf:tiny", targets, weights="DEFAULT")
        assert not (tmp_path / "ran").exists()

    def test_no_weights_there(self, targets, folder):
        with pytest.raises(ConfigError) as caught:
            specs.build("hf:tiny", targets, weights="DEFAULT")
        assert "model.safetensors" in str(caught.value.problems[0].help)

    def test_code_that_comes_with_a_known_type_is_not_run(self, targets, folder, tmp_path):
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        self.edit(folder, auto_map={"AutoModelForCausalLM": "evil.Net", "AutoConfig": "evil.Cfg"})
        built = specs.build("hf:tiny", targets)
        assert type(built.model).__module__.startswith("transformers.")
        assert "auto_map" in built.notices[0]
        assert not (tmp_path / "ran").exists()

    def test_code_of_an_unknown_type_is_refused(self, targets, folder, tmp_path):
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        self.edit(folder, model_type="evil", auto_map={"AutoConfig": "evil.Cfg"})
        with pytest.raises(ConfigError, match="does not run"):
            specs.build("hf:tiny", targets)
        assert not (tmp_path / "ran").exists()

    def test_kernels_from_a_hub_are_refused(self, targets, folder):
        with pytest.raises(ConfigError, match="kernel"):
            specs.build({"_target_": "hf:tiny", "attn_implementation": "evil/kernel"}, targets)
        self.edit(folder, text_config={"_attn_implementation": "evil/kernel"})
        with pytest.raises(ConfigError, match="kernel"):
            specs.build("hf:tiny", targets)

    @pytest.mark.parametrize(("spec", "remedy"), MISSING.values(), ids=MISSING)
    def test_what_is_missing(self, targets, folder, spec, remedy, tmp_path, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        (tmp_path / "empty").mkdir()
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "config.json").write_text("{")
        with pytest.raises(ConfigError) as caught:
            specs.build(spec, targets)
        assert remedy in str(caught.value.problems[0].help)


class TestDemo:
    def test_trained_by_default(self, targets):
        for spec, name in (
            ("demo", "SimpleNet"),
            ("demo:lecture", "LectureNet"),
            ("demo:scouter", "ScouterNet"),
            ("demo:scouter-negative", "NegativeScouterNet"),
        ):
            first, second = specs.build(spec, targets), specs.build(spec, targets)
            assert type(first.model).__name__ == name
            values = [next(built.model.parameters()) for built in (first, second)]
            assert torch.equal(*values)
            assert "trained" in first.notices[0]

    def test_random_when_asked(self, targets):
        built = specs.build("demo", targets, random=True)
        trained = specs.build("demo", targets)
        assert built.weights is None
        pair = [next(each.model.parameters()) for each in (built, trained)]
        assert not torch.equal(*pair)

    def test_no_other_demo(self, targets):
        with pytest.raises(ConfigError, match="unknown demo"):
            specs.faults("demo:lecure", targets)

    def test_no_other_weights(self, targets):
        with pytest.raises(ConfigError):
            specs.build("demo", targets, weights="IMAGENET1K_V1")


NO_MODELS = {"a class": "Other", "a number": "number", "a class instead": "type_"}


class TestPython:
    @pytest.fixture(autouse=True)
    def net(self, tmp_path):
        (tmp_path / "specnet.py").write_text(
            "from torch import nn\n"
            "class Net(nn.Module):\n"
            "    def __init__(self, width=2):\n"
            "        super().__init__()\n"
            "        self.fc = nn.Linear(width, 2)\n"
            "class Other: pass\n"
            "def build(width): return Net(width)\n"
            "def number(): return 3\n"
            "def type_(): return Net\n"
            "def item():\n"
            "    import torch\n"
            "    return Net(int(torch.ones(2).sum().item()))\n"
        )

    @pytest.mark.parametrize("name", ["./specnet.py:Net", "specnet.Net", "specnet:Net"])
    def test_a_class(self, targets, name):
        built = specs.build({"_target_": name, "width": 5}, targets)
        assert built.model.fc.in_features == 5
        assert (built.kind.library, built.kind.name) == ("python", name)

    def test_a_function(self, targets):
        built = specs.build({"_target_": "./specnet.py:build", "_args_": [4]}, targets)
        assert built.model.fc.in_features == 4

    @pytest.mark.parametrize("name", NO_MODELS.values(), ids=NO_MODELS)
    def test_what_is_no_module(self, targets, name):
        with pytest.raises(TargetError, match=r"torch\.nn\.Module"):
            specs.build(f"./specnet.py:{name}", targets)

    def test_named_weights_mean_nothing(self, targets):
        with pytest.raises(ConfigError) as caught:
            specs.build("./specnet.py:Net", targets, weights="DEFAULT")
        assert "checkpoint" in str(caught.value.problems[0].help)

    @pytest.mark.parametrize("name", ["Net", "item"])
    def test_meta(self, targets, name):
        meta = torch.device("meta")
        built = specs.build(f"./specnet.py:{name}", targets, device=meta)
        assert all(p.is_meta for p in built.model.parameters())

    def test_a_model_cannot_be_partial(self, targets):
        with pytest.raises(ConfigError, match="_partial_"):
            specs.build({"_target_": "./specnet.py:Net", "_partial_": True}, targets)


@pytest.mark.slow
def test_who_pays_for_torchvision(tmp_path):
    """In one interpreter: what is imported after each model, the one that needs it last."""
    (tmp_path / "net.py").write_text("from torch import nn\nclass Net(nn.Linear): pass\n")
    script = (
        "import sys, torch; from pathlib import Path\n"
        "from gradscope.loading import specs; from gradscope.loading.targets import Targets\n"
        "for spec in sys.argv[1:]:\n"
        "    try: specs.build(spec, Targets(Path.cwd()), device=torch.device('meta'))\n"
        "    except Exception as error: print(error, file=sys.stderr)\n"
        "    print([m for m in ('torchvision', 'timm', 'transformers') if m in sys.modules])"
    )
    root = str(Path(specs.__file__).parents[3])
    run = subprocess.run(
        [sys.executable, "-c", script, "demo", "./net.py:Net", "torchvision:alexnet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == ["[]", "[]", "['torchvision']"]
