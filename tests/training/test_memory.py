"""The return of the heap's free memory to the system."""

from __future__ import annotations

import torch
from torch import nn

from gradscope.training import memory

MIB = 1 << 20


def test_the_heap_is_trimmed_only_when_a_large_process_has_grown(monkeypatch):
    trims, sizes = [], [100, 600, 600, 610, 580, 640, 640, 665, 700, 4000, 4060, 4090]
    heap = memory.Heap()
    for size in sizes:
        monkeypatch.setattr(memory, "_resident", lambda size=size: size * MIB)
        monkeypatch.setattr(memory, "_trim", lambda size=size: trims.append(size))
        heap.give_back()
    # Growth by 32 MiB, or by 2 % of a larger process.
    assert trims == [600, 640, 700, 4000, 4090]


def test_a_process_that_was_large_before_the_first_sample_is_not_trimmed(monkeypatch):
    trims, heap = [], memory.Heap()
    monkeypatch.setattr(memory, "_trim", lambda: trims.append(1))
    for size in (900, 910):
        monkeypatch.setattr(memory, "_resident", lambda size=size: size * MIB)
        heap.sample_begins()
        heap.give_back()
    assert not trims


def test_copies_are_exact_and_share_no_memory():
    # Together more than a MiB; some dtypes, an empty and a 0-dim one, other orders of memory.
    plain = [torch.randn(300_000), torch.randn(3).bfloat16(), torch.ones(()), torch.empty(0)]
    image = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    complex_one = torch.randn(5, dtype=torch.complex128)
    values = [*plain, image, complex_one, torch.randn(7, 3).T, torch.randn(2, 2).to_sparse()]
    weights = [nn.Parameter(value) for value in values]
    copies = memory.weight_copies(weights, 0)
    assert [*map(id, copies)] == [*map(id, weights)]
    for weight, value in zip(weights, values, strict=True):
        with torch.no_grad():
            kept = copies[weight].clone()
            weight.zero_()
        assert torch.equal(kept.to_dense(), copies[weight].to_dense())
        assert kept.shape == value.shape and kept.dtype == value.dtype
        assert kept.is_sparse or copies[weight].stride() == value.stride()
        assert kept.numel() == 0 or bool(kept.to_dense().any())
