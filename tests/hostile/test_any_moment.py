"""Signals at any moment of any command that writes, and memory that ends where a model needs it."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import processes
import pytest
from fuzz.attempts import _memory
from PIL import Image

from gradscope import cli
from hostile.commands import gradscope
from hostile.test_faults import COMMANDS, folder, left, saved

__all__ = ["folder", "saved"]  # fixtures

pytestmark = pytest.mark.slow

NET = """
import torch
from torch import nn
class Hungry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        return gradient + torch.ones({backward}, 1).sum()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return Hungry.apply(self.linear(x)) + torch.ones({forward}, 1).sum()
"""
MUCH = 10**9
Interrupt = Callable[[signal.Signals, float], tuple[int, list[str]]]


@contextmanager
def signal_at(number: signal.Signals, moment: int) -> Iterator[list[int]]:
    """The signal comes as a function of the main thread's is called, the ``moment``-th of all.

    What comes of it is how many were called. Where Python has no caller to raise in (a weak
    reference's callback, ``__del__``), it drops the exception and the command goes on; pytest would
    take the message about it for a failure.
    """
    calls = [0]
    unraisable = sys.unraisablehook

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls[0] += 1
            if calls[0] == moment:
                os.kill(os.getpid(), number)

    def report(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            unraisable(dropped)

    before = sys.getprofile()
    sys.unraisablehook = report
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        sys.unraisablehook = unraisable


def ends(words: Sequence[str], number: signal.Signals, moment: int) -> tuple[int, list[str], int]:
    """The exit code, what the contract forbids, and how many calls there were."""
    with signal_at(number, moment) as calls:
        try:
            found = gradscope(words)
        except KeyboardInterrupt:  # before the command line, or behind it
            return 130, [], calls[0]
    return found.code, found.faults(), calls[0]


@contextmanager
def interrupted(words: Sequence[str], folder: Path) -> Iterator[Interrupt]:
    """``ends`` at a fraction of the calls of a run without a signal, and what it ended with.

    In the copy of a process that has run the command: an interrupt may leave a mode of PyTorch's
    on, as it comes where the mode ends, and the copy is over then.
    """
    here, there = processes.context().Pipe()
    process = processes.context().Process(target=_copies, args=(there, tuple(words), str(folder)))
    process.start()
    there.close()

    def interrupt(number: signal.Signals, fraction: float) -> tuple[int, list[str]]:
        here.send((number, fraction))
        code, faults = here.recv()
        return code, faults

    with here:
        yield interrupt
        here.send(None)
        process.join()


def _copies(asked: Connection, words: tuple[str, ...], folder: str) -> None:
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli._Ending()
    gradscope(words)  # imports what it needs, which the calls to come are not about
    clear(Path(folder))
    *_, calls = ends(words, signal.SIGINT, 0)
    clear(Path(folder))
    while (one := asked.recv()) is not None:
        number, fraction = one
        arguments = (asked, words, number, 1 + int(fraction * (calls - 1)))
        copy = multiprocessing.get_context("fork").Process(target=_interrupted, args=arguments)
        copy.start()
        copy.join()
        if copy.exitcode:
            asked.send((copy.exitcode, []))


def _interrupted(
    answers: Connection, words: tuple[str, ...], number: signal.Signals, moment: int
) -> None:
    found: tuple[int, list[str]] = (130, [])
    # Before or behind the command an interrupt is the interpreter's.
    with suppress(KeyboardInterrupt):
        found = ends(words, number, moment)[:2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers.send(found)


def clear(folder: Path) -> None:
    """Take away what a command made, which is whole wherever it is."""
    for file in folder.glob("made.*"):
        _check_whole(file)
        file.unlink()
    Path("saved-too.json").unlink(missing_ok=True)


def _check_whole(file: Path) -> None:
    if file.suffix in (".json", ".sarif"):
        json.loads(file.read_text(encoding="utf-8"))
    elif file.suffix == ".png":
        Image.open(file).load()
    else:
        assert file.stat().st_size


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal(command: str, folder: Path) -> None:
    file, words = COMMANDS[command]
    numbers = random.Random(command)
    with interrupted(words, folder) as interrupt:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            fraction = numbers.random()
            code, faults = interrupt(number, fraction)
            assert (code in (0, 130), faults) == (True, []), fraction
            assert left(folder) in ([], [file]), fraction
            assert left(folder) or code == 130, fraction
            clear(folder)


@pytest.mark.parametrize("command", ["inspect", "saliency", "export", "cache"])
def test_a_kill(command: str, folder: Path) -> None:
    file, words = COMMANDS[command]
    with interrupted(words, folder) as interrupt:
        for fraction in (random.Random(command).random(), 0.98):
            code, _ = interrupt(signal.SIGKILL, fraction)
            assert code in (-signal.SIGKILL, 0)
            clear(folder)
    assert gradscope(words).code == 0
    assert left(folder) == [file]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_memory_that_runs_out_in(phase: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"forward": 1, "backward": 1, phase: MUCH}
    Path("net.py").write_text(NET.format(**sizes))
    with _memory(1 << 30):
        found = gradscope(["inspect", "./net.py:Net", "input.shape=[2, 4]", "-o", "made.json"])
    assert (found.code, found.faults()) == (3, [])
    report = json.loads(Path("made.json").read_text())
    assert (report["error"]["kind"], report["error"]["phase"]) == ("out-of-memory", phase)


def test_memory_that_runs_out_while_reading(tmp_path: Path, monkeypatch) -> None:
    """A checkpoint that is larger than what is left."""
    import torch

    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.zeros(1).expand(100 << 20).clone()}, "large.pt")
    with _memory(200 << 20):
        found = gradscope(["inspect", "demo", "checkpoint=large.pt", "-o", "made.json"])
    assert (found.code, found.faults()) == (2, [])
    assert left(tmp_path) == ["large.pt"]
