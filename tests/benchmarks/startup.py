"""What ``gradscope inspect`` costs as a whole process, against importing torch and nothing else.

``python -m tests.benchmarks.startup`` runs the commands in turn, so that a machine whose speed
drifts slows all of them alike, and prints each command's median and its ratio to ``import torch``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

BASE = "import torch"
COMMANDS = {
    BASE: [sys.executable, "-c", "import torch"],
    "gradscope inspect": [sys.executable, "-m", "gradscope", "inspect"],
    "gradscope --help": [sys.executable, "-m", "gradscope", "--help"],
    "gradscope --version": [sys.executable, "-m", "gradscope", "--version"],
}


def seconds(command: list[str]) -> float:
    """The wall-clock time of one process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    for command in COMMANDS.values():
        seconds(command)  # a first run fills the file cache
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    print(f"{'command':<22}  median s  ratio (quartiles)")
    for name, taken in times.items():
        ratios = [one / base for one, base in zip(taken, times[BASE], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:<22}  {statistics.median(taken):8.2f}  {middle:.2f} ({low:.2f}–{high:.2f})")


if __name__ == "__main__":
    main()
