"""``gradscope show`` and what every command that writes a report shares with it."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from reporters.report_samples import outputs

from gradscope import plugins
from gradscope.commands import _views
from gradscope.commands.show import run
from gradscope.errors import ConfigError, OptionError
from gradscope.records import json as record_json
from gradscope.records.report import Report
from gradscope.reporters.views import View

csv = plugins.load("gradscope.reporters.report", "csv")
markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour and no width from the machine that runs the tests."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.json"
    path.write_text(record_json.dumps(outputs()), encoding="utf-8")
    return path


@pytest.fixture
def shown() -> Report:
    return outputs()


def test_without_options_a_pipe_gets_the_whole_text(
    saved: Path, shown: Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    run(saved)
    assert capsys.readouterr().out == terminal.render(shown, View())
    monkeypatch.setenv("COLUMNS", "60")  # no shell sets it for a command: somebody asks for it
    run(saved)
    assert capsys.readouterr().out == terminal.render(shown, View(width=60))


def test_a_width_can_be_asked_for(
    saved: Path, shown: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    run(saved, width=60)
    assert capsys.readouterr().out == terminal.render(shown, View(width=60))


def test_json_comes_back_as_it_was(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(saved, format="json")
    assert capsys.readouterr().out == saved.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "reporter"), [("a.csv", csv), ("a.MD", markdown), ("a.txt", terminal)]
)
def test_the_suffix_picks_the_format(
    name: str, reporter: object, saved: Path, shown: Report
) -> None:
    output = saved.with_name(name)
    run(saved, output=output)
    wanted = reporter.render(shown, View())  # type: ignore[attr-defined]
    assert output.read_bytes().decode() == wanted


def test_the_format_wins_over_the_suffix(saved: Path) -> None:
    output = saved.with_name("out.csv")
    run(saved, format="json", output=output)
    assert json.loads(output.read_text(encoding="utf-8"))["schema"] == "gradscope.report/2"


def test_a_dash_is_standard_output(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(saved, format="csv", output=Path("-"))
    assert capsys.readouterr().out.startswith("name,")
    assert not Path("-").exists()


def test_a_dash_is_standard_input(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(saved.read_bytes())))
    run(Path("-"), format="csv")
    assert capsys.readouterr().out.startswith("name,")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with pytest.raises(ConfigError, match="standard input is not a report: it is not UTF-8"):
        run(Path("-"))


@pytest.mark.parametrize(
    ("options", "message", "help"),
    [
        ({"format": "jsno"}, "unknown format `jsno`", "did you mean `json`?"),
        (
            {"format": "zzz"},
            "unknown format `zzz`",
            "one of csv, github, html, json, markdown, sarif, terminal",
        ),
        (
            {"output": Path("a.xlsx")},
            "the suffix `.xlsx` of `a.xlsx` names no format",
            "`.csv` (csv)",
        ),
        ({"output": Path("report")}, "no suffix in `report` to tell the format", "`.json` (json)"),
        ({"color": "allways"}, "unknown color mode `allways`", "did you mean `always`?"),
        ({"width": 0}, "`--width 0` is too small", "give 1 or more"),
        ({"top": 0}, "`--top 0` would show nothing", "give 1 or more"),
        ({"columns": "norm,grad_uot"}, "unknown column `grad_uot`", "did you mean `grad_out`?"),
        ({"output": Path("no/such/a.csv")}, "no such folder: `no/such`", "mkdir -p"),
        ({"output": Path("/")}, "no suffix in `/`", "-f"),
        ({"output": Path("/"), "format": "csv"}, "`/` is a folder", "name a file"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_read(
    options: dict[str, object], message: str, help: str
) -> None:
    with pytest.raises(OptionError) as caught:
        run(Path("missing.json"), **options)  # type: ignore[arg-type]
    assert caught.value.problems[0].message.startswith(message)
    assert help in str(caught.value.problems[0].help)


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        run(tmp_path / "missing.json")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize(
    ("environment", "on_terminal", "option", "file", "wanted"),
    [
        ({}, True, "auto", None, True),
        ({}, False, "auto", None, False),
        ({"NO_COLOR": "1"}, True, "auto", None, False),
        ({"NO_COLOR": ""}, True, "auto", None, True),
        ({"NO_COLOR": "1"}, True, "always", None, True),
        ({"FORCE_COLOR": "1"}, False, "auto", None, True),
        ({"FORCE_COLOR": "1"}, False, "auto", Path("a.txt"), False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, "auto", None, False),
        ({"FORCE_COLOR": "1"}, True, "never", None, False),
        ({"TERM": "dumb"}, True, "auto", None, False),
        ({}, True, "auto", Path("a.txt"), False),
        ({}, False, "always", Path("a.txt"), True),
    ],
)
def test_color(
    environment: dict[str, str],
    on_terminal: bool,
    option: str,
    file: Path | None,
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", Terminal() if on_terminal else io.StringIO())
    assert _views.use_color(file, option) is wanted


def test_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert _views.terminal_width() == 77
    monkeypatch.delenv("COLUMNS")
    assert _views.terminal_width() is None  # pytest's capture is no terminal
    monkeypatch.setenv("COLUMNS", "wide")
    assert _views.terminal_width() is None
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert _views.terminal_width() == 77
    assert _views.terminal_width(Path("a.txt")) is None
    assert _views.terminal_width(width=50) == 50
    for useless in ("", "0", "-5", "wide", "9" * 99):
        monkeypatch.setenv("COLUMNS", useless)
        assert _views.terminal_width() == 80
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((133, 40)))
    assert _views.terminal_width() == 133
    monkeypatch.setenv("COLUMNS", "80")  # pytest's own lines are as wide
