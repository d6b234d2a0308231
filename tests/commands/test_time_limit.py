"""``--timeout``: whatever does not end is stopped, and the user learns where it was."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import processes
import pytest
from hostile.commands import deaf, gradscope

from gradscope import demo

# It registers an operator: in one process an import that a time limit ended cannot be repeated.
from gradscope.capture import traced_probes  # noqa: F401

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="a thread that sleeps is woken by a signal"),
]

NET = """
import time, torch
from torch import nn
class Forward(nn.Linear):
    def forward(self, x):
        time.sleep(3600)
class Deaf(nn.Linear):
    def forward(self, x):
        while True:
            try:
                time.sleep(3600)
            except BaseException:
                pass
class Construction(nn.Linear):
    def __init__(self, *sizes):
        while True: time.sleep(0.001)
class Endless(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, gradient):
        while True: pass
class Backward(nn.Linear):
    def forward(self, x):
        return Endless.apply(super().forward(x))
class Net(nn.Sequential):
    def __init__(self, kind):
        super().__init__(nn.Flatten(), globals()[kind](784, 10))
"""
PLACES = {
    "Forward": r"net\.py:6 in `Forward\.forward`",
    "Construction": r"net\.py:16 in `Construction\.__init__`",
    "Backward": r"net\.py:23 in `Endless\.backward`",
}
DIGIT = str(Path(demo.__file__).parent / "digits" / "digit-3.png")
COMMANDS = {
    "inspect": ("./net.py:Net",),
    "check": ("./net.py:Net",),
    "why": ("./net.py:Net",),
    "graph": ("./net.py:Net",),
    "diff": ("./net.py:Net", "demo"),
    "saliency": (DIGIT, "-m", "./net.py:Net", "--method", "gradient"),
    "features": ("activations", DIGIT, "-m", "./net.py:Net"),
}


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Run a command whose model does not end; check that it stops."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)

    def of(command: str, kind: str, *words: str):
        words = (*COMMANDS[command], f"model.kind={kind}", *words)
        if command not in ("saliency", "features", "diff"):
            words = ("input.shape=[2, 1, 28, 28]", *words)
        # The clock starts with the command: on a busy machine its imports alone take some seconds.
        for seconds in ("2", "8", "32"):
            found = gradscope([command, *words, "--timeout", seconds])
            assert (found.code, found.faults()) == (130, [])
            if f"stopped after {seconds} s, at net.py" in found.err:
                break
        return found

    return of


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_runs_a_model_ends(command, stopped):
    kind = "Forward" if command != "diff" else "Construction"
    assert re.search(rf"stopped after \d+ s, at {PLACES[kind]}", stopped(command, kind).err)


@pytest.mark.parametrize("kind", PLACES)
def test_it_says_where_it_was(kind, stopped):
    assert re.search(rf"stopped after \d+ s, at {PLACES[kind]}", stopped("inspect", kind).err)


def test_what_was_recorded_is_shown(stopped):
    found = stopped("inspect", "Forward", "-f", "json")
    report = json.loads(found.out)
    assert (report["status"], report["error"]["name"]) == ("failed", "1")
    assert [call["name"] for call in report["calls"]] == ["", "0", "1"]
    assert "in the forward of `1`" in found.err


def test_what_hears_no_interrupt_is_ended(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    process = processes.context().Process(target=deaf, args=(str(tmp_path),))
    process.start()
    process.join()
    assert process.exitcode == 130
    error = (tmp_path / "error").read_text()
    assert re.fullmatch(
        r"error: stopped after 2 s, at net\.py:\d+ in `Deaf\.forward`; an interrupt did not end "
        r"it\n",
        error,
    )


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_no_time(seconds):
    found = gradscope(["inspect", "demo", "--timeout", seconds])
    assert found.code == 2
    assert "leaves no time" in found.err


def test_there_is_time():
    found = gradscope(["inspect", "demo", "--timeout", "inf"])
    assert (found.code, found.err) == (0, "")
