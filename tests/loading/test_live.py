"""The arguments that come with a live model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradscope
from gradscope.errors import OptionError

BAD = {
    "mode": ("tain", "did you mean `train`?"),
    "seed": ("a", "an integer from 0"),
    "loss": (5, "a built-in's name or something to call"),
    "autocast": (16, "`bfloat16` or `float16`"),
}
ONLY_INSPECT = {
    "steps": (0, "an integer from 1"),
    "repeats": (1.5, "an integer from 1"),
    "retain_graph": ("yes", "True or False"),
    "optimizer": (0.1, "torch.optim.SGD"),
}


@pytest.mark.parametrize("name", [*BAD, *ONLY_INSPECT])
def test_a_wrong_argument_is_refused_by_name(name: str) -> None:
    wish, said = {**BAD, **ONLY_INSPECT}[name]
    for look in (
        [gradscope.inspect] if name in ONLY_INSPECT else [gradscope.inspect, gradscope.graph]
    ):
        with pytest.raises(OptionError) as caught:
            look(nn.Linear(3, 3), torch.randn(2, 3), **{name: wish})  # type: ignore[operator]
        assert f"`{name}` is {wish!r}" in caught.value.render()
        assert said in caught.value.render()


@pytest.mark.parametrize("seed", [True, -1, 2**32])
def test_a_seed_is_a_whole_number(seed: int) -> None:
    with pytest.raises(OptionError, match="`seed`"):
        gradscope.graph(nn.Linear(3, 3), torch.randn(2, 3), loss="sum", seed=seed)


def test_what_is_right_is_taken() -> None:
    graph = gradscope.graph(nn.Linear(3, 3), torch.randn(2, 3), loss="sum", mode="eval", seed=3)
    assert (graph.run.mode, graph.run.seed) == ("eval", 3)
