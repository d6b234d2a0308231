"""Steps of which no step metrics are recorded, as to record all would take too long."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradscope
from gradscope.runfile.reader import RunFile
from gradscope.training import metrics_schedule
from gradscope.training.metrics_schedule import Frequency

SELDOM = 9


@pytest.fixture(autouse=True)
def seldom(monkeypatch):
    """As if to record a step took most of the budget."""
    monkeypatch.setattr(metrics_schedule, "MEASURED", 1)
    monkeypatch.setattr(Frequency, "renew", lambda self: setattr(self, "every", SELDOM))


def train(path, steps, *, spike=None, two=False):
    """``spike`` is the step whose loss is a hundred times that of the others."""
    torch.manual_seed(0)
    nets = [nn.Linear(4, 1) for _ in range(1 + two)]
    kinds = torch.optim.SGD, torch.optim.Adam
    optimizers = [kind(net.parameters(), lr=1e-6) for net, kind in zip(nets, kinds, strict=False)]
    x = torch.randn(8, 4)
    with gradscope.watch(*([nets] if two else nets), out=path, first=0, budget=1e-9) as run:
        for step in range(1, steps + 1):
            turn = step % len(nets)
            optimizers[turn].zero_grad()
            scale = 100.0 if step == spike else 1.0
            (nets[turn](x).square().mean() * scale).backward()
            optimizers[turn].step()
    assert run.steps == steps
    with RunFile.open(path) as file:
        return file.run, file.steps()


def test_the_last_step_is_there_and_the_run_says_how_many_are_not(tmp_path):
    run, steps = train(tmp_path / "run.db", 200)
    assert run.steps == 200
    assert steps[-1].step == 200
    assert 200 / SELDOM < len(steps) < 2 * 200 / SELDOM
    assert any(f"Metrics kept for 1 step in {SELDOM} (" in notice for notice in run.notices)


@pytest.mark.slow
def test_optimizers_that_take_turns_are_both_there(tmp_path):
    _, steps = train(tmp_path / "run.db", 400, two=True)
    names = [step.optimizer for step in steps]
    assert all(names.count(name) / len(names) > 0.4 for name in ("SGD", "Adam"))


@pytest.mark.slow
@pytest.mark.parametrize("step", range(150, 150 + SELDOM))
def test_a_step_that_stands_out_is_there(step, tmp_path):
    _, steps = train(tmp_path / "run.db", 170, spike=step)
    (found,) = (one for one in steps if one.step == step)
    assert found.loss is not None
    assert found.loss > 50 * steps[0].loss
