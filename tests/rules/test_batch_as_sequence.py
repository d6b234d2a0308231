"""GS509 is silent where the sequence comes first on purpose."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradscope


class Recurrent(nn.Module):
    """A recurrent layer on [T, N, F], or on [N, T, F] that it transposes itself."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.rnn, self.head = way, nn.GRU(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "transposed":
            return self.head(self.rnn(x.transpose(0, 1))[0][-1])
        states = self.rnn(x)[0]
        return self.head(states if self.way == "every" else states[-1])


@pytest.mark.parametrize("way", ["last", "every", "transposed"])
def test_a_sequence_that_comes_first_is_no_mistake(way: str) -> None:
    found = gradscope.check(Recurrent(way), torch.randn(5, 7, 6)).findings
    assert "GS509" not in [one.code for one in found]
