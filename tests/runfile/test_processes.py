"""Processes that are killed, that fork, that end: the file holds what was added, and opens."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest

import gradscope
from gradscope.runfile import writer as writing
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter
from runfile import processes_of_runs
from runfile.made import RUN, sample, step, until

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
needs_sigkill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")


def killed(folder: Path, seconds: float) -> Path:
    """A run killed that long after its first step."""
    path, log = folder / "run.db", folder / "log"
    process = processes.context().Process(
        target=processes_of_runs.write_until_killed, args=(path, log)
    )
    process.start()
    until(lambda: log.exists() and log.stat().st_size > 0)
    time.sleep(seconds)
    process.kill()
    process.join()
    process.close()
    return path


def check(path: Path) -> int:
    """The file is whole, and holds the first steps without a gap; how many."""
    with RunFile.open(path) as file:
        assert file.run == RUN if file.last_step == 0 else file.run.ended is None
        steps = file.steps()
        assert [one.step for one in steps] == list(range(1, len(steps) + 1))
        assert {one.step for one in steps if one.sampled} == set(file.sampled)
        for number in file.sampled:
            assert file.sample(number) == (sample(number, calls=5),)
        for series in (*file.call_series().values(), *file.parameter_series().values()):
            assert series.steps == file.sampled
    # As a program would open it that does not know of gradscope, and may write.
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    return len(steps)


#: Parts of 0.6 seconds, in each of which a run is killed once.
PARTS = 40


@pytest.mark.slow
@needs_sigkill
@pytest.mark.parametrize("part", range(PARTS))
def test_a_killed_run_opens(part, tmp_path):
    """A killed run opens; ``tests.benchmarks.runfile`` measures the age of what it lacks."""
    check(killed(tmp_path, 0.6 * (part + random.Random(part).random()) / PARTS))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "exception", "atexit", "end"])
def test_nothing_is_lost_where_nobody_finishes(how, tmp_path):
    done = alone(f"leave(Path('run.db'), {how!r})", tmp_path)
    assert done.returncode == {"exit": 3, "exception": 1}.get(how, 0), done.stderr
    assert done.stderr == "" or how == "exception"
    with RunFile.open(tmp_path / "run.db") as file:
        assert file.last_step == (1100 if how == "atexit" else 1000)
        assert file.run.ended is None
    assert [path.name for path in tmp_path.iterdir()] == ["run.db"]


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("how", ["finish", "forget", "leave", "exit"])
def test_a_forked_child_writes_nothing_and_finds_no_thread(how, tmp_path):
    # Of a fork beside threads Python warns since 3.12: there must be no thread.
    done = alone(f"fork(Path('run.db'), {how!r})", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with RunFile.open(tmp_path / "run.db") as file:
        assert [one.step for one in file.steps()] == list(range(1, 201))
        assert len(file.sampled) == 10


@needs_fork
def test_a_child_reads_while_its_parent_writes(tmp_path):
    """A child that uses SQLite itself, as some datasets do, is not held up by the fork."""
    writer = RunWriter(tmp_path / "run.db", RUN)
    writer.add(step(1))
    until(lambda: not writer._waiting)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with RunFile.open(writer.path) as file:
                code = 0 if file.last_step == 1 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    writer.add(step(2))
    writer.finish(RUN)
    with RunFile.open(writer.path) as file:
        assert file.last_step == 2


def test_a_pause_that_takes_long_ends_by_itself(tmp_path, monkeypatch):
    """The thread writes on while the process forks: it goes on afterwards, once."""
    monkeypatch.setattr(writing, "_PAUSE", 0.0)
    writer = RunWriter(tmp_path / "run.db", RUN)
    for number in range(1, 101):
        writer.add(step(number), sample(number))
        writer.pause()
        writer.resume()
    writer.finish(RUN)
    with RunFile.open(writer.path) as file:
        assert (file.last_step, len(file.sampled)) == (100, 100)


@pytest.mark.skipif(not hasattr(signal, "sigwait"), reason="the system has no sigwait")
def test_a_signal_that_the_script_waits_for_comes_to_the_script(tmp_path):
    done = alone("wait_for_signals(Path('run.db'))", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def alone(call: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """One of the functions in an interpreter of its own, in which each warning is an error."""
    names = "from pathlib import Path; from runfile.processes_of_runs import *; "
    home = [str(Path(gradscope.__file__).parents[1]), str(Path(__file__).parents[1])]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", names + call],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(home)},
        capture_output=True,
        text=True,
    )
