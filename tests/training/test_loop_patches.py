"""Functions of PyTorch that are replaced while a loop is observed, as the script sees them."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
import torch
import torch.nn.functional as F

from gradscope.training.loop.patches import observe_loop


def divergence(given: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.kl_div(given, target, reduction="batchmean")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_a_script_is_compiled_with_pytorchs_own():
    target = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    given = target.flip(0).log()
    expected = divergence(given, target)
    observer = MagicMock()
    with observe_loop(observer):
        compiled = torch.jit.script(divergence)
        assert torch.equal(compiled(given, target), expected)
        observer.diverged.assert_not_called()
        assert torch.equal(divergence(given, target), expected)
    observer.diverged.assert_called_once()


def test_arguments_may_be_given_by_name():
    value, distribution = torch.tensor(0.5), torch.distributions.Normal(0.0, 1.0)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight]), torch.amp.GradScaler("cpu")
    expected = distribution.log_prob(value)
    observer = MagicMock()
    with observe_loop(observer):
        assert torch.equal(distribution.log_prob(value=value), expected)
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer=optimizer)
    observer.scored.assert_called_once_with(distribution, value)
    observer.unscaled.assert_called_once_with(optimizer)
