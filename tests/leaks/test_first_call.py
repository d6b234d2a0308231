"""A leak is found, named by its operation and line, and a sound twin is clean."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradscope


class Attention(nn.Module):
    """One head; ``masked`` hides what comes later."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.qkv, self.masked = nn.Linear(16, 48), masked

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / 4
        if self.masked:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        weights = scores.softmax(-1)
        return weights @ v


class Decoder(nn.Module):
    """Two layers; ``masked`` says it of the second."""

    def __init__(self, masked: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.layers = nn.ModuleList([Attention(True), Attention(masked)])
        self.head = nn.Linear(16, 40)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(40, (2, 10), generator=torch.Generator().manual_seed(0))


def verdicts(report) -> dict[str, str]:
    return {one.axis: one.verdict for one in report.axes}


def test_a_masked_decoder_is_clean(ids):
    report = gradscope.leaks(Decoder(), ids, causal=True)
    assert report.status == "ok"
    assert verdicts(report)["time"] == verdicts(report)["batch"] == "clean"
    assert report.forwards <= 6
    assert report.backwards <= 2


def test_a_missing_mask_is_named_with_its_line(ids):
    report = gradscope.leaks(Decoder(masked=False), ids, causal=True)
    (leak,) = report.leaks
    assert (leak.axis, leak.code, leak.layer, leak.operation) == (
        *("time", "GS901"),
        *("layers.1", "softmax"),
    )
    assert leak.source is not None
    assert leak.source.text == "weights = scores.softmax(-1)"
    assert leak.reach == "9 tokens ahead"
    assert leak.finite and leak.gradient
    assert "line" not in leak.message


def test_the_model_is_left_as_it_was(ids):
    model = Decoder(masked=False).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    gradscope.leaks(model, ids, causal=True)
    assert model.training and all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
