"""Modules replaced, parameters frozen, optimizers made."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradscope.errors import ConfigError, LayerError, ModelError, Place, TargetError
from gradscope.loading import surgery
from gradscope.loading.optimizers import default_optimizer, optimizer_maker
from gradscope.loading.targets import Targets


def place(key: str, *, of_key: bool = False) -> Place:
    return Place("model.yaml", 1, key=key)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.fc = nn.Linear(4, 2)
        self.again = self.fc


@pytest.fixture
def targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Targets(tmp_path, (), place)


LINEAR = {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 7}


BAD_REPLACEMENTS = {
    "an unknown name": ({"fcc": LINEAR}, "did you mean `fc`?"),
    "far from all": ({"zzzz": LINEAR}, "the names start with body"),
    "the root": ({"": LINEAR}, "the names start with"),
    "null": ({"fc": None}, "torch.nn.Identity"),
    "a number": ({"fc": 3}, "torch.nn.Identity"),
}


class TestReplace:
    @pytest.mark.parametrize("name", ["fc", "body.0", "body"])
    def test_a_module(self, targets, name):
        model = Net()
        notices = surgery.replace(model, {name: LINEAR}, targets.instantiate, place)
        assert model.get_submodule(name).out_features == 7
        assert notices[0].startswith(f"replace: {name} is now Linear")

    def test_order_within_a_sequence_stays(self, targets):
        model = Net()
        surgery.replace(model, {"body.1": "torch.nn.Tanh"}, targets.instantiate, place)
        assert [type(m) for m in model.body] == [nn.Linear, nn.Tanh]

    def test_other_names_keep_the_old_one_and_that_is_said(self, targets):
        model = Net()
        notices = surgery.replace(model, {"fc": LINEAR}, targets.instantiate, place)
        assert model.again.out_features == 2
        assert "`again` keeps the old one" in notices[0]

    def test_the_device_is_kept(self, targets):
        model = Net().to("meta")
        surgery.replace(model, {"fc": LINEAR}, targets.instantiate, place)
        assert model.fc.weight.is_meta

    @pytest.mark.parametrize(("asked", "remedy"), BAD_REPLACEMENTS.values(), ids=BAD_REPLACEMENTS)
    def test_what_cannot_be(self, targets, asked, remedy):
        with pytest.raises(ConfigError) as caught:
            surgery.replace(Net(), asked, targets.instantiate, place)
        assert remedy in str(caught.value.problems[0].help)
        assert caught.value.problems[0].place

    def test_what_is_no_module(self, targets):
        asked = {"fc": {"_target_": "torch.nn.Parameter"}}
        with pytest.raises(ConfigError, match=r"not a torch\.nn\.Module"):
            surgery.replace(Net(), asked, targets.instantiate, place)


CASES = {
    "all": (["**"], set()),
    "all but the head": (["**", "!fc.**"], {"fc.weight", "fc.bias"}),
    "by the alias": (["again.**"], {"body.0.weight", "body.0.bias"}),
    "biases": (["**.bias"], {"body.0.weight", "fc.weight"}),
    "a plain name": (["fc.bias"], {"body.0.weight", "body.0.bias", "fc.weight"}),
    "none": ([], {"body.0.weight", "body.0.bias", "fc.weight", "fc.bias"}),
}


class TestFreeze:
    @pytest.mark.parametrize(("patterns", "left"), CASES.values(), ids=CASES)
    def test_patterns(self, patterns, left):
        model = Net()
        notices = surgery.freeze(model, patterns, place)
        assert {name for name, p in model.named_parameters() if p.requires_grad} == left
        if patterns:
            assert notices[0].startswith(f"freeze: {4 - len(left)} of 4 parameters frozen")

    def test_values_are_counted(self):
        notices = surgery.freeze(Net(), ["fc.**"], place)
        assert notices == ["freeze: 2 of 4 parameters frozen (10 of 26 values)"]

    @pytest.mark.parametrize("patterns", [["fcc.**"], ["fc"], ["!**"]])
    def test_patterns_without_a_match(self, patterns):
        with pytest.raises(LayerError, match="parameter") as caught:
            surgery.freeze(Net(), patterns, place)
        assert caught.value.problems[0].place == place("freeze")


def test_cast_leaves_integers_complex_numbers_and_sharing():
    model = Net()
    model.register_buffer("count", torch.tensor(1))
    model.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
    surgery.cast(model, torch.float64)
    assert model.fc.weight.dtype == torch.float64
    assert model.count.dtype == torch.int64
    assert model.phase.dtype == torch.complex64
    assert model.again.weight is model.fc.weight


BAD_OPTIMIZERS = {
    "an unknown argument": ({"_target_": "torch.optim.SGD", "momentun": 1}, ConfigError),
    "a bad value": ({"_target_": "torch.optim.SGD", "lr": -1}, ModelError),
    "no optimizer": ({"_target_": "torch.nn.ParameterList"}, ConfigError),
    "unknown": ({"_target_": "torch.optim.Sdg"}, TargetError),
    "refused": ({"_target_": "os.system"}, TargetError),
    "no target": ({"lr": 0.1}, ConfigError),
    "no groups": ({"_target_": "torch.optim.SGD", "param_groups": "fc"}, ConfigError),
    "a group of no parameters": (
        {"_target_": "torch.optim.SGD", "param_groups": [{"params": "nothing"}]},
        LayerError,
    ),
    "a group of a number": (
        {"_target_": "torch.optim.SGD", "param_groups": [{"params": 1}]},
        ConfigError,
    ),
}


class TestOptimizers:
    def test_every_parameter_is_in_it(self, targets):
        model = Net()
        model.fc.weight.requires_grad_(False)
        asked = {"_target_": "torch.optim.SGD", "lr": 0.5, "momentum": 0.9}
        made = optimizer_maker(asked, targets, model)(model)
        assert isinstance(made, torch.optim.SGD)
        assert made.defaults["momentum"] == 0.9
        assert len(made.param_groups[0]["params"]) == 4

    def test_groups_by_pattern_and_the_rest_before_them(self, targets):
        model = Net()
        groups = [{"params": ["**.weight"], "lr": 0.2}, {"params": "fc.*", "lr": 0.3}]
        asked = {"_target_": "torch.optim.SGD", "lr": 0.1, "param_groups": groups}
        made = optimizer_maker(asked, targets, model)(model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        found = {group["lr"]: [names[p] for p in group["params"]] for group in made.param_groups}
        every = set(names.values())
        assert set(found[0.3]) == {"fc.weight", "fc.bias"}  # of two matches the last wins
        assert set(found[0.2]) == {n for n in every if n.endswith("weight")} - {"fc.weight"}
        assert set(found[0.1]) == every - set(found[0.2]) - set(found[0.3])

    def test_a_function_whose_first_argument_is_called_model_gets_it(self, tmp_path):
        (tmp_path / "optimizers.py").write_text(
            "import torch\n"
            "def scaled(model, lr):\n"
            "    return torch.optim.SGD([{'params': [p], 'lr': lr / p.shape[-1]}\n"
            "                            for p in model.fc.parameters()])\n"
        )
        asked = {"_target_": "./optimizers.py:scaled", "lr": 1.0}
        model = Net()
        made = optimizer_maker(asked, Targets(tmp_path), model)(model)
        assert [group["lr"] for group in made.param_groups] == [
            1 / p.shape[-1] for p in model.fc.parameters()
        ]

    def test_the_default(self):
        made = default_optimizer(Net())
        assert (type(made), made.defaults["lr"]) == (torch.optim.SGD, 0.01)

    @pytest.mark.parametrize(("asked", "kind"), BAD_OPTIMIZERS.values(), ids=BAD_OPTIMIZERS)
    def test_what_cannot_be(self, targets, asked, kind):
        with pytest.raises(kind) as caught:
            optimizer_maker(asked, targets, Net())
        assert caught.value.problems[0].place

    def test_no_parameters(self, targets):
        with pytest.raises(ConfigError, match="no parameters"):
            optimizer_maker({"_target_": "torch.optim.SGD", "lr": 1}, targets, nn.ReLU())
