"""Measures what it costs a training to keep the batch of each step for ``gradscope spike``.

Run: ``python -m tests.benchmarks.spikes [ROUNDS]``. A ResNet-18 and a small GPT-2 are trained under
``gradscope run``, without capsules, with them, and with ``--keep-batches 4``, in turn. It prints
the CPU time and the peak memory of each process, as factors of those without capsules, and whether
the script printed the same: all losses and the sum of the weights, to the last bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

_LOOP = """
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range({steps}):
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
print(sum(p.double().sum().item() for p in net.parameters()).hex())
"""
#: The scripts, each with its number of steps: from the 33rd on steps are compared.
_SCRIPTS = {
    "ResNet-18": (
        """
import torch, torchvision
torch.manual_seed(0)
net = torchvision.models.resnet18(num_classes=10)
def loss_of():
    x, y = torch.randn(16, 3, 64, 64), torch.randint(10, (16,))
    return torch.nn.functional.cross_entropy(net(x), y)
""",
        60,
    ),
    "GPT-2, small": (
        """
import torch, transformers
torch.manual_seed(0)
net = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(vocab_size=2000, n_embd=256, n_layer=4, n_head=4, n_positions=128)
)
def loss_of():
    ids = torch.randint(2000, (8, 128))
    return net(input_ids=ids, labels=ids).loss
""",
        60,
    ),
}
_WAYS = {
    "without": ("--no-explain-spikes",),
    "capsules": (),
    "--keep-batches 4": ("--keep-batches", "4"),
}


def measured(folder: Path, options: tuple[str, ...]) -> tuple[float, float, str]:
    """Return the CPU seconds and peak MB of a run, and what the script printed."""
    command = [sys.executable, "-m", "gradscope", "run", "--quiet", *options, "train.py"]
    with (folder / "printed").open("w") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    printed = (folder / "printed").read_text()
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, printed


def main(rounds: int) -> None:
    """Print the cost of each way, for each script."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    for name, (script, steps) in _SCRIPTS.items():
        found: dict[str, list[tuple[float, float, str]]] = {way: [] for way in _WAYS}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(script + _LOOP.format(steps=steps))
            for _ in range(rounds):
                for way, options in _WAYS.items():
                    found[way].append(measured(Path(folder), options))
        seconds, memory = (median(one[n] for one in found["without"]) for n in (0, 1))
        same = len({one[2] for several in found.values() for one in several}) == 1
        print(f"{name}: {seconds:.1f} s, {memory:.0f} MB; equal to the last bit: {same}")
        for way, several in found.items():
            factors = [median(one[n] for one in several) for n in (0, 1)]
            print(f"  {way}: CPU {factors[0] / seconds:.3f}, memory {factors[1] / memory:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
