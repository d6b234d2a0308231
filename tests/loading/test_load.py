"""A full config to a workload: the order of things, what is reported, what is kept."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from gradscope.config.loaded_config import read
from gradscope.errors import ConfigError, GradscopeError, LayerError, OptionError, TargetError
from gradscope.loading.workload import Workload, load, load_model

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, dtype=None):
        super().__init__()
        self.body = nn.Linear(3, width, dtype=dtype and getattr(torch, dtype))
        self.fc = nn.Linear(width, 2, dtype=dtype and getattr(torch, dtype))
        self.drawn = torch.rand(1).item()

    def forward(self, x):
        return self.fc(self.body(x))

class Half(Net):
    def __init__(self):
        super().__init__(dtype="float64")
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes a config beside net.py and loads it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)

    def loaded(text: str, *overrides: str, allow=(), **options) -> Workload:
        (tmp_path / "model.yaml").write_text(textwrap.dedent(text))
        return load(read("model.yaml", overrides, options=options), allow)

    return loaded


PLAIN = "model: ./net.py:Net\ninput: {shape: [2, 3]}\n"


def test_the_least(config):
    work = config(PLAIN)
    assert type(work.model).__name__ == "Net"
    assert work.model.training
    assert (work.steps, work.repeats, work.seed, work.mode) == (1, 1, 0, "train")
    assert work.make_optimizer is None
    assert work.layers == ("**",)
    batch = next(work.batches())
    output = work.model(*batch.args, **batch.kwargs)
    assert work.criterion(output, batch.target).ndim == 0


def test_the_demo():
    work = load(read(None))
    batch = next(work.batches())
    assert work.model(*batch.args).shape == (1, 10)
    assert any("weights" in notice for notice in work.notices)
    assert work.config["weights"] == "DEFAULT"


def test_the_seed_holds_for_construction(config):
    first, again, other = (config(PLAIN, f"seed={seed}") for seed in (1, 1, 2))
    assert first.model.drawn == again.model.drawn != other.model.drawn


def test_the_checkpoint_comes_after_the_replacement(config, tmp_path):
    state = {"body.weight": torch.ones(4, 3), "body.bias": torch.ones(4)}
    state |= {"fc.weight": torch.ones(7, 4), "fc.bias": torch.ones(7)}
    safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
    work = config(
        PLAIN
        + """
checkpoint: weights.safetensors
replace: {fc: {_target_: torch.nn.Linear, in_features: 4, out_features: 7}}
freeze: ["**", "!fc.**"]
mode: eval
"""
    )
    assert torch.equal(work.model.fc.weight, torch.ones(7, 4))
    trainable = [name for name, p in work.model.named_parameters() if p.requires_grad]
    assert trainable == ["fc.weight", "fc.bias"]
    assert not work.model.training
    assert "replace: fc is now Linear" in work.notices
    assert any(n.startswith("freeze: 2 of 4 parameters frozen") for n in work.notices)


def test_modules_stay_in_eval_mode_each_without_those_in_it(config):
    work = config(PLAIN, "eval_modules=['', body]")
    assert not work.model.training
    assert [m.training for m in (work.model.body, work.model.fc)] == [False, True]
    assert "eval_modules: 2 modules in eval mode" in work.notices
    with pytest.raises(LayerError):
        config(PLAIN, "eval_modules=[nothing]")


class TestDtype:
    def test_a_checkpoint_keeps_its_values(self, config, tmp_path):
        model = config(PLAIN, "dtype=float64").model
        state = {n: torch.randn_like(p) for n, p in model.named_parameters()}
        safetensors.torch.save_file(state, tmp_path / "weights.safetensors")
        work = config(PLAIN, "dtype=float64", "checkpoint=weights.safetensors")
        assert all(torch.equal(p, state[n]) for n, p in work.model.named_parameters())
        assert not any("cast" in notice for notice in work.notices)

    def test_it_is_applied_to_all(self, config):
        work = config(PLAIN, "dtype=float64")
        assert work.model.fc.weight.dtype == torch.float64
        assert next(work.batches()).args[0].dtype == torch.float64

    def test_a_model_of_ones_own_keeps_its_own(self, config):
        work = config(PLAIN, "model=./net.py:Half")
        assert work.dtype == work.model.fc.weight.dtype == torch.float64
        assert next(work.batches()).args[0].dtype == torch.float64
        assert "dtype: float64, the model's own" in work.notices
        assert work.config["dtype"] == "float64"

    def test_unless_told(self, config):
        work = config(PLAIN, "model=./net.py:Half", "dtype=float32")
        assert work.model.fc.weight.dtype == torch.float32


class TestOptimizer:
    def test_none_without_steps(self, config):
        assert config(PLAIN).config["optimizer"] is None

    @pytest.mark.parametrize("steps", [1, 3])
    def test_steps_take_the_default_and_say_so(self, config, steps):
        work = config(PLAIN, steps=steps)
        assert work.make_optimizer is not None
        made = work.make_optimizer(work.model)
        assert (type(made), made.defaults["lr"]) == (torch.optim.SGD, 0.01)
        assert any("SGD, lr 0.01" in notice for notice in work.notices)
        assert work.config["optimizer"] == {"_target_": "torch.optim.SGD", "lr": 0.01}

    def test_one_that_is_configured(self, config):
        work = config(PLAIN, "optimizer={_target_: torch.optim.Adam, lr: 0.5}")
        assert work.make_optimizer is not None
        assert isinstance(work.make_optimizer(work.model), torch.optim.Adam)


def test_meta(config):
    work = config(PLAIN, "device=meta")
    batch = next(work.batches())
    assert work.model(*batch.args).is_meta
    assert work.config["device"] == "meta"


@pytest.mark.parametrize("gradient", ["[100, 0.1]", "{values: [100, 0.1]}"])
def test_an_external_gradient(config, gradient):
    work = config(PLAIN, f"backward={{gradient: {gradient}, repeats: 2, retain_graph: true}}")
    assert work.gradient.flatten().tolist() == pytest.approx([100, 0.1])
    assert (work.repeats, work.retain_graph) == (2, True)


def test_the_resolved_config_is_plain_json(config):
    work = config(PLAIN, "model.width=5", "freeze=[fc.**]", "steps=2")
    back = json.loads(json.dumps(work.config, allow_nan=False))
    assert back == work.config
    assert set(back) == set(type(read(None).config).model_fields)
    assert back["device"] in ("cpu", "cuda")
    assert back["model"]["width"] == 5


def test_a_function_as_the_loss(config, tmp_path):
    (tmp_path / "lossfile.py").write_text(
        "def half(output, scale=2): return output.sum() / scale\n"
    )
    work = config(PLAIN, "loss={_target_: ./lossfile.py:half, scale: 4}")
    output = torch.ones(2, 2)
    assert work.criterion(output, None).item() == 1


def test_a_named_loss_with_arguments(config):
    work = config(PLAIN, "loss={_target_: cross_entropy, label_smoothing: 0.1}", "target=[0, 1]")
    batch = next(work.batches())
    assert work.criterion(work.model(*batch.args), batch.target).ndim == 0


def test_every_bad_name_at_once(config):
    with pytest.raises(TargetError) as caught:
        config(
            """
            model: torchvision:resnet81
            input: {shape: [2, 3]}
            optimizer: {_target_: torch.optim.Sdg, lr: 0.1}
            replace: {fc: {_target_: os.system}}
            """
        )
    assert len(caught.value.problems) == 3
    lines = [p.place.line for p in caught.value.problems if p.place]
    assert sorted(filter(None, lines)) == [2, 4, 5]


def test_a_class_that_a_file_lacks_is_named_before_the_file_runs(config):
    Path("net.py").write_text("raise SystemExit(3)\nclass Net: ...\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"`\./net\.py` has no `Nett`"):
        config("model: ./net.py:Nett\n")


BAD = {
    "a device": (["device=cuda:99"], OptionError),
    "a checkpoint": (["checkpoint=nothing.pt"], ConfigError),
    "a pattern": (["freeze=[nothing]"], LayerError),
    "a model": (["model=torchvision:resnet81"], TargetError),
    "weights": (["weights=DEFAULT"], ConfigError),
    "an argument": (["model.widht=3"], ConfigError),
}


@pytest.mark.parametrize(("overrides", "kind"), BAD.values(), ids=BAD)
def test_what_is_wrong_ends_with_2_and_a_place(config, overrides, kind):
    with pytest.raises(kind) as caught:
        config(PLAIN, *overrides)
    assert caught.value.exit_code == 2
    assert caught.value.problems[0].place


def test_allow_by_argument_and_by_environment(config, monkeypatch):
    bad = "model={_target_: fractions.Fraction}"
    with pytest.raises(GradscopeError, match="may not be imported"):
        config(PLAIN, bad)
    with pytest.raises(TargetError, match=r"torch\.nn\.Module"):
        config(PLAIN, bad, allow=["fractions.*"])
    monkeypatch.setenv("GRADSCOPE_ALLOW", "other.*, fractions.*")
    with pytest.raises(TargetError, match=r"torch\.nn\.Module"):
        config(PLAIN, bad)


def test_nothing_in_a_config_can_allow(config):
    with pytest.raises(ConfigError):
        config(PLAIN, "allow=[os.*]")


def test_a_model_without_parameters(config):
    work = config("model: {_target_: torch.nn.ReLU}\ninput: {shape: [2]}\n", steps=2)
    assert isinstance(work.model, nn.ReLU)
    assert work.make_optimizer is None


def test_a_model_alone_needs_no_input(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = torch.nn.Linear(3, 2)\n"
    )
    (tmp_path / "c.yaml").write_text("model: ./own.py:Net\nfreeze: [inner.bias]\n")
    model = load_model(read(str(tmp_path / "c.yaml")))
    assert [(n, p.requires_grad) for n, p in model.named_parameters()] == [
        ("inner.weight", True),
        ("inner.bias", False),
    ]
