"""Imports that a config may make, those it may not, and the messages."""

from __future__ import annotations

import argparse
import functools
import pickle
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from gradscope.config.loaded_config import read
from gradscope.errors import ConfigError, GradscopeError, ModelError, Place, TargetError
from gradscope.loading import imports
from gradscope.loading.targets import Targets
from gradscope.loading.workload import load

NET = """
import builtins
import functools
import os
import types
from os import system as Alias
from dataclasses import dataclass

import torch
from torch import nn
from torch.hub import load_state_dict_from_url


@dataclass
class Options:
    width: int = 2


class Net(nn.Module):
    def __init__(self, width: int = 2, inner=None, trust: bool = False):
        super().__init__()
        self.fc, self.inner = nn.Linear(width, width), inner

    @classmethod
    def wide(cls):
        return cls(8)

    class Part(nn.Module):
        pass


def build(*args, **kwargs):
    return Net(*args, **kwargs)


def wrap(function):
    return function


@functools.wraps(Net)
def wrapped(*args, scale=1, **kwargs):
    return Net(kwargs.pop("width", 2) * scale, **kwargs)


class Configured(Net):
    def __init__(self, cfg: Options | None, bag: types.SimpleNamespace = None, plain: dict = {}):
        super().__init__()
        self.given = cfg, bag, plain


class Unread(Net):
    def __init__(self, cfg: "Elsewhere", scale: float, *, bias: bool):
        super().__init__()


class Deaf(Net):
    def __init__(self, width: int = 2, **kwargs):
        super().__init__(width)


class Keeper(Net):
    def __init__(self, **kwargs):
        super().__init__(**{name: value for name, value in kwargs.items()})


def read(path, weights_only=None, trust_remote_code=None):
    return weights_only, trust_remote_code


def fail():
    broken = 1
    raise ValueError("no width")


def loss(output, target):
    return output.sum()


shy = lambda: os.system("true")
bound = functools.partial(os.system, "true")
evaluate = eval
ready = Net()
bag = types.SimpleNamespace()
number = 3
library = types.ModuleType("library")
library.ready = ready
library.__file__ = "/usr/lib/library.py"
"""


@pytest.fixture(autouse=True)
def imports_are_undone():
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file and "pytest" in file:
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def place(key: str, *, of_key: bool = False) -> Place:
    return Place("model.yaml", 1, key=key)


@pytest.fixture
def targets(folder):
    return Targets(folder, (), place)


def write(folder: Path, name: str, source: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


ALLOWED = {
    "a layer": ("torch.nn.Linear", nn.Linear),
    "a layer by its own module": ("torch.nn.modules.linear.Linear", nn.Linear),
    "a parameter": ("torch.nn.Parameter", nn.Parameter),
    "an optimizer": ("torch.optim.SGD", torch.optim.SGD),
    "a scheduler": ("torch.optim.lr_scheduler.StepLR", torch.optim.lr_scheduler.StepLR),
    "a functional in Python": (
        "torch.nn.functional.cross_entropy",
        torch.nn.functional.cross_entropy,
    ),
    "a functional in C": ("torch.nn.functional.gelu", torch.nn.functional.gelu),
    "a functional that says torch": ("torch.nn.functional.conv2d", torch.conv2d),
}


@pytest.mark.parametrize(("name", "expected"), ALLOWED.values(), ids=ALLOWED)
def test_what_may_be_named(targets, name, expected):
    assert targets.names.locate(name, "model") is expected


LIBRARIES = {
    "a torchvision builder": "torchvision.models.resnet18",
    "a torchvision builder by its module": "torchvision.models.detection.maskrcnn_resnet50_fpn",
    "a torchvision class": "torchvision.models.ResNet",
    "a transform": "torchvision.transforms.Compose",
    "a v2 transform": "torchvision.transforms.v2.Normalize",
    "timm's builder": "timm.create_model",
    "a timm layer": "timm.layers.DropPath",
    "a transformers config": "transformers.GPT2Config",
    "a transformers model": "transformers.GPT2LMHeadModel",
    "an auto builder": "transformers.AutoModelForCausalLM.from_config",
    "an auto config": "transformers.AutoConfig.from_pretrained",
    "the demo": "gradscope.demo.networks.SimpleNet",
}


@pytest.mark.parametrize("name", LIBRARIES.values(), ids=LIBRARIES)
def test_what_may_be_named_of_libraries(targets, name):
    pytest.importorskip(name.partition(".")[0])
    assert callable(targets.names.locate(name, "model"))


OWN = {
    "a class": ("./net.py:Net", "Net"),
    "a class without the dot": ("net.py:Net", "Net"),
    "a dotted class": ("net.Net", "Net"),
    "a module and a class": ("net:Net", "Net"),
    "a nested class": ("net.Net.Part", "Part"),
    "a class method": ("net.Net.wide", "wide"),
    "a function": ("./net.py:build", "build"),
    "a library's class seen through it": ("net.nn.Linear", "Linear"),
}


@pytest.mark.parametrize(("name", "called"), OWN.values(), ids=OWN)
def test_own_code_may_be_named(targets, name, called):
    assert targets.names.locate(name, "model").__name__ == called


REFUSED = {
    "a system call": "os.system",
    "a system call as a spec": "os:system",
    "an alias in the user's file": "./net.py:Alias",
    "a dotted alias": "net.Alias",
    "eval": "builtins.eval",
    "eval through the user's file": "./net.py:evaluate",
    "a module's module": "net.os.system",
    "builtins through the user's file": "net.builtins.exec",
    "torch's own os": "torch.nn.parallel.distributed.os.system",
    "a download": "torchvision.models._api.load_state_dict_from_url",
    "a download through the user's file": "net.load_state_dict_from_url",
    "timm's unpickler": "timm.models.load_state_dict",
    "timm's other unpickler": "timm.models.load_checkpoint",
    "the hub": "torch.hub.load",
    "the hub by a detour": "torch.nn.functional.torch.hub.load",
    "pickle": "torch.load",
    "pickle behind functional": "torch.nn.functional.torch.load",
    "functional's helpers": "torch.nn.functional.boolean_dispatch",
    "functional's overrides": "torch.nn.functional.handle_torch_function",
    "a partial": "functools.partial",
    "a partial in the user's file": "./net.py:bound",
    "a lambda": "./net.py:shy",
    "globals": "torch.nn.Module.__init__.__globals__",
    "a constructor": "torch.nn.Linear.__init__",
    "subclasses": "torch.nn.Module.__subclasses__",
    "dunder in a file": "net.Net.__init__",
    "a method": "torch.nn.Module.load_state_dict",
    "a function of torch.nn": "torch.nn.utils.clip_grad_norm_",
    "a module": "torch.nn.functional",
    "a constant": "net.number",
    "a library's instance": "net.library.ready",
    "an instance of no module": "net.bag",
    "the parser of arguments": "argparse.ArgumentParser",
    "files of arguments": "argparse.FileType",
    "what types holds": "types.FunctionType",
    "a container's module": "types.sys.exit",
    "YAML of omegaconf": "omegaconf.OmegaConf.load",
    "resolvers of omegaconf": "omegaconf.OmegaConf.register_new_resolver",
    "from_pretrained of a class": "transformers.GPT2LMHeadModel.from_pretrained",
    "an auto class itself": "transformers.AutoModel",
    "a pipeline": "transformers.pipeline",
    "a trainer": "transformers.Trainer",
    "the rest of torch": "torch.Tensor",
    "the rest of gradscope": "gradscope.errors.ModelError",
    "the testing tools": "pytest.main",
    "a subprocess": "subprocess.Popen",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_what_may_not_be_named(targets, name, monkeypatch):
    ran = []
    monkeypatch.setattr("os.system", lambda command: ran.append(command))
    with pytest.raises(TargetError) as caught:
        targets.instantiate({"_target_": name, "_args_": ["true"]}, "model")
    problem = caught.value.problems[0]
    assert problem.place and problem.help
    assert name.replace(":", ".") in problem.message or name in problem.message
    assert ran == []


RULES = {
    "outside": ("os.system", ["may not be imported"], "--allow 'os.*'"),
    "an alias": ("./net.py:Alias", ["posix.system"], "--allow 'posix.*'"),
    "part of torch": ("torch.load", ["torch.load"], "--allow 'torch.load'"),
    "dunder": ("torch.nn.Module.__init__", ["`__init__` is internal"], "function of your own"),
    "lambda": ("./net.py:shy", ["a lambda"], "def NAME"),
    "instance": ("net.bag", ["object of type SimpleNamespace"], "class or a function"),
}


@pytest.mark.parametrize(("name", "said", "remedy"), RULES.values(), ids=RULES)
def test_the_rule_and_the_fix_are_named(targets, name, said, remedy):
    with pytest.raises(TargetError) as caught:
        targets.names.locate(name, "model")
    text = caught.value.render()
    assert all(each in text for each in said)
    assert remedy in text


def test_a_refused_name_is_not_even_imported(targets):
    assert "this" not in sys.modules
    with pytest.raises(TargetError):
        targets.names.locate("this.s", "model")
    assert "this" not in sys.modules


@pytest.mark.parametrize("pattern", ["fractions.*", "fractions.Fraction", "*", "frac*"])
def test_allow(folder, pattern):
    targets = Targets(folder, [pattern])
    assert targets.instantiate({"_target_": "fractions.Fraction", "_args_": [3]}, "x") == 3


@pytest.mark.parametrize("pattern", ["fraction", "Fraction", "fractions.Other", "fractions"])
def test_allow_that_does_not_cover(folder, pattern):
    with pytest.raises(TargetError):
        Targets(folder, [pattern]).names.locate("fractions.Fraction", "x")


def test_allow_must_cover_what_the_name_turns_out_to_be(folder):
    with pytest.raises(TargetError, match=r"posix\.system"):
        Targets(folder, ["os.*"]).names.locate("os.system", "x")


UNKNOWN = {
    "a layer": ("torch.nn.Conv2D", "`torch.nn` has no `Conv2D`", "did you mean `Conv2d`?"),
    "in a file": ("./net.py:Nett", "`./net.py` has no `Nett`", "did you mean `Net`?"),
    "in a module": ("net.biuld", "`net` has no `biuld`", "did you mean `build`?"),
    "far from all": ("./net.py:Zzz", "has no `Zzz`", "`./net.py:Net`"),
    "a file": ("./nett.py:Net", "no file `./nett.py`", "did you mean `net.py`?"),
    "a module": ("nett.Net", "`nett.Net` may not be", "did you mean `net`?"),
    "a submodule": ("torch.nn.moduls.Linear", "`torch.nn` has no `moduls`", "`modules`"),
}


@pytest.mark.parametrize(("name", "said", "remedy"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_name_gets_the_closest(targets, name, said, remedy):
    with pytest.raises(TargetError) as caught:
        targets.names.locate(name, "model")
    assert said in caught.value.problems[0].message
    assert remedy in (caught.value.problems[0].help or "")


def test_all_faults_at_once(targets):
    problems = targets.names.faults(
        {
            "model": "./net.py:Nett",
            "replace": {"fc": {"_target_": "os.system"}},
            "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
            "input": [{"_target_": "torch.nn.Conv2D"}],
            "loss": "cross_entropy",
        }
    )
    assert len(problems) == 3


class TestInstantiate:
    def test_nested_ones_are_built_first(self, targets):
        inner = {"_target_": "torch.nn.Linear", "_args_": [2, 3], "bias": False}
        net = targets.instantiate({"_target_": "./net.py:Net", "inner": inner}, "model")
        assert net.inner.weight.shape == (3, 2)
        assert net.inner.bias is None

    def test_in_lists_and_mappings(self, targets):
        layers = [{"_target_": "torch.nn.ReLU"}, {"_target_": "torch.nn.Tanh"}]
        net = targets.instantiate({"_target_": "torch.nn.ModuleList", "_args_": [layers]}, "model")
        assert [type(layer) for layer in net] == [nn.ReLU, nn.Tanh]

    def test_partial(self, targets):
        asked = {"_target_": "torch.nn.Linear", "_partial_": True, "out_features": 3}
        made = targets.instantiate(asked, "x")
        assert isinstance(made, functools.partial)
        assert made(2).weight.shape == (3, 2)

    @pytest.mark.parametrize(
        "mapping",
        [
            {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 1}},
            {"_component_": "torch.nn.Linear", "in_features": 2, "out_features": 1},
        ],
    )
    def test_aliases(self, targets, mapping):
        assert targets.instantiate(mapping, "model").in_features == 2

    def test_a_function_as_the_loss_is_the_loss(self, targets):
        made = targets.instantiate({"_target_": "./net.py:loss"}, "loss")
        assert made(torch.ones(3), None) == 3
        made = targets.instantiate(
            {"_target_": "torch.nn.functional.cross_entropy", "label_smoothing": 0.1}, "loss"
        )
        assert made(torch.zeros(1, 2), torch.tensor([0])).ndim == 0

    def test_the_safe_value_is_passed(self, targets):
        asked = {"_target_": "./net.py:read", "path": "x"}
        assert targets.instantiate(asked, "x") == (True, False)


ARGUMENTS = {
    "trust_remote_code": ("./net.py:build", {"trust_remote_code": False}),
    "weights_only": ("./net.py:read", {"path": "x", "weights_only": False}),
    "pickle_module": ("./net.py:build", {"pickle_module": "dill"}),
    "a file of timm": ("timm.create_model", {"model_name": "resnet18", "checkpoint_path": "x"}),
    "a config of timm": ("timm.create_model", {"model_name": "resnet18", "pretrained_cfg": {}}),
    "a hub of timm": ("timm.create_model", {"model_name": "hf-hub:evil/model"}),
    "a folder of timm": ("timm.create_model", {"model_name": "local-dir:evil"}),
    "timm by position": ("timm.create_model", {"_args_": ["resnet18", True, {"url": "x"}]}),
    "kernels": (
        "transformers.AutoModel.from_config",
        {"config": None, "attn_implementation": "evil/kernel"},
    ),
    "kernels under their inner name": (
        "transformers.ViTConfig",
        {"_attn_implementation_internal": "evil/kernel"},
    ),
    "kernels of a part": (
        "transformers.CLIPConfig",
        {"text_config": {"attn_implementation": "evil/kernel"}},
    ),
    "kernels in a namespace": (
        "types.SimpleNamespace",
        {"text_config": {"attn_implementation": "evil/kernel"}},
    ),
    "timm through transformers": (
        "transformers.AutoBackbone.from_config",
        {"config": None, "pretrained_cfg": {"url": "x"}},
    ),
    "a teacher of timm": (
        "timm.task.DistillationTeacher",
        {"model_name_or_module": "resnet18", "pretrained_cfg_overlay": {"file": "x"}},
    ),
    "a teacher of timm from a folder": (
        "timm.task.DistillationTeacher",
        {"model_name_or_module": "local-dir:../elsewhere", "num_classes": 2},
    ),
    "a teacher of timm by position": (
        "timm.task.distillation.DistillationTeacher",
        {"_args_": ["local-dir:../elsewhere"], "num_classes": 2},
    ),
    "a teacher of timm from the hub": (
        "timm.task.DistillationTeacher",
        {"model_name_or_module": "hf_hub:evil/model"},
    ),
    "a model of timm in a config of transformers": (
        "transformers.TimmBackboneConfig",
        {"backbone": "local-dir:../elsewhere"},
    ),
    "an architecture of timm": (
        "transformers.TimmWrapperConfig",
        {"architecture": "Local-Dir:../elsewhere"},
    ),
    "arguments of timm": (
        "transformers.TimmWrapperConfig",
        {"architecture": "resnet18", "model_args": {"checkpoint_path": "../elsewhere.pth"}},
    ),
    "a part's folder": ("transformers.MaskFormerConfig", {"backbone": "."}),
    "one of several parts": (
        "transformers.MaskFormerConfig",
        {"backbone_config": {"parts": [{"backbone": "hf-hub:evil/model"}]}},
    ),
    "code of a part": (
        "transformers.DetrConfig",
        {"backbone_config": {"model_type": "x", "auto_map": {"AutoBackbone": "evil--net.Net"}}},
    ),
    "code in a namespace": ("argparse.Namespace", {"trust_remote_code": True}),
    "all kernels": (
        "transformers.AutoModel.from_pretrained",
        {"_args_": ["x"], "allow_all_kernels": True},
    ),
    "legacy pretrained": ("torchvision.models.resnet18", {"pretrained": True}),
    "weights of a part": ("torchvision.models.resnet18", {"weights": "DEFAULT"}),
}


@pytest.mark.parametrize(("name", "arguments"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_open_a_side_door(targets, name, arguments):
    if not name.startswith("./"):
        # timm has its teachers since 2025.
        pytest.importorskip("timm.task" if name.startswith("timm.task") else name.partition(".")[0])
    with pytest.raises(ConfigError) as caught:
        targets.instantiate({"_target_": name, **arguments}, "model")
    assert caught.value.problems[0].message


def test_safe_values_for_the_auto_classes(targets):
    pytest.importorskip("transformers")
    from gradscope.loading.policy import safe_arguments

    def safe(name: str) -> dict[str, object]:
        return safe_arguments(targets.names.locate(f"transformers.{name}", "model"))

    both = {"trust_remote_code": False, "weights_only": True}
    assert safe("AutoModel.from_pretrained") == both
    assert safe("AutoModelForCausalLM.from_config") == {"trust_remote_code": False}
    assert safe("AutoConfig.from_pretrained") == {"trust_remote_code": False}


class TestArguments:
    def test_an_unknown_one(self, targets):
        with pytest.raises(ConfigError) as caught:
            targets.instantiate({"_target_": "./net.py:Net", "widht": 3}, "model")
        assert "takes no argument `widht`" in caught.value.problems[0].message
        assert caught.value.problems[0].help == "did you mean `width`?"

    def test_an_unknown_one_far_from_all(self, targets):
        with pytest.raises(ConfigError) as caught:
            targets.instantiate({"_target_": "./net.py:Net", "zzz": 3}, "model")
        assert "`width`, `inner`, `trust`" in str(caught.value.problems[0].help)

    @pytest.mark.parametrize("config", ["ViTConfig", "BertConfig", "T5Config", "CLIPConfig"])
    def test_what_a_config_of_transformers_takes_by_any_name(self, targets, config):
        pytest.importorskip("transformers")
        given = {"num_labels": 3, "decoder_start_token_id": 1, "problem_type": "regression"}
        made = targets.instantiate({"_target_": f"transformers.{config}", **given}, "model.config")
        assert {name: getattr(made, name) for name in given} == given
        assert len(made.id2label) == 3
        assert targets.notices == []

    def test_what_nothing_reads_is_said(self, targets):
        pytest.importorskip("transformers")
        asked = {"_target_": "transformers.ViTConfig", "hidden_sze": 8, "qqqq": 1}
        targets.instantiate(asked, "model.config")
        assert targets.notices == [
            "model.config: ViTConfig keeps, and nothing reads, `hidden_sze`: did you mean "
            "`hidden_size`?",
            "model.config: ViTConfig keeps, and nothing reads, `qqqq`",
        ]

    def test_a_wrapper_that_takes_any_name_is_asked(self, targets):
        asked = {"_target_": "./net.py:wrapped"}
        assert targets.instantiate({**asked, "width": 3, "scale": 2}, "model").fc.in_features == 6
        with pytest.raises(ConfigError, match="takes no argument `widht`") as caught:
            targets.instantiate({**asked, "widht": 3}, "model")
        assert caught.value.problems[0].help == "did you mean `width`?"

    def test_keywords_that_are_dropped_are_said(self, targets):
        targets.instantiate({"_target_": "./net.py:Deaf", "width": 3, "widht": 4}, "model")
        assert targets.notices == [
            "model: Deaf takes any name and drops `widht`: did you mean `width`?"
        ]
        for name in ("build", "Keeper"):
            targets.instantiate({"_target_": f"./net.py:{name}", "width": 4}, "model")
        assert len(targets.notices) == 1

    def test_one_that_a_builder_hands_on(self, targets):
        asked = {"_target_": "torchvision.models.resnet18", "num_clases": 3}
        with pytest.raises(ConfigError) as caught:
            targets.instantiate(asked, "model")
        assert caught.value.problems[0].help == "did you mean `num_classes`?"

    def test_a_missing_one(self, targets):
        with pytest.raises(ConfigError) as caught:
            targets.instantiate({"_target_": "torch.nn.Linear", "in_features": 3}, "model")
        assert "out_features" in caught.value.problems[0].message
        assert caught.value.problems[0].help == "give it: `model.out_features=…`"


IMPORTS = {
    "syntax": ("def f(:\n    pass\n", TargetError, "syntax", 1),
    "a missing module": ("x = 1\nimport nowhere_at_all\n", TargetError, "nowhere_at_all", 2),
    "a missing name": ("from torch import nothing_here\n", TargetError, "nothing_here", 1),
    "an exception": ("x = 1\n\nx / 0\n", ModelError, "ZeroDivisionError", 3),
    "an exit": ("import sys\nsys.exit(3)\n", TargetError, "ends the process", 2),
}


class TestFailures:
    def test_the_users_own_frames(self, targets):
        with pytest.raises(ModelError) as caught:
            targets.instantiate({"_target_": "./net.py:fail"}, "model")
        problem = caught.value.problems[0]
        assert "construction of the model failed" in problem.message
        assert "ValueError: no width" in problem.message
        assert problem.place and problem.place.file.endswith("net.py")
        assert problem.place.text == 'raise ValueError("no width")'
        assert isinstance(caught.value.__cause__, ValueError)

    def test_a_builder_of_a_library(self, targets):
        asked = {"_target_": "torch.nn.Linear", "in_features": -1, "out_features": "x"}
        with pytest.raises(ModelError) as caught:
            targets.instantiate(asked, "model")
        assert caught.value.exit_code == 3
        assert caught.value.problems[0].place == place("model")

    @pytest.mark.parametrize(("source", "kind", "said", "line"), IMPORTS.values(), ids=IMPORTS)
    @pytest.mark.parametrize("name", ["./bad.py:Net", "bad.Net"])
    def test_a_file_that_fails_to_import(self, targets, folder, source, kind, said, line, name):
        write(folder, "bad.py", source)
        with pytest.raises(kind) as caught:
            targets.names.locate(name, "model")
        problem = caught.value.problems[0]
        assert said in problem.message
        assert problem.place and problem.place.file.endswith("bad.py")
        assert problem.place.line == line
        assert "model.yaml" in problem.notes[-1]

    def test_torchvision_for_another_torch(self, targets, folder):
        source = "raise RuntimeError('operator torchvision::nms does not exist')\n"
        write(folder, "bad.py", source)
        with pytest.raises(GradscopeError) as caught:
            targets.names.locate("./bad.py:Net", "model")
        text = caught.value.render()
        assert torch.__version__.partition("+")[0] in text
        assert "pip install --force-reinstall torch torchvision" in text
        assert caught.value.exit_code == 2


OUTSIDE = {
    "above": "../outside.py",
    "site-packages": "site-packages/outside.py",
    "an environment": "env/lib/outside.py",
    "a conda environment": "conda/lib/outside.py",
    "a dot-folder": ".cache/outside.py",
}


class TestOwnCode:
    def test_a_folder_goes_to_the_end_of_the_path(self, targets, folder):
        earlier = {str(each) for each in imports._folders}  # of other tests: they give way
        before = [entry for entry in sys.path if entry not in earlier]
        targets.names.locate("./net.py:Net", "model")
        assert sys.path[: len(before)] == before
        assert str(folder) in sys.path[len(before) :]

    def test_files_beside_it_can_be_imported(self, targets, folder):
        write(folder, "blocks.py", "from torch import nn\nclass Block(nn.Module): pass\n")
        write(folder, "user.py", "from blocks import Block\n")
        found = targets.names.locate("./user.py:Block", "model")
        assert found.__module__ == "blocks"

    def test_a_file_inside_a_package_keeps_its_relative_imports(self, targets, folder):
        write(folder, "nets/__init__.py", "")
        write(folder, "nets/blocks.py", "class Block: pass\n")
        write(folder, "nets/small.py", "from .blocks import Block\nclass Small(Block): pass\n")
        small = targets.names.locate("./nets/small.py:Small", "model")
        assert small is targets.names.locate("nets.small.Small", "model")

    def test_a_name_that_is_taken(self, targets, folder):
        write(folder, "random.py", "from torch import nn\nclass Net(nn.Module): pass\n")
        found = targets.names.locate("./random.py:Net", "model")
        assert found.__module__ in sys.modules
        assert found.__module__ != "random"
        with pytest.raises(TargetError, match="name of an installed module"):
            targets.names.locate("random.Net", "model")

    def test_a_file_without_a_good_name(self, targets, folder):
        write(folder, "my-net.py", "class Net: pass\n")
        assert targets.names.locate("./my-net.py:Net", "model").__name__ == "Net"

    def test_instances_can_be_pickled(self, targets, folder):
        write(folder, "random.py", NET)
        options = targets.names.locate("./random.py:Options", "model")(width=5)
        assert pickle.loads(pickle.dumps(options)) == options

    def test_two_folders_with_the_same_names(self, folder):
        for name in ("a", "b"):
            write(folder, f"{name}/helper.py", f"NAME = '{name}'\n")
            write(folder, f"{name}/net.py", "import helper\nclass Net:\n    name = helper.NAME\n")
        found = [Targets(folder / n).names.locate("./net.py:Net", "x").name for n in "aba"]
        assert found == ["a", "b", "a"]

    def test_a_file_that_changed(self, folder):
        for value in (1, 22):
            write(folder, "changing.py", f"class Net:\n    value = {value}\n")
            assert Targets(folder).names.locate("./changing.py:Net", "x").value == value

    def test_the_working_directory_counts(self, folder, monkeypatch):
        write(folder, "configs/model.yaml", "")
        monkeypatch.chdir(folder)
        assert Targets(folder / "configs").names.locate("net.Net", "x").__name__ == "Net"
        assert Targets(folder / "configs").names.locate("../net.py:Net", "x").__name__ == "Net"

    @pytest.mark.parametrize("file", OUTSIDE.values(), ids=OUTSIDE)
    def test_what_is_not_the_users_own(self, tmp_path, monkeypatch, file):
        home = tmp_path / "home"
        write(home, "env/pyvenv.cfg", "")
        write(home, "conda/conda-meta/history", "")
        write(home, file, "raise RuntimeError('ran')\n")
        monkeypatch.chdir(home)
        with pytest.raises(TargetError) as caught:
            Targets(home, (), place).names.locate(f"{file}:Net", "model")
        assert f"--allow '{file}'" in caught.value.render()

    def test_allowed_from_outside(self, tmp_path, monkeypatch):
        home = tmp_path / "home"
        home.mkdir()
        write(tmp_path, "outside.py", "class Net: pass\n")
        monkeypatch.chdir(home)
        for pattern in ("../outside.py", f"{tmp_path}/outside.py", "../*", "../out*.py", "*"):
            found = Targets(home, [pattern]).names.locate("../outside.py:Net", "model")
            assert found.__name__ == "Net"

    @pytest.mark.parametrize(
        "pattern", ["outside.*", "outside.Net", "outside", "*.Net", "./outside.py", "outside.py"]
    )
    def test_an_allowance_for_a_package_is_none_for_a_file(self, tmp_path, monkeypatch, pattern):
        home = tmp_path / "home"
        home.mkdir()
        write(tmp_path, "outside.py", "raise RuntimeError('ran')\n")
        monkeypatch.chdir(home)
        with pytest.raises(TargetError, match=r"\.\./outside\.py"):
            Targets(home, [pattern]).names.locate("../outside.py:Net", "model")

    def test_a_file_that_was_typed(self, tmp_path, monkeypatch):
        """It may import what lies beside it; a config may name neither."""
        home = tmp_path / "home"
        home.mkdir()
        write(tmp_path, "part/__init__.py", "")
        write(tmp_path, "part/outside.py", "from .beside import Net\n")
        write(tmp_path, "part/beside.py", "class Net: pass\n")
        monkeypatch.chdir(home)
        targets = Targets(home, typed=lambda key: key == "model")
        found = targets.names.locate("../part/outside.py:Net", "model")
        assert found.__module__ == "part.beside"
        assert targets.wall(found, "Net") is None
        for name in ("../part/outside.py:Other", "../part/beside.py:Net", "part.beside.Net"):
            with pytest.raises(TargetError, match="may not be imported"):
                targets.names.locate(name, "loss")

    def test_a_project_below_the_interpreters_prefix_is_own(self, folder, monkeypatch):
        monkeypatch.setattr(sys, "prefix", str(folder.parent))
        assert Targets(folder).names.locate("./net.py:Net", "x").__name__ == "Net"

    def test_an_environment_inside_the_project_is_not(self, folder, monkeypatch):
        write(folder, "inner/outside.py", "raise RuntimeError('ran')\n")
        monkeypatch.setattr(sys, "prefix", str(folder / "inner"))
        with pytest.raises(TargetError):
            Targets(folder).names.locate("./inner/outside.py:Net", "x")

    def test_the_standard_library_is_not(self, monkeypatch):
        monkeypatch.chdir("/")
        with pytest.raises(TargetError):
            Targets(Path("/")).names.locate("subprocess.Popen", "x")


CONTAINERS = {
    "a namespace": ("types.SimpleNamespace", types.SimpleNamespace),
    "a namespace of arguments": ("argparse.Namespace", argparse.Namespace),
    "a namespace seen through a file": ("net.types.SimpleNamespace", types.SimpleNamespace),
}


@pytest.mark.parametrize(("name", "kind"), CONTAINERS.values(), ids=CONTAINERS)
def test_containers_of_plain_values_need_no_permission(targets, name, kind):
    inner = {"_target_": name, "heads": 2, "deep": {"x": 1}}
    net = targets.instantiate({"_target_": "./net.py:Net", "inner": inner}, "model")
    assert net.inner == kind(heads=2, deep={"x": 1})


def test_omegaconf_needs_no_permission(targets, monkeypatch):
    """A stand-in with the names and the homes that omegaconf 2.3 has."""

    class DictConfig:
        def __init__(self, content, key=None):
            self.content = content

    class OmegaConf:
        @staticmethod
        def create(obj):
            return DictConfig(obj)

    DictConfig.__module__, DictConfig.__qualname__ = "omegaconf.dictconfig", "DictConfig"
    OmegaConf.create.__module__ = "omegaconf.omegaconf"
    OmegaConf.create.__qualname__ = "OmegaConf.create"
    library = types.ModuleType("omegaconf")
    library.DictConfig, library.OmegaConf = DictConfig, OmegaConf
    monkeypatch.setitem(sys.modules, "omegaconf", library)
    made = targets.instantiate(
        {"_target_": "omegaconf.OmegaConf.create", "obj": {"heads": 2}}, "model"
    )
    assert made.content == {"heads": 2}

    def build(cfg):
        return cfg

    build.__annotations__ = {"cfg": DictConfig}
    made = targets.call(build, "build", [], {"cfg": {"heads": 2}}, "model")
    assert isinstance(made, DictConfig)
    assert made.content == {"heads": 2}


def test_a_mapping_becomes_what_the_annotation_asks_for(targets):
    asked = {"cfg": {"width": 3}, "bag": {"x": 1}, "plain": {"y": 2}}
    net = targets.instantiate({"_target_": "./net.py:Configured", **asked}, "model")
    options, bag, plain = net.given
    assert type(options).__name__ == "Options"
    assert options.width == 3
    assert bag == types.SimpleNamespace(x=1)
    assert plain == {"y": 2}
    said = "the mapping became `Options`, as ./net.py:Configured annotates it"
    assert targets.notices[0] == f"model.cfg: {said}"
    with pytest.raises(ConfigError) as caught:
        targets.instantiate({"_target_": "./net.py:Configured", "cfg": {"widht": 3}}, "model")
    assert caught.value.problems[0].place.key == "model.cfg.widht"


def test_a_mapping_where_nothing_readable_is_annotated_stays_one(targets):
    asked = {"_target_": "net.Net", "inner": {"x": 1}}
    assert targets.instantiate(asked, "model").inner == {"x": 1}


def test_all_missing_arguments_are_named_at_once(targets):
    with pytest.raises(ConfigError) as caught:
        targets.instantiate({"_target_": "./net.py:Unread", "scales": 1.0}, "model")
    unknown, missing = caught.value.problems
    assert unknown.help == "did you mean `scale`?"
    named = "`cfg: Elsewhere`, `bias: bool`"
    assert missing.message == f"`./net.py:Unread` needs 2 more arguments: {named}"
    takes = "`cfg: Elsewhere`, `scale: float`, `bias: bool`"
    assert missing.notes == (f"`./net.py:Unread` takes {takes}",)
    assert "`model.cfg=… model.bias=…`" in missing.help
    assert "`gradscope init -m ./net.py:Unread`" in missing.help


def test_the_fields_of_a_dataclass_are_missing_too(targets):
    with pytest.raises(ConfigError) as caught:
        targets.instantiate({"_target_": "./net.py:Configured"}, "model")
    (missing,) = caught.value.problems
    assert "`Options | None` takes `width: int = 2`" in missing.notes
    assert "`model.cfg={}`" in missing.help


class TestInstance:
    @pytest.mark.parametrize("name", ["net.ready", "./net.py:ready", "net:ready"])
    def test_one_that_a_file_made(self, targets, name):
        made = targets.instantiate({"_target_": name}, "model")
        assert type(made).__name__ == "Net"
        said = "model: made by the import of net.py, which ran the full file"
        assert targets.notices == [said]

    def test_it_takes_no_arguments(self, targets):
        with pytest.raises(ConfigError, match="takes no arguments"):
            targets.instantiate({"_target_": "net.ready", "width": 3}, "model")

    def test_the_next_config_gets_a_new_one(self, folder):
        made = [
            Targets(folder, ()).instantiate({"_target_": "./net.py:ready"}, "model")
            for _ in range(2)
        ]
        assert made[0] is not made[1]

    def test_it_is_seeded(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        loaded = [load(read(f"./net.py:{name}", ["input.shape=[1, 2]"])) for name in ("ready",) * 2]
        one, two = (workload.model.fc.weight for workload in loaded)
        assert torch.equal(one, two)
