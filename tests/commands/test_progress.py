"""Progress is shown on a terminal only, and only for work that takes a while."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from gradscope import progress
from gradscope.commands import _running as _progress
from gradscope.progress import Stage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error is a terminal from here on; a fixture would be overtaken by pytest's own."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def until(stream: Terminal, text: str) -> bool:
    """Wait for a text to be drawn; the line is drawn by another thread."""
    for _ in range(600):
        if text in stream.getvalue():
            return True
        time.sleep(0.01)
    return False


def test_a_listener_hears_what_runs_within_what() -> None:
    stages: list[Stage] = []
    progress.begin("nobody listens")
    with progress.handled_by(stages.append):
        with progress.within("a.yaml (1 of 2)"):
            progress.begin("building")
            progress.count(1, 3)
        progress.begin("at the end")
    progress.begin("nobody listens any more")
    assert stages == [
        Stage(("a.yaml (1 of 2)", "")),
        Stage(("a.yaml (1 of 2)", "building")),
        Stage(("a.yaml (1 of 2)", "building"), 1, 3),
        Stage(("at the end",)),
    ]


def test_what_takes_long_is_drawn_and_taken_away(monkeypatch) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    with _progress.shown_progress(), progress.within("net.yaml (2 of 5)"):
        progress.begin("optimizer steps")
        assert until(terminal, "net.yaml (2 of 5): optimizer steps")
        progress.count(7, 9)
        assert until(terminal, "left")
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is gone


def test_what_is_quick_draws_nothing(monkeypatch) -> None:
    terminal = terminal_of(monkeypatch)
    with _progress.shown_progress():
        progress.begin("something")
    assert terminal.getvalue() == ""


def test_no_terminal_no_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    with _progress.shown_progress():
        progress.begin("something")
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_an_error_takes_the_line_away_too(monkeypatch) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    with pytest.raises(ValueError, match="x"), _progress.shown_progress():
        progress.begin("something")
        assert until(terminal, "something")
        raise ValueError("x")
    assert terminal.getvalue().endswith("\x1b[2K")


def stages(run) -> list[str]:
    names: list[str] = []
    with progress.handled_by(lambda stage: names.append(": ".join(filter(None, stage.words)))):
        run()
    return list(dict.fromkeys(names))


def test_why_says_which_cause_it_looks_for(tmp_path: Path, monkeypatch) -> None:
    from gradscope.api.answering import why
    from gradscope.config import loaded_config as config

    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.cut, self.fc = nn.Linear(3, 3), nn.Linear(3, 3)\n"
        "    def forward(self, x):\n"
        "        return self.fc(self.cut(x).detach()) * 0\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = config.read("./net.py:Net", ["input.shape=[2, 3]", "loss=sum"])
    assert stages(lambda: why(loaded)) == [
        "building ./net.py:Net",
        "forward and backward",
        "why gradients are missing",
        "why gradients are zero",
    ]


def test_many_models_and_steps_are_counted() -> None:
    from gradscope.commands.check import Candidate, CheckOptions, check_all
    from gradscope.config import loaded_config as config
    from gradscope.rules import RuleSettings

    loaded = [config.read("demo", ["steps=2"]) for _ in range(2)]
    wanted = [Candidate("demo", RuleSettings(), one) for one in loaded]
    stages: list[Stage] = []
    with progress.handled_by(stages.append):
        check_all(wanted, CheckOptions())
    assert {stage.words[0] for stage in stages} == {"demo (1 of 2)", "demo (2 of 2)"}
    steps = [s for s in stages if s.words[-1] == "optimizer steps" and s.total]
    assert {(s.done, s.total) for s in steps} >= {(0, 2), (1, 2)}
