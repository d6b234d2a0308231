"""Measures the cost of ``gradscope graph`` per node, from a thousand nodes to a million.

``python -m tests.benchmarks.graph`` records the graph of a chain of additions and renders it for
the terminal, sizes in turn so that a machine whose speed drifts slows all of them alike, and prints
each size's time for one node and its ratio to that of ten thousand. Each measurement is a process
of its own, so that none inherits another's memory.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BASE = 10_000


def measure(size: int) -> None:
    """Print, of one graph: seconds to record it, seconds to render it, mebibytes at the peak."""
    import torch
    from torch import nn

    import gradscope
    from gradscope.diagrams import GraphView, terminal

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.weight * 1
            for _ in range(size):
                y = y + x
            return y

    gradscope.graph(nn.Linear(1, 1), torch.ones(1, 1))  # what is only done once
    began = time.perf_counter()
    graph = gradscope.graph(Chain(), torch.ones(()), loss="sum")
    recorded = time.perf_counter()
    terminal.render(graph, GraphView(width=100))
    rendered = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(recorded - began, rendered - recorded, peak)


def run(size: int) -> tuple[float, float, float]:
    """The three figures from its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.graph", "--one", str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    record, render, peak = map(float, done.stdout.split())
    return record, render, peak


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure(arguments.one)
        return
    taken = {size: [] for size in SIZES}  # type: dict[int, list[tuple[float, float, float]]]
    for _ in range(arguments.rounds):
        for size in SIZES:
            taken[size].append(run(size))
    middle = {
        size: [statistics.median(column) for column in zip(*rows, strict=True)]
        for size, rows in taken.items()
    }
    base = sum(middle[BASE][:2]) / BASE
    print(f"{'nodes':>9}  {'record µs':>9}  {'render µs':>9}  {'ratio':>5}  {'peak MiB':>8}")
    for size, (record, render, peak) in middle.items():
        each = (record + render) / size
        print(
            f"{size:>9}  {1e6 * record / size:>9.1f}  {1e6 * render / size:>9.1f}"
            f"  {each / base:>5.2f}  {peak:>8.0f}"
        )


if __name__ == "__main__":
    main()
