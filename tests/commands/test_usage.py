"""Messages of the command line on mistakes, and its help."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from gradscope import cli, plugins
from gradscope.errors import Place, Problem

COMMANDS = plugins.commands("gradscope.commands")


def ends(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["gradscope", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


@pytest.mark.parametrize(
    ("arguments", "message", "help"),
    [
        (["inspekt"], "unknown command `inspekt`", "did you mean `inspect`?"),
        (["model.yaml"], "unknown command `model.yaml`", "a MODEL comes after one of these"),
        (["inspect", "--colums", "norm"], "unknown option `--colums`", "did you mean `--columns`?"),
        (["inspect", "--zzz"], "unknown option `--zzz`", "`gradscope inspect --help`"),
        (["features", "filtres"], "unknown command `filtres`", "did you mean `filters`?"),
        (["features", "filters", "--tob", "3"], "unknown option `--tob`", "mean `--top`?"),
        (["run"], "`SCRIPT.py | -m MODULE [ARGS]…` is missing", "`gradscope run --help`"),
        (["inspect", "--steps", "x"], "Invalid value for '--steps'", "`gradscope inspect --help`"),
        (["inspect", "-l"], "Option '-l' requires an argument", "`gradscope inspect --help`"),
    ],
)
def test_a_mistake_has_the_form_of_all_errors(
    arguments: list[str],
    message: str,
    help: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ends(arguments, monkeypatch) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"error: {message}")
    assert f"= help: {help}" in err or help in err.splitlines()[-1]


def test_no_words_at_all_show_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends([], monkeypatch) == 0
    out, err = capsys.readouterr()
    assert "Usage:" in out
    assert not err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_listed_with_what_its_own_help_says_first(command: str) -> None:
    run = importlib.import_module(f"gradscope.commands.{command.replace('-', '_')}").run
    assert plugins.docstring("gradscope.commands", command, "run") == inspect.getdoc(run)


@pytest.mark.parametrize("command", plugins.names("gradscope.commands"))
def test_the_flag_that_a_bug_asks_for_is_there(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends([command, "--help"], monkeypatch) == 0
    assert "--debug" in capsys.readouterr().out


def test_the_help_of_a_flag_names_no_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(["inspect", "--help"], monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    for flag in ("--verify", "--force", "--debug"):
        assert "<bool>" not in next(line for line in lines if flag in line)
    assert "[MODEL|KEY=VALUE]..." in "\n".join(lines)


def test_layers_align_wide_names_and_escape_what_does_not_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        for name in ('\u5c42\u5c42', 'a\\x1b[31m'):\n"
        "            self.add_module(name, nn.Linear(4, 4))\n",
        encoding="utf-8",
    )
    assert ends(["layers", "./odd.py:Net", "input.shape=[1, 4]"], monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    wide = next(line for line in lines if "\u5c42" in line)
    plain = next(line for line in lines if r"a\x1b[31m" in line)
    assert wide.index("Linear") == plain.index("Linear") - 2


def test_a_lazy_layer_has_no_shape_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "model={_target_: torch.nn.LazyLinear, out_features: 3}"
    assert ends(["layers", model], monkeypatch) == 0
    assert "weight (lazy)  bias (lazy)" in capsys.readouterr().out


def test_an_error_does_not_drive_the_terminal() -> None:
    said = Problem("red \x1b[31m \u202e \udcff", Place("a.yaml", 1, 2, text="\tx\x07")).render()
    assert said.splitlines()[0] == r"error: red \x1b[31m \u202e \udcff"
    assert "\tx\\x07" in said
