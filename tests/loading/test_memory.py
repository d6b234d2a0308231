"""A model that cannot fit into memory is refused before it is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torchvision

from gradscope.config import loaded_config as config
from gradscope.errors import ConfigError
from gradscope.loading import specs as memory
from gradscope.loading.workload import load_model

BERT = Path(__file__).parents[2] / "configs" / "bert-tiny" / "config.json"


@pytest.fixture
def little(monkeypatch):
    """A machine with 40 MB."""
    monkeypatch.setattr(memory, "machine_memory", lambda: 40_000_000)


def refusal(model: object) -> str:
    with pytest.raises(ConfigError, match="does not fit into this machine's memory") as caught:
        load_model(config.read({"model": model}))
    return caught.value.problems[0].message


def test_what_a_library_would_build(little):
    resnet = torchvision.models.resnet18()
    count = sum(p.numel() for p in resnet.parameters())
    assert f"its {count:,} parameters take" in refusal("torchvision:resnet18")


@pytest.mark.parametrize(
    "model",
    [
        {"_target_": "torch.nn.Linear", "in_features": 10**4, "out_features": 10**4},
        {"_target_": "timm.create_model", "model_name": "resnet18"},
        {"_target_": "torch.nn.TransformerEncoderLayer", "d_model": 2048, "nhead": 2},
    ],
    ids=lambda model: model["_target_"],
)
def test_a_target(model, little):
    refusal(model)


def test_sizes_in_a_transformers_config(tmp_path):
    """More than any machine has."""
    (tmp_path / "config.json").write_text(
        json.dumps({**json.loads(BERT.read_text()), "vocab_size": 10**9, "hidden_size": 2 * 10**6})
    )
    assert "PiB, and there are" in refusal(f"hf:{tmp_path}")


def test_what_fits_is_built_from_the_same_seed(monkeypatch):
    read = config.read("torchvision:resnet18")
    measured = load_model(read)
    monkeypatch.setattr("gradscope.loading.specs.check_memory", lambda *args: None)
    plain = load_model(read)
    assert all(map(torch.equal, measured.parameters(), plain.parameters()))


def test_the_users_own_constructor_runs_once(little, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4000, 4000)\n"
        "        with open('count', 'a') as file:\n"
        "            print('built', file=file)\n"
    )
    load_model(config.read("./net.py:Net"))
    assert Path("count").read_text() == "built\n"


def test_on_meta_everything_fits(little):
    model = load_model(config.read("torchvision:resnet18", ["device=meta"]))
    assert next(model.parameters()).device.type == "meta"
