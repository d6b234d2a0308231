"""Two values for one setting are refused, on the command line as in the config."""

from __future__ import annotations

import pytest

from gradscope import cli
from gradscope.config import loaded_config as config
from gradscope.errors import ConfigError


def said(arguments: list[str], monkeypatch, capsys) -> tuple[object, str]:
    monkeypatch.setattr("sys.argv", ["gradscope", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "--seed", "1", "--seed", "2"], "`--seed 1` and `--seed 2` contradict"),
        (["check", "-f", "json", "--format", "csv"], "`--format json` and `--format csv`"),
        (["graph", "--lines", "--no-lines"], "`--lines` and `--no-lines` contradict"),
    ],
)
def test_two_values_of_one_option(arguments, message, monkeypatch, capsys) -> None:
    code, err = said(arguments, monkeypatch, capsys)
    assert code == 2
    assert message in err
    assert "= help: give one of them" in err


def test_the_same_again_and_lists_are_fine() -> None:
    from tests.commands.test_help import command

    words = ["demo", "--seed", "1", "--seed", "1", "-l", "a", "-l", "b"]
    inspect, rest = command("inspect", *words)
    with inspect.make_context("inspect", rest) as ctx:
        assert ctx.params["seed"] == 1
        assert ctx.params["layers"] == ["a", "b"]


def test_two_values_of_one_key() -> None:
    with pytest.raises(ConfigError, match="`steps` is given twice") as error:
        config.read("demo", ["steps=2", "steps=3"])
    assert str(error.value.problems[0].place) == "argument:3:1 (steps)"
    assert config.read("demo", ["steps=2", "steps=2"]).config.steps == 2
