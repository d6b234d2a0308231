"""What the sentinel costs on a plain step, side by side with the same step without it.

Run: ``python -m tests.benchmarks.sentinel``. The step of a small MLP with its optimizer is the
hardest case, for there the models compute next to nothing. Blocks of plain and watched steps
alternate, in CPU time, so that a busy machine slows down both.
"""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn

from gradscope.training.sentinel.sentinel import Sentinel

ROUNDS, BLOCK = 300, 10


def main() -> None:
    """Print both, and what is added."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    optimizer = torch.optim.Adam(net.parameters())
    x, y = torch.randn(16, 16), torch.randint(0, 4, (16,))
    sentinel = Sentinel(lambda: [("net", net)])

    def plain() -> None:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def watched() -> None:
        sentinel.call_began("net", net, (x,), {})
        out = net(x)
        sentinel.call_ended("net", net, out)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        sentinel.backward_begins([loss], [None])
        loss.backward()
        optimizer.step()
        sentinel.step_ended()

    times: dict[str, list[float]] = {"plain": [], "watched": []}
    for _ in range(ROUNDS):
        for step in (plain, watched):
            began = time.process_time()
            for _ in range(BLOCK):
                step()
            times[step.__name__].append((time.process_time() - began) / BLOCK * 1e6)
    before, after = (median(times[name]) for name in ("plain", "watched"))
    print(f"plain {before:.0f} µs, watched {after:.0f} µs: {after - before:+.0f} µs a step")
    print(f"ratio {after / before:.3f}")


if __name__ == "__main__":
    main()
