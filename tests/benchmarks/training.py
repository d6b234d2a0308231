"""What ``gradscope run`` costs a training script: whole processes, plain and observed in turn.

``python -m tests.benchmarks.training`` trains ResNet-18, a GPT-2 of 12 layers and a small MLP, each
as ``python SCRIPT`` and as ``gradscope run SCRIPT``, in turn, so that a machine whose speed drifts
slows both alike. It prints the ratios of their wall-clock times and of their peak memory.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_HEAD = """\
import resource, sys, time
import torch
from torch import nn
torch.manual_seed(0)
steps = int(sys.argv[1])
"""
_TAIL = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
began = time.perf_counter()
for step in range(steps):
    inputs, loss = batch()
    optimizer.zero_grad()
    loss(model(inputs)).backward()
    optimizer.step()
took = time.perf_counter() - began
print("took", took, "peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
SCRIPTS = {
    "ResNet-18, batches of 16 at 64 × 64": (
        _HEAD
        + """
import torchvision
model = torchvision.models.resnet18(num_classes=10)
def batch():
    wanted = torch.randint(10, (16,))
    return torch.randn(16, 3, 64, 64), lambda found: nn.functional.cross_entropy(found, wanted)
"""
        + _TAIL,
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
"""
        + _TAIL,
        40,
    ),
    "MLP, 784-256-10, batches of 64": (
        _HEAD
        + """
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
def batch():
    wanted = torch.randint(10, (64,))
    return torch.randn(64, 784), lambda found: nn.functional.cross_entropy(found, wanted)
"""
        + _TAIL,
        10_000,
    ),
}


def measured(command: list[str], folder: str) -> tuple[float, float]:
    """Seconds of the loop, and the peak memory in KiB, of one process."""
    home = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": home}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=folder, env=environment
    )
    found = re.search(r"took ([\d.]+) peak (\d+)", done.stdout)
    assert found is not None, done.stderr
    return float(found[1]), float(found[2])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, help="look at every Nth step instead of the budget")
    parser.add_argument("--only", default="", help="scripts whose name begins like this")
    given = parser.parse_args()
    options = [] if given.every is None else ["--every", str(given.every)]
    for name, (text, steps) in SCRIPTS.items():
        if not name.startswith(given.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(text, encoding="utf-8")
            plain = [sys.executable, "train.py", str(steps)]
            watched = [sys.executable, "-m", "gradscope", "run", *options, *plain[1:]]
            pairs = [
                (measured(plain, folder), measured(watched, folder)) for _ in range(given.rounds)
            ]
        times = [after[0] / before[0] for before, after in pairs]
        memory = [after[1] / before[1] for before, after in pairs]
        a_step = statistics.median(before[0] for before, _ in pairs) / steps
        print(
            f"{name:<46}  {a_step * 1000:8.2f} ms a step  time {statistics.median(times):.3f} "
            f"({min(times):.3f}–{max(times):.3f})  memory {statistics.median(memory):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
