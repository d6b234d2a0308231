"""The form of MODEL: what is a spec, what is not, and what was probably meant."""

from __future__ import annotations

import pytest

from gradscope.config.loaded_config import check_spec, read
from gradscope.errors import ConfigError


@pytest.mark.parametrize(
    "spec",
    [
        "demo",
        "demo:lecture",
        "demo:scouter",
        "demo:scouter-negative",
        "torchvision:resnet18",
        "timm:vit_tiny_patch16_224.augreg_in21k",
        "timm:hf_hub:timm/resnet18.a1_in1k",
        "hf:google-bert/bert-base-uncased",
        "hf:./a folder",
        "./net.py:Net",
        "/abs/net.py:Outer.Net",
        "../a:b/net.py:Net",
        "pkg.mod:Net",
        "net:Net",
    ],
)
def test_specs_that_pass(spec):
    check_spec(spec)
    assert read(spec).config.model == spec
    assert read(spec).name == spec


@pytest.mark.parametrize(
    ("spec", "message", "help"),
    [
        ("resnet18", "`resnet18` is neither", "did you mean `torchvision:resnet18`?"),
        ("ResNet50", "`ResNet50` is neither", "did you mean `torchvision:resnet50`?"),
        ("vit_b_16", "`vit_b_16` is neither", "did you mean `torchvision:vit_b_16`?"),
        ("vit_tiny_patch16_224", "`vit_", "did you mean `timm:vit_tiny_patch16_224`?"),
        ("org/name", "`org/name` is neither", "did you mean `hf:org/name`?"),
        ("dmeo", "`dmeo` is neither", "did you mean `demo`?"),
        ("demo:lectrue", "unknown demo `lectrue`", "did you mean `demo:lecture`?"),
        ("demo:scouter-negativ", "unknown demo `scouter-n", "did you mean `demo:scouter-negative`"),
        ("demo:qqq", "unknown demo `qqq`", "a demo is demo, demo:lecture, demo:scouter or"),
        ("net.py", "there is no file `net.py`", "a model is"),
        ("net.py:", "`net.py:` names no class", "write it as in `./net.py:Net` or `pkg.mod:Net`"),
        ("pkg.mod:", "`pkg.mod:` names no class", "write it as in `./net.py:Net` or"),
        ("pkg.mod:a-b", "`pkg.mod:a-b` names no class", "write it as in"),
        ("torchvision:", "`torchvision:` names no model", "write it as in `torchvision:resnet18`"),
        ("torchvision:a b", "`torchvision:a b` names no model", "write it as in"),
        ("hf:", "`hf:` names no model", "write it as in `hf:DIR_OR_ID`"),
        ("torchvison:vgg11", "`torchvison` is not a source", "did you mean `torchvision:vgg11`?"),
        ("Torchvision:vgg11", "`Torchvision:vgg11`", "did you mean `torchvision:vgg11`?"),
        ("huggingface:gpt2", "`huggingface:gpt2`", "did you mean `hf:gpt2`?"),
        ("torchvision.models.vgg11", "`torchv", "did you mean `torchvision.models:vgg11`?"),
        ("weights.pt", "`weights.pt`", "a checkpoint needs its model beside it"),
        ("qqq", "`qqq` is neither a config file nor a model spec", "a model is `torchvision:NAME`"),
        ("", "the model spec is empty", "a model is"),
        ("\x1b[31m", "`\\x1b[31m` is neither", "a model is"),
    ],
)
def test_specs_that_fail(spec, message, help, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read(spec)
    (problem,) = caught.value.problems
    assert problem.message.startswith(message)
    assert problem.help.startswith(help)
    assert (problem.place.file, problem.place.key) == ("argument", "model")


def test_a_python_file_names_its_classes_without_running(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = (
        "raise SystemExit\nclass Net(nn.Module): pass\nclass Other(Net): pass\nclass Plain: pass"
    )
    (tmp_path / "net.py").write_text(source)
    with pytest.raises(ConfigError) as caught:
        read("net.py")
    help = "name the class in it: `./net.py:Net` or `./net.py:Other`"
    assert caught.value.problems[0].help == f"{help}; {for_a_script('net.py')}"


def for_a_script(word: str) -> str:
    return (
        f"for a training script: `gradscope why {word}` says why it does not learn, "
        f"`gradscope run {word}` records it"
    )


SCRIPTS = {
    "no class": "import torch\nnet = torch.nn.Linear(1, 1)\n",
    "classes of Python": "from enum import Enum\nclass Mode(Enum): pass\nclass Own(dict): pass\n",
    "data": "from torch.utils.data import Dataset\nclass A(Dataset): pass\nclass B(A): pass",
    "an optimizer": "import torch\nclass Own(torch.optim.Optimizer): pass\n",
    "a function": "from torch import nn\ndef build(): return nn.Linear(1, 1)\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("word", ["train.py", "./train.py", "sub/../train.py"])
def test_a_script_without_a_model_class_is_for_run(name, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text(f"{SCRIPTS[name]}\nraise SystemExit('it ran')\n")
    with pytest.raises(ConfigError) as caught:
        read(word)
    (problem,) = caught.value.problems
    assert problem.message == f"`{word}` defines no model class"
    assert problem.help == for_a_script(word)


@pytest.mark.parametrize(
    ("source", "help"),
    [
        (SCRIPTS["no class"], for_a_script("./train.py")),
        ("class Nets(nn.Module): pass", "did you mean `Nets`?"),
        ("class Model(Base): pass", "name the class in it: `./train.py:Model`"),
    ],
)
@pytest.mark.parametrize("mapping", [False, True])
def test_a_name_that_the_file_has_not_is_told_without_running_it(
    source, help, mapping, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(source)
    spec = "./train.py:Net"
    with pytest.raises(ConfigError) as caught:
        read({"model": {"_target_": spec, "depth": 1} if mapping else spec})
    (problem,) = caught.value.problems
    assert (problem.message, problem.help) == ("`./train.py` has no `Net`", help)


@pytest.mark.parametrize(
    "source",
    [
        "def Net(): pass",
        "from other import Net",
        "from other import *",
        "import other as Net",
        "if True:\n    Net = 3",
        "globals()['Net'] = 3",
        "def __getattr__(name): return 3",
        "for Net in (): pass",
        "class (:",
        "Net: int = 3",
    ],
)
def test_a_name_that_the_file_may_have_is_left_to_loading(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(source)
    assert read("./train.py:Net").config.model == "./train.py:Net"


def test_a_module_of_that_name_is_not_called_a_typo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tim.py").write_text("")
    assert read("tim:Net").config.model == "tim:Net"


def test_a_yaml_of_that_name_is_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resnet18.yaml").write_text("model: demo")
    with pytest.raises(ConfigError) as caught:
        read("resnet18")
    assert caught.value.problems[0].help == "did you mean `resnet18.yaml`?"
