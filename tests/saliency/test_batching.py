"""The batches that perturbed inputs run in: chosen by measurement, and without a say in results."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from gradscope.errors import OptionError
from gradscope.progress import handled_by
from gradscope.saliency import _batching
from gradscope.saliency._batching import Batches, is_out_of_memory, shares_statistics

ITEMS = torch.arange(300.0)


class Model:
    """A run whose time, by the clock that it turns itself, is what a test says."""

    def __init__(self, monkeypatch, seconds, *, room=10**9, layouts=None):
        self.now, self.seconds, self.room, self.layouts = 0.0, seconds, room, layouts or {}
        self.sizes = []
        monkeypatch.setattr(_batching.time, "perf_counter", lambda: self.now)

    def make(self, items):
        return ITEMS[items].view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous()

    def __call__(self, inputs, items):
        if len(inputs) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        last = inputs.is_contiguous(memory_format=torch.channels_last)
        self.sizes.append(len(inputs))
        self.now += self.seconds(len(inputs)) * (self.layouts.get("last", 1.0) if last else 1.0)
        return inputs.mean((1, 2, 3))


def plain():
    return nn.Linear(1, 1)


def test_a_device_that_gains_gets_large_batches(monkeypatch):
    run = Model(monkeypatch, lambda size: 1 + 0.01 * size)
    batches = Batches(plain())
    assert torch.equal(batches.scores(run.make, run, 300), ITEMS)
    assert batches.size == 32  # the largest on a CPU


def test_a_device_that_loses_stays_at_one(monkeypatch):
    run = Model(monkeypatch, lambda size: size**1.3)
    batches = Batches(plain())
    assert torch.equal(batches.scores(run.make, run, 300), ITEMS)
    assert batches.size == 1
    assert max(run.sizes) <= 4


def test_the_best_lies_in_between(monkeypatch):
    run = Model(monkeypatch, lambda size: 4 + size + 0.1 * size**2)
    batches = Batches(plain())
    batches.scores(run.make, run, 300)
    assert batches.size in (4, 8)


def test_what_was_measured_serves_the_next_method(monkeypatch):
    run = Model(monkeypatch, lambda size: size**1.3)
    batches = Batches(plain())
    batches.scores(run.make, run, 100)
    run.sizes.clear()
    batches.scores(run.make, run, 10)
    assert run.sizes == [1] * 10


def test_hardly_a_pass_is_wasted(monkeypatch):
    run = Model(monkeypatch, lambda size: 1 + 0.01 * size)
    Batches(plain()).scores(run.make, run, 300)
    assert sum(run.sizes) == 302  # the pair that is compared with its items alone


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 31, 64])
def test_every_item_is_scored_in_its_place(monkeypatch, count):
    run = Model(monkeypatch, lambda size: 1.0)
    assert torch.equal(Batches(plain()).scores(run.make, run, count), ITEMS[:count])


def test_the_faster_layout_is_kept(monkeypatch):
    run = Model(monkeypatch, lambda size: 1 + size, layouts={"last": 0.5})
    batches = Batches(plain())
    assert torch.equal(batches.scores(run.make, run, 300), ITEMS)
    assert batches.layout is torch.channels_last


def test_the_slower_layout_is_not_kept(monkeypatch):
    run = Model(monkeypatch, lambda size: 1 + size, layouts={"last": 1.1})
    batches = Batches(plain())
    batches.scores(run.make, run, 300)
    assert batches.layout is torch.contiguous_format


def test_a_model_that_only_one_layout_suits(monkeypatch):
    run = Model(monkeypatch, lambda size: 1 + size)

    def views(inputs, items):
        inputs.view(len(inputs), -1)
        return run(inputs, items)

    batches = Batches(plain())
    assert torch.equal(batches.scores(run.make, views, 300), ITEMS)
    assert batches.layout is torch.contiguous_format


def test_memory_that_ends_while_measuring(monkeypatch):
    run = Model(monkeypatch, lambda size: 1 + 0.01 * size, room=9)
    batches = Batches(plain())
    assert torch.equal(batches.scores(run.make, run, 300), ITEMS)
    assert batches.size == 8


def test_memory_that_ends_later(monkeypatch):
    run = Model(monkeypatch, lambda size: 1.0, room=5)
    batches = Batches(plain())
    batches.size = 32
    assert torch.equal(batches.scores(run.make, run, 300), ITEMS)
    assert batches.size == 4


def test_memory_that_does_not_suffice_for_one(monkeypatch):
    run = Model(monkeypatch, lambda size: 1.0, room=0)
    with pytest.raises(torch.OutOfMemoryError):
        Batches(plain()).scores(run.make, run, 300)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_out_of_memory_is_told_from_other_errors(error, memory):
    assert is_out_of_memory(error) is memory


def test_an_error_of_the_models_is_not_swallowed(monkeypatch):
    run = Model(monkeypatch, lambda size: 1.0)

    def fails(inputs, items):
        if items.start >= 40:
            raise RuntimeError("shapes do not fit")
        return run(inputs, items)

    with pytest.raises(RuntimeError, match="do not fit"):
        Batches(plain()).scores(run.make, fails, 300)


def test_a_model_that_looks_at_its_neighbours_runs_one_by_one(monkeypatch):
    run = Model(monkeypatch, lambda size: 1.0)

    def centred(inputs, items):
        scores = run(inputs, items)
        return scores - scores.mean() if len(scores) > 1 else scores

    batches = Batches(plain())
    assert torch.equal(batches.scores(run.make, centred, 50), ITEMS[:50])
    assert batches.single


def test_batch_normalisation_that_reads_the_batch():
    evaluating = nn.Sequential(nn.BatchNorm2d(3)).eval()
    assert shares_statistics(evaluating) is None
    without = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)).eval()
    assert "`0`" in str(shares_statistics(without))
    with pytest.raises(OptionError, match="`0` normalises by the batch"):
        shares_statistics(nn.Sequential(nn.BatchNorm2d(3)))


def test_normalising_by_the_batch_runs_one_by_one():
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten()).eval()
    x = torch.randn(40, 3, 2, 2)
    scores = Batches(net).scores(lambda s: x[s], lambda made, s: net(made)[:, 0], 40)
    alone = torch.cat([net(one[None])[:, 0] for one in x])
    assert torch.allclose(scores, alone)


def test_the_scores_may_be_computed_with():
    weight = torch.ones((), requires_grad=True)
    scores = Batches(plain()).scores(lambda s: ITEMS[s], lambda made, s: made, 5)
    (scores * weight).sum().backward()
    assert weight.grad == 10


def test_progress_is_told():
    calls = []
    with handled_by(lambda stage: calls.append((stage.done, stage.total))):
        Batches(plain()).scores(lambda s: ITEMS[s], lambda made, s: made, 20)
    assert calls[-1] == (20, 20)
    assert all(a < b for a, b in itertools.pairwise(calls))


def test_large_pictures_come_in_small_batches(monkeypatch):
    run = Model(monkeypatch, lambda size: 1 + 0.01 * size)
    small = run.make
    monkeypatch.setattr(
        run, "make", lambda items: small(items).expand(-1, -1, 2, 2).repeat(1, 1, 112, 112)
    )
    batches = Batches(plain())
    batches.scores(run.make, run, 60)
    assert batches.size == 8
