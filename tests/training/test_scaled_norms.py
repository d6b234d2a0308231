"""With a gradient scaler both norms of a step are those of the loss without its factor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradscope.records.training import TrainingStep
from gradscope.training.observer import Observer
from gradscope.training.sample_schedule import Schedule


def raised(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("unscales", [False, True])
def test_norms_before_and_after_clipping(clip: float | None, unscales: bool) -> None:
    if clip is not None and not unscales:
        return  # that is GS808
    torch.manual_seed(0)
    net, x = nn.Linear(4, 2), torch.randn(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    steps: list[TrainingStep] = []

    def write(*records: object) -> None:
        steps.extend(one for one in records if isinstance(one, TrainingStep))

    observer = Observer(write, lambda *_: None, lambda _: None, Schedule(every=2), failed=raised)
    observer.start()
    try:
        observer.adopt()
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(net(x).square().mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
    finally:
        observer.stop()
    optimizer.zero_grad()
    net(x).square().mean().backward()
    norm = float(torch.stack([p.grad.norm() for p in net.parameters()]).norm())
    assert [one.gradient_norm for one in steps] == pytest.approx([norm] * 4, rel=1e-5)
    assert [one.clipped_norm for one in steps] == pytest.approx([clip or norm] * 4, rel=1e-3)
