"""Faults of the commands around a training: the script's own end, and a file that can be read."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import processes
import pytest

from hostile.commands import gradscope
from hostile.test_any_moment import interrupted
from hostile.test_faults import FAULTS, folder, left, saved

__all__ = ["folder", "saved"]  # fixtures

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
number, step = map(int, sys.argv[1:])
for at in range(1, 41):
    if at == step:
        os.kill(os.getpid(), number)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
#: Commands that write no file, and what they read.
READERS = {
    "live": ("live", "saved.db"),
    "show": ("show", "saved.json"),
    "show a run": ("show", "saved.db"),
    "why of a run": ("why", "saved.db"),
    "layers": ("layers", "demo"),
    "rules": ("rules",),
}


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ("Ctrl-C", "SIGTERM")])
@pytest.mark.parametrize("command", READERS)
def test_a_fault_of_what_only_reads(command: str, fault: str, folder: Path) -> None:
    gone = fault == "no working directory"
    words = [str(folder / w) if gone and w.startswith("saved") else w for w in READERS[command]]
    with FAULTS[fault]():
        found = gradscope(words)
    assert found.code in ({0, 2} if gone else {0}), found.err
    assert (found.faults(), left(folder)) == ([], [])


@pytest.mark.parametrize("command", READERS)
def test_a_signal_at_any_moment(command: str, folder: Path) -> None:
    words = READERS[command]
    numbers = random.Random(command)
    with interrupted(words, folder) as interrupt:
        for fraction in (numbers.random() for _ in range(3)):
            code, faults = interrupt(signal.SIGINT, fraction)
            assert (code in (0, 130), faults, left(folder)) == (True, [], []), fraction


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_training_that_a_signal_ends(number: signal.Signals, folder: Path) -> None:
    step = random.Random(number).randrange(2, 40)
    code, error = _trained(folder, None, int(number), step)
    assert code == -number, error
    # Whoever is not asked loses what was not written yet.
    _check_run(folder, step - 1 if number == signal.SIGINT else None)


@pytest.mark.parametrize(
    "fault", ["a full disk", "little memory", "no home", "no temporary folder"]
)
def test_a_training_under_a_fault(fault: str, folder: Path) -> None:
    """The script notices nothing; what cannot be recorded is reported at its end."""
    code, error = _trained(folder, fault, 0, 0)
    assert code == 0
    assert "Traceback" not in error
    if fault == "a full disk":
        assert "nothing was recorded" in error
        assert left(folder) == ["stderr", "stdout", "train.py"]
    else:
        _check_run(folder, 40)


def _trained(folder: Path, fault: str | None, number: int, step: int) -> tuple[int | None, str]:
    """The exit code of the training, and what was said."""
    (folder / "train.py").write_text(SCRIPT)
    process = processes.context().Process(
        target=_train, args=(str(folder), fault, (str(number), str(step)))
    )
    process.start()
    process.join()
    return process.exitcode, (folder / "stderr").read_text()


def _train(folder: str, fault: str | None, arguments: tuple[str, str]) -> None:
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = ["run", "-o", "run.db", "train.py", *arguments]
    streams = Path(folder, "stdout"), Path(folder, "stderr")
    around = None if fault is None else FAULTS[fault]()
    processes._command(words, folder, dict(os.environ), *streams, around)


def _check_run(folder: Path, steps: int | None) -> None:
    """The run can be shown, and nothing else is left."""
    assert {name for name in left(folder) if not name.startswith("run.")} == {
        *("stderr", "stdout", "train.py")
    }
    found = gradscope(["show", "run.db"])
    assert (found.code, found.faults()) == (0, [])
    if steps is not None:
        assert f"{steps} steps" in found.out or f"step {steps}" in found.out, found.out
