"""A NaN that is made late is found at its step, with phase, module, operation and line.

Each script of ``nan_scripts/`` runs under ``gradscope run`` as it is: nothing is looked at but what
the NaN detector sees. ``python -m tests.training.test_located`` prints the table of all answers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import gradscope

from gradscope.records.training import TrainingFinding
from gradscope.runfile.reader import RunFile
from training.expected import ALL, Expected

#: Of all scripts, so many may have an answer that is not quite right.
ALLOWED = 2
#: One of each phase, of which none may.
CERTAIN = ("attention_without_entry", "empty_mask", "sqrt_at_zero")
pytestmark = [pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")]


def answers(script: Path, folder: Path, *arguments: str) -> list[TrainingFinding]:
    """Return the run's findings on NaN and Inf, first found first."""
    out = folder / f"{script.stem}{''.join(arguments)}.db"
    words = ["run", "-o", str(out), str(script), *arguments]
    done = gradscope(words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert "gradscope: error:" not in done.stderr, done.stderr
    with RunFile.open(out) as recorded:
        return [one for one in recorded.findings if one.finding.code == "GS301"]


def miss(expected: Expected, found: list[TrainingFinding]) -> str | None:
    """In which way the first answer is not the right one; None where it is."""
    if not found:
        return "nothing was found"
    first, origin = found[0], found[0].origin
    if origin is None:
        return f"no origin: {first.finding.message}"
    wrong = []
    if first.steps[0][0] != expected.step:
        wrong.append(f"step {first.steps[0][0]}, not {expected.step}")
    if origin.phase != expected.phase:
        wrong.append(f"phase {origin.phase}, not {expected.phase}")
    if expected.phase != "input" and (origin.name or None) != (expected.module or None):
        wrong.append(f"module {origin.name}, not {expected.module}")
    if expected.ops and not (origin.op and any(same(op, origin.op) for op in expected.ops)):
        wrong.append(f"operation {origin.op}, not {' or '.join(expected.ops)}")
    places = [f"{expected.path.name}:{line}" for line in expected.lines]
    if places and not any((origin.location or "").endswith(place) for place in places):
        wrong.append(f"at {origin.location}, not {' or '.join(places)}")
    return "; ".join(wrong) or None


def same(op: str, name: str) -> bool:
    """``sqrt`` is ``SqrtBackward0``, ``torch.sqrt`` and ``aten::sqrt_``."""
    return _plain(op) == _plain(name)


def _plain(op: str) -> str:
    last = op.rpartition("::")[2].rpartition(".")[2].lower()
    return last.removesuffix("0").removesuffix("backward").replace("_", "")


def _all_misses(folder: Path) -> dict[str, str]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda e: answers(e.path, folder), ALL)
        all_of_them = [(e.script, miss(e, one)) for e, one in zip(ALL, found, strict=True)]
    return {script: words for script, words in all_of_them if words is not None}


@pytest.mark.slow
def test_nearly_all_are_located(tmp_path: Path):
    misses = _all_misses(tmp_path)
    assert len(misses) <= ALLOWED, "\n".join(f"{s}: {words}" for s, words in misses.items())
    assert not misses.keys() & {*CERTAIN}


@pytest.mark.slow
def test_the_healthy_twins_are_silent(tmp_path: Path):
    """Every fourth; in the process itself `nan_detector` has a twin of each kind."""
    some = ALL[::4]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda e: answers(e.path, tmp_path, "--healthy"), some))
    loud = {e.script: one[0].finding.message for e, one in zip(some, found, strict=True) if one}
    assert loud == {}


def main() -> None:
    """The answers of gradscope beside the right ones; words of the command line choose scripts."""
    with tempfile.TemporaryDirectory() as folder:
        for expected in ALL:
            if len(sys.argv) > 1 and expected.script not in sys.argv[1:]:
                continue
            found = answers(expected.path, Path(folder))
            print(f"{expected.script:26}", miss(expected, found) or "right")
            if "--healthy" in sys.argv:
                twin = answers(expected.path, Path(folder), "--healthy")
                print(f"{'':26}", twin[0].finding.message if twin else "twin silent")


if __name__ == "__main__":
    main()
