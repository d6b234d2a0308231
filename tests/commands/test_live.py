"""``gradscope live``: lines in a pipe, a page in a terminal, and a run that is yet to come."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands.run_files import ENDED, STEPS, add_step, started, with_findings, written
from runfile.made import until

from gradscope.commands import live
from gradscope.errors import ConfigError

COMMAND = [sys.executable, "-m", "gradscope"]


def test_of_a_run_that_has_ended_the_last_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live.run(with_findings(tmp_path / "run.db"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "event",
        *(f"step {n}" for n in range(31, STEPS + 1)),
        *("finding", "finding", *["verdict"] * 3, "finished"),
    ]
    assert lines[0] == "event: step 7, skipped-step: the gradient scaler skipped a step"
    assert lines[-1] == "finished: exit code 0"


def test_a_line_for_each_step_of_a_run_that_is_yet_to_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step once and in order, however the reader's looks fall between them."""
    monkeypatch.setattr("gradscope.commands.live._PAUSE", 0.01)
    monkeypatch.setattr(live, "_PAUSE", 0.01)
    path = tmp_path / "run.db"

    def train() -> None:
        until(lambda: "waiting for one to begin" in capsys.readouterr().err)
        writer = started(path)
        for number in range(1, STEPS + 1):
            add_step(writer, number)
            time.sleep(0.02)
        writer.finish(ENDED)

    script = threading.Thread(target=train)
    script.start()
    lines: list[str] = []
    monkeypatch.setattr(
        "gradscope.commands.live.write_output",
        lambda text, path: lines.extend(text.splitlines()),
    )
    live.run(path)
    script.join()
    steps = [line.partition(":")[0] for line in lines if line.startswith("step ")]
    assert steps == [f"step {n}" for n in range(int(steps[0].split()[1]), STEPS + 1)]
    assert lines[-1] == "finished: exit code 0"


def test_where_no_run_can_come_it_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run"):
        live.run(tmp_path / "missing" / "run.db")
    (tmp_path / "notes.txt").write_text("no run")
    with pytest.raises(ConfigError, match="not a SQLite file"):
        live.run(tmp_path / "notes.txt")


class Terminal:
    """A command in a terminal of 30 lines and 100 columns."""

    def __init__(self, *words: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(LINES="30", COLUMNS="100", TERM="xterm")
            os.execv(sys.executable, [*COMMAND, *words])
        self.text = ""

    def read_until(self, part: str) -> None:
        """Read until that was written, or to the end."""
        end = time.monotonic() + 600  # so long only where nothing comes any more
        while part not in self.text and time.monotonic() < end:
            if select.select([self._fd], [], [], 0.1)[0]:
                try:
                    data = os.read(self._fd, 65536)
                except OSError:  # the other side is closed
                    return
                self.text += data.decode(errors="replace")

    def ended(self) -> int:
        """Read to the end; the exit code."""
        self.read_until("\0")
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[Path]:
    """A run that has taken 20 steps and takes no more."""
    writer = started(tmp_path / "run.db")
    for number in range(1, 21):
        add_step(writer, number)
    yield tmp_path / "run.db"
    writer.finish(ENDED)


def test_in_a_terminal_the_page_stands_until_ctrl_c(going_on: Path) -> None:
    terminal = Terminal("live", str(going_on))
    terminal.read_until("running (")
    os.kill(terminal.pid, signal.SIGINT)
    assert terminal.ended() == 0
    drawn, _, left = terminal.text.partition("\x1b[?1049l")
    assert "\x1b[?1049h" in drawn
    for text in (drawn, left):  # the page stays there once one has left
        assert "20 steps" in text
        assert "step metrics" in text
    assert "Traceback" not in terminal.text


def test_in_a_terminal_the_page_ends_with_the_run(tmp_path: Path) -> None:
    terminal = Terminal("live", str(written(tmp_path / "run.db")))
    assert terminal.ended() == 0
    assert "finished:" in terminal.text.partition("\x1b[?1049l")[2]


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly(tmp_path: Path) -> None:
    path = written(tmp_path / "run.db")
    for words in ("live", "show", "why"):
        line = f"'{sys.executable}' -m gradscope {words} '{path}' | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.stdout == "0\n"
        assert not done.stderr
