"""torch's optimizers by short names."""

from __future__ import annotations

import inspect

import pytest
import torch

import gradscope
from gradscope.config import loaded_config as config
from gradscope.config.targets import OPTIMIZERS
from gradscope.errors import ConfigError, TargetError, did_you_mean


@pytest.mark.parametrize("name", ["adam", "Adam", "ADAM"])
def test_a_name_in_any_case(name: str) -> None:
    assert config.read("demo", [f"optimizer={name}"]).config.optimizer == {
        "_target_": "torch.optim.Adam"
    }


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer={_target_: adamw, lr: 0.1}"],
        ["optimizer={class_path: adamw, init_args: {lr: 0.1}}"],
        ["optimizer=adamw", "optimizer.lr=0.1"],
    ],
)
def test_with_arguments(overrides: list[str]) -> None:
    found = config.read("demo", overrides).config.optimizer
    assert found == {"_target_": "torch.optim.AdamW", "lr": 0.1}


def test_each_name_is_an_optimizer_of_torch_and_none_is_missing() -> None:
    public = {
        f"torch.optim.{name}"
        for name, made in vars(torch.optim).items()
        if inspect.isclass(made) and issubclass(made, torch.optim.Optimizer)
    } - {"torch.optim.Optimizer"}
    assert public <= set(OPTIMIZERS.values())
    # Muon is younger than the oldest torch that is supported.
    assert set(OPTIMIZERS.values()) - public <= {"torch.optim.Muon"}


def test_a_name_that_is_close() -> None:
    with pytest.raises(ConfigError) as error:
        config.read("demo", ["optimizer=adamm"])
    assert "`adam`" in str(error.value.problems[0].help)


def test_the_same_name_in_other_letters_is_the_closest() -> None:
    """``Adam`` has more letters in common with ``Adamw`` than ``AdamW`` has."""
    with pytest.raises(TargetError) as caught:
        gradscope.inspect("demo", overrides=["optimizer={_target_: torch.optim.Adamw}"])
    (problem,) = caught.value.problems
    assert problem.message == "`torch.optim` has no `Adamw`"
    assert problem.help == "did you mean `AdamW`?"
    choices = ["Adam", "AdamW", "Adamax"]
    assert did_you_mean("adamW", choices, count=2) == "did you mean `AdamW` or `Adam`?"
    assert did_you_mean("adma", ["adam"]) == "did you mean `adam`?"
    assert did_you_mean("sgd", choices) is None
