"""Measures what it costs a training to keep the batch of each step for ``gradscope spike``.

Run: ``python -m tests.benchmarks.spikes [ROUNDS] [SCRIPT]``. A ResNet-18 and a small GPT-2 are
trained under ``gradscope run``, without capsules, with them, and with ``--keep-batches 4``, in
turn. SCRIPT ``resnet18`` or ``gpt2`` takes one of them. A run counts the CPU time of the parts for
spikes in its own process, and the script that of its loop: the cost is a share of the loop's time
without capsules. A run keeps a bounded number of capsules, so their share falls with its length.
Beside it are the peak memory of the process, as a factor of that without capsules, and whether the
script printed the same: all losses and the sum of the weights, to the last bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.benchmarks.parts import Parts

_LOOP = """
import pathlib, time
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
began = time.process_time()
for step in range({steps}):
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
pathlib.Path("loop").write_text(str(time.process_time() - began))
print(sum(p.double().sum().item() for p in net.parameters()).hex())
"""
#: The scripts, each with its number of steps: from the 33rd on steps are compared, and the most
#: unusual of them get a capsule.
_SCRIPTS = {
    "resnet18": (
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
    "gpt2": (
        """
import torch, transformers
torch.manual_seed(0)
net = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(vocab_size=2000, n_embd=256, n_layer=4, n_head=4, n_positions=128)
)
def loss_of():
    ids = torch.randint(2000, (4, 128))
    return net(input_ids=ids, labels=ids).loss
""",
        40,
    ),
}
_WAYS = {
    "without": ("--no-explain-spikes",),
    "capsules": (),
    "--keep-batches 4": ("--keep-batches", "4"),
}


#: The parts for spikes, by the methods of ``Spikes``.
_STEP, _CAPSULE = "each step", "capsules"
_PARTS = {
    "backward_begins": _STEP,
    "is_unusual": _STEP,
    "gradients_ready": _STEP,
    "step_ended": _STEP,
    "_take": _CAPSULE,
}


@dataclass(frozen=True, slots=True)
class _Measured:
    """One run: the CPU seconds of the script's loop, and of each part in it with the number of
    calls; the peak memory of its process in MB, and what the script printed."""

    loop: float
    seconds: dict[str, float]
    calls: dict[str, int]
    memory: float
    printed: str


def counted(arguments: list[str]) -> None:
    """Run ``gradscope`` in this process, and write what its parts for spikes took."""
    from gradscope import cli
    from gradscope.training.spikes.spikes import Spikes

    parts = Parts(time.thread_time)
    for name, part in _PARTS.items():
        parts.wrap(Spikes, name, part)
    sys.argv = ["gradscope", *arguments]
    try:
        cli.main()
    finally:
        Path("parts").write_text(json.dumps([parts.seconds, parts.calls]))


def measured(folder: Path, options: tuple[str, ...]) -> _Measured:
    """Return the figures of a run of ``train.py``."""
    command = [sys.executable, "-m", "tests.benchmarks.spikes", "run", "--quiet", *options]
    with (folder / "printed").open("w") as out:
        process = subprocess.Popen([*command, "train.py"], cwd=folder, stdout=out)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    seconds, calls = json.loads((folder / "parts").read_text())
    loop = float((folder / "loop").read_text())
    return _Measured(loop, seconds, calls, used.ru_maxrss / 1024, (folder / "printed").read_text())


def main(rounds: int, names: list[str]) -> None:
    """Print the cost of each way, for each script."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    for name in names:
        script, steps = _SCRIPTS[name]
        found: dict[str, list[_Measured]] = {way: [] for way in _WAYS}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(script + _LOOP.format(steps=steps))
            for _ in range(rounds):
                for way, options in _WAYS.items():
                    found[way].append(measured(Path(folder), options))
        loop = median(one.loop for one in found["without"])
        memory = median(one.memory for one in found["without"])
        same = len({one.printed for several in found.values() for one in several}) == 1
        print(
            f"{name}: {1000 * loop / steps:.0f} ms a step, {memory:.0f} MB; equal to the last bit: "
            f"{same}"
        )
        for way, several in found.items():
            costs = []
            for part in (_STEP, _CAPSULE):
                took = median(one.seconds.get(part, 0.0) for one in several)
                costs.append(f"{part} {1000 * took / steps:.2f} ms ({took / loop:.2%})")
            made = median(one.calls.get(_CAPSULE, 0) for one in several)
            factor = median(one.memory for one in several) / memory
            print(f"  {way}: {costs[0]}, {made:g} {costs[1]}, memory {factor:.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        counted(sys.argv[1:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, sys.argv[2:] or list(_SCRIPTS))
