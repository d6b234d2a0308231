"""Measures a full process of ``gradscope`` against the imports that it needs.

``python -m tests.benchmarks.startup`` runs the commands in turn, so that a machine whose speed
drifts slows all of them alike, and prints each command's median and its ratio to its base. The
first turn leaves the bytecode, as an installation does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

LIBRARIES = "import typer, rich.table, yaml, pydantic"
TORCH = "import torch"
BASES = {name: [sys.executable, "-c", name] for name in (LIBRARIES, TORCH)}
GRADSCOPE = [sys.executable, "-m", "gradscope"]
#: A command and its base.
COMMANDS = {
    "gradscope --help": ([*GRADSCOPE, "--help"], LIBRARIES),
    "gradscope --version": ([*GRADSCOPE, "--version"], LIBRARIES),
    "gradscope inspect": ([*GRADSCOPE, "inspect"], TORCH),
}


def seconds(command: list[str]) -> float:
    """The wall-clock time of one process."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    runs = {**BASES, **{name: command for name, (command, _) in COMMANDS.items()}}
    for command in runs.values():
        seconds(command)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, command in runs.items():
            times[name].append(seconds(command))
    for name in BASES:
        print(f"{name:<42}  {statistics.median(times[name]):.2f} s")
    for name, (_, base) in COMMANDS.items():
        ratios = [one / other for one, other in zip(times[name], times[base], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        took = f"{statistics.median(times[name]):.2f} s"
        print(f"{name:<42}  {took}  {middle:.2f} ({low:.2f}–{high:.2f}) × `{base}`")


if __name__ == "__main__":
    main()
