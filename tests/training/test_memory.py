"""The return of the heap's free memory to the system."""

from __future__ import annotations

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
