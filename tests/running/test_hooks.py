"""Hooks that wait for a complete gradient see the user's step once, and nothing of full samples."""

from __future__ import annotations

import torch
from torch import nn

import gradscope
from gradscope.running.state import post_accumulate_hooks_disabled


class Clipped(nn.Module):
    """A dead ReLU, which asks for a full sample."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        nn.init.constant_(self.body.bias, -100.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())


def test_a_closer_look_calls_no_post_accumulate_hook() -> None:
    torch.manual_seed(0)
    model, calls = Clipped(), []
    handles = [p.register_post_accumulate_grad_hook(calls.append) for p in model.parameters()]
    report = gradscope.check(model, torch.randn(5, 4))
    assert {finding.code for finding in report.findings} >= {"GS103"}
    assert len(calls) == 4
    calls.clear()
    assert gradscope.why(model, torch.randn(5, 4)).answers
    assert len(calls) == 4
    model(torch.randn(5, 4)).sum().backward()
    assert len(calls) == 8
    for handle in handles:
        handle.remove()
    model(torch.randn(5, 4)).sum().backward()
    assert len(calls) == 8


def test_they_come_back_after_an_error() -> None:
    model, calls = nn.Linear(2, 1), []
    model.weight.register_post_accumulate_grad_hook(calls.append)
    try:
        with post_accumulate_hooks_disabled(model):
            model(torch.ones(1, 2)).sum().backward()
            raise KeyError
    except KeyError:
        pass
    assert calls == []
    model(torch.ones(1, 2)).sum().backward()
    assert len(calls) == 1
