"""Measures ``gradscope diff`` on two saved reports.

``python -m tests.benchmarks.reports`` makes reports of 10,000 rows, half calls and half parameters,
with sketches of every tensor and without, each of them twice with other numbers, and prints the
seconds of a process that compares two, and its seconds of the processor: the least of several.
"""

from __future__ import annotations

import argparse
import base64
import random
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

from gradscope.records import json as record_json
from gradscope.records.full_samples import SKETCH_WIDTH, Sketch
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Report
from gradscope.records.run import RunInfo
from gradscope.records.tensors import TensorRecord, TensorStats

ROWS = 10_000


def report(*, sketched: bool, move: float) -> Report:
    """A chain of linear layers; numbers are random, ``move`` is the share by which they differ."""
    draw, coin = random.Random(0), random.Random(move)

    def stats() -> TensorStats:
        size = draw.random() * (1 + move * coin.random())
        return TensorStats(
            (32, 8), "float32", 256, size, 0.0, size / 16, -size / 4, size / 4, 0, 0, 0
        )

    def sketch(name: str, kind: str, path: str, call: int | None) -> Sketch:
        numbers = array(
            "f", (draw.gauss() * (1 + move * coin.random()) for _ in range(SKETCH_WIDTH))
        )
        text = base64.b64encode(numbers.tobytes()).decode()
        return Sketch(name, kind, path, 11.0, text, call, noise=1e-6)

    names = [f"layers.{n}" for n in range(ROWS // 2)]
    calls = [
        ModuleCall(
            *(name, "Linear", 0, order),
            inputs=(TensorRecord("0", stats(), stats()),),
            outputs=(TensorRecord("", stats(), stats()),),
        )
        for order, name in enumerate(names)
    ]
    parameters = [
        ParameterStats(f"{name}.weight", (32, 8), True, stats(), stats()) for name in names
    ]
    sketches = [
        sketch(name, kind, "0" if kind.endswith("input") else "", 0)
        for name in names
        for kind in ("input", "output", "grad_input", "grad_output")
    ] + [sketch(n, kind, f"{n}.weight", None) for n in names for kind in ("value", "gradient")]
    run = RunInfo("net.yaml", "cpu", "float32", "train", seed=0, steps=1, loss="sum")
    return Report(
        "ok",
        run,
        calls=tuple(calls),
        parameters=tuple(parameters),
        sketches=tuple(sketches) if sketched else (),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=3, help="processes of each kind")
    turns = parser.parse_args().n
    with tempfile.TemporaryDirectory() as folder:
        for sketched in (False, True):
            files = [Path(folder, f"{'ab'[n]}.json") for n in range(2)]
            for n, file in enumerate(files):
                text = record_json.dumps(report(sketched=sketched, move=1e-7 * n))
                file.write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "gradscope", "diff", *map(str, files)]
            took = [_seconds([*command, "--table", "findings"]) for _ in range(turns)]
            wall, busy = (min(one) for one in zip(*took, strict=True))
            what = "sketches" if sketched else "statistics"
            size = files[0].stat().st_size / 1e6
            print(f"{what}: {wall:.2f} s, {busy:.2f} of the processor; 2 files of {size:.0f} MB")


def _seconds(command: list[str]) -> tuple[float, float]:
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, busy


if __name__ == "__main__":
    main()
