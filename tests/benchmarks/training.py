"""Measures the cost of ``gradscope run``: complete processes, plain and observed in turn.

``python -m tests.benchmarks.training`` trains ResNet-18, a GPT-2 of 12 layers, a GPT of 6, plain
and with clipping, and a small MLP, each as ``python SCRIPT`` and as ``gradscope run SCRIPT``, in
turn, so that a machine whose speed drifts slows both alike. It prints the ratios of their
wall-clock times, of the processor's seconds and of their peak memory.

``--only MLP --steps 10`` makes other runs of one of them. ``--every 1`` looks at every step, and
compares what a look takes with what it takes ``inspect``, from its hooks to its records.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_HEAD = """\
import resource, sys, time
import torch
from torch import nn
torch.manual_seed(0)
steps = int(sys.argv[1])
def clip():
    pass
"""
_TAIL = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
began, cpu = time.perf_counter(), time.process_time()
for step in range(steps):
    inputs, loss = batch()
    optimizer.zero_grad()
    loss(model(inputs)).backward()
    clip()
    optimizer.step()
took, cpu = time.perf_counter() - began, time.process_time() - cpu
print("took", took, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
#: The same without an optimizer: the backward is all that ends a step.
_BARE = """
from gradscope.loading.live_objects import adopt
from gradscope.running.observe import observe
inputs, loss = batch()
workload = adopt(model, {"loss": loss}, inputs=(inputs,), target=None)
def plain():
    loss(model(inputs)).backward()
    model.zero_grad()
def observed():
    assert observe(workload, layers=("**",)).failure is None
{0}()
began, cpu = time.perf_counter(), time.process_time()
for step in range(steps):
    {0}()
took, cpu = time.perf_counter() - began, time.process_time() - cpu
print("took", took, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
#: Every parameter's gradient is read in every step of it, for about 1 % of its time.
_GPT = """
from torch.nn import functional as F
class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.project = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.widen, self.narrow = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        parts = self.qkv(self.before(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.project(y.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.between(x))))
class GPT(nn.Module):
    def __init__(self, words=512, d=256, layers=6, heads=8):
        super().__init__()
        self.words, self.places = nn.Embedding(words, d), nn.Embedding(128, d)
        self.blocks = nn.Sequential(*(Block(d, heads) for _ in range(layers)))
        self.last, self.head = nn.LayerNorm(d), nn.Linear(d, words, bias=False)
    def forward(self, x):
        return self.head(self.last(self.blocks(self.words(x) + self.places.weight[: x.shape[1]])))
model = GPT()
def batch():
    words = torch.randint(512, (4, 129))
    wanted = words[:, 1:].flatten()
    return words[:, :-1], lambda found: nn.functional.cross_entropy(found.flatten(0, 1), wanted)
"""
_CLIPPED = """
def clip():
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
_WAYS = ("plain", "observed")
SCRIPTS = {
    "ResNet-18, batches of 16 at 64 × 64": (
        _HEAD
        + """
import torchvision
model = torchvision.models.resnet18(num_classes=10)
def batch():
    wanted = torch.randint(10, (16,))
    return torch.randn(16, 3, 64, 64), lambda found: nn.functional.cross_entropy(found, wanted)
""",
        200,
    ),
    "GPT-2 (12 layers, 85 million), 2 × 64 tokens": (
        _HEAD
        + """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(vocab_size=512))
def batch():
    words = torch.randint(512, (2, 64))
    return words, lambda found: nn.functional.cross_entropy(
        found.logits[:, :-1].flatten(0, 1), words[:, 1:].flatten()
    )
""",
        40,
    ),
    "GPT (6 layers, 5 million), 4 × 128 tokens": (_HEAD + _GPT, 150),
    "GPT, the same, clipped": (_HEAD + _GPT + _CLIPPED, 150),
    "MLP, 784-128-10, batches of 64": (
        _HEAD
        + """
model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
def batch():
    wanted = torch.randint(10, (64,))
    return torch.randn(64, 784), lambda found: nn.functional.cross_entropy(found, wanted)
""",
        10_000,
    ),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of a loop on the wall and of the processor, and the process's peak in KiB."""

    wall: float
    cpu: float
    peak: float


def measured(words: list[str], script: str, folder: str) -> Measured:
    """``python WORDS`` where ``train.py`` is this script."""
    Path(folder, "train.py").write_text(script, encoding="utf-8")
    home = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": home}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=folder, env=environment
    )
    found = re.search(r"took ([\d.]+) ([\d.]+) (\d+)", done.stdout)
    assert found is not None, done.stderr
    return Measured(*map(float, found.groups()))


def compare(name: str, text: str, steps: int, rounds: int, every: int | None) -> str:
    """A line of ratios, observed to plain, within rounds."""
    options = [] if every is None else ["--every", str(every)]
    plain = ["train.py", str(steps)]
    watched = ["-m", "gradscope", "run", *options, *plain]
    with tempfile.TemporaryDirectory() as folder:
        pairs = [
            (measured(plain, text + _TAIL, folder), measured(watched, text + _TAIL, folder))
            for _ in range(rounds)
        ]
        milliseconds = statistics.median(before.wall for before, _ in pairs) / steps * 1e3
        line = f"{name:<46}  {milliseconds:8.2f} ms a step"
        for what in ("wall", "cpu", "peak"):
            ratios = [getattr(after, what) / getattr(before, what) for before, after in pairs]
            median, low, high = statistics.median(ratios), min(ratios), max(ratios)
            line += f"  {what} {median:.3f} ({low:.3f}–{high:.3f})"
        if every == 1:
            bare = [
                [measured(plain, text + _BARE.replace("{0}", way), folder) for way in _WAYS]
                for _ in range(rounds)
            ]
            looks = statistics.median((b.cpu - a.cpu) / steps * 1e3 for a, b in pairs)
            own = statistics.median((b.cpu - a.cpu) / steps * 1e3 for a, b in bare)
            line += f"\n{'':<48}a look {looks:.2f} ms of the processor, inspect's {own:.2f} ms"
    return line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, help="look at every Nth step instead of the budget")
    parser.add_argument("--steps", type=int, help="of each run")
    parser.add_argument("--only", default="", help="scripts whose name begins like this")
    given = parser.parse_args()
    for name, (text, steps) in SCRIPTS.items():
        if name.startswith(given.only):
            print(compare(name, text, given.steps or steps, given.rounds, given.every), flush=True)


if __name__ == "__main__":
    main()
