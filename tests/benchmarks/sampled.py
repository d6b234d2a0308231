"""Measures a sampled training step: processor time, page faults and memory, beside plain steps.

``python -m tests.benchmarks.sampled`` trains the GPT of 6 layers with AdamW in one process and one
thread. Rounds of plain steps alternate with rounds under ``gradscope.watch(…, every=1)``, in which
each step has all figures: calls, gradients, the optimizer's step, attention, residual stream. The
first three steps of a round are left out, because gradscope replays them.

``--layers 14 --width 512`` trains the larger one of the same form; ``--gpt2`` trains GPT-2 of 124
million parameters on 1 × 512 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradscope
from tests.benchmarks.training import _GPT

_LEFT_OUT = 3


def gpt(layers: int, width: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """The GPT of the training benchmark, and its loss on a new batch of 4 × 128 tokens."""
    made: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(_GPT.replace("model = GPT()", ""), made)
    model = made["GPT"](d=width, layers=layers)

    def loss() -> torch.Tensor:
        inputs, of = made["batch"]()
        return of(model(inputs))

    return model, loss


def gpt2() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """GPT-2 of transformers, and its loss on new tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).train()

    def loss() -> torch.Tensor:
        words = torch.randint(50257, (1, 512))
        return model(input_ids=words, labels=words).loss

    return model, loss


def median(step: Callable[[], None], steps: int) -> tuple[float, int]:
    """The median of the processor's seconds of a step, and of its page faults."""
    seconds, faults = [], []
    for _ in range(steps):
        began, before = time.process_time(), _faults()
        step()
        seconds.append(time.process_time() - began)
        faults.append(_faults() - before)
    return statistics.median(seconds), int(statistics.median(faults))


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8, help="of each kind in a round")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--gpt2", action="store_true", help="GPT-2 instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, loss = gpt2() if given.gpt2 else gpt(given.layers, given.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    median(step, 2)
    ratios = []
    for number in range(given.rounds):
        plain, faults = median(step, given.steps)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            out = Path(folder, "run.db")
            with gradscope.watch(model, optimizer, every=1, out=str(out)):
                median(step, _LEFT_OUT)
                sampled, more = median(step, given.steps)
        ratios.append(sampled / plain)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(
            f"round {number + 1}: plain {plain * 1e3:.0f} ms, {faults} page faults;"
            f" sampled {sampled * 1e3:.0f} ms, {more} page faults; peak {peak} MiB;"
            f" ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})")


if __name__ == "__main__":
    main()
