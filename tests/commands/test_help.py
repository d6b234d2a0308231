"""Every ``--help``: its examples are right, its options stand in panels, no type is shown."""

from __future__ import annotations

import shlex

import pytest
from typer._click import Context
from typer.main import get_command

from gradscope import cli, plugins

COMMANDS = plugins.names("gradscope.commands")


def command(name: str):
    root = get_command(cli.app())
    with Context(root) as ctx:
        return root.resolve_command(ctx, [name])[1]


def shown(arguments: list[str], monkeypatch, capsys) -> str:
    monkeypatch.setattr("sys.argv", ["gradscope", *arguments])
    with pytest.raises(SystemExit):
        cli.main()
    return capsys.readouterr().out


def invocations(text: str):
    """The words of each ``gradscope …`` in a command line of the shell."""
    words = shlex.split(text)
    starts = [i for i, word in enumerate(words) if word == "gradscope"]
    for start in starts:
        rest = words[start + 1 :]
        ends = [i for i, word in enumerate(rest) if word in ("|", "&&")]
        yield rest[: ends[0]] if ends else rest


EXAMPLES = {
    text: name for name in COMMANDS for text, _ in plugins.load("gradscope.commands", name).EXAMPLES
}


@pytest.mark.parametrize("text", [*EXAMPLES, *(text for text, _ in cli._EXAMPLES)])
def test_an_example_can_be_typed(text: str) -> None:
    parsed = list(invocations(text))
    assert parsed
    for name, *arguments in parsed:
        with command(name).make_context(name, arguments, resilient_parsing=False) as ctx:
            assert ctx.command.name == name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_its_examples(name: str, monkeypatch, capsys) -> None:
    out = shown([name, "--help"], monkeypatch, capsys)
    examples = plugins.load("gradscope.commands", name).EXAMPLES
    assert len(examples) >= 2
    for text, what in examples:
        assert name in text
        assert f"   # {what}\n   {text}\n" in out
    assert "<bool>" not in out and "<list" not in out


def test_an_example_that_names_no_option_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        command("inspect").make_context("inspect", ["--nothing"])


def test_the_root_shows_examples_and_no_types(monkeypatch, capsys) -> None:
    out = shown(["--help"], monkeypatch, capsys)
    assert "Examples" in out and "gradscope inspect torchvision:resnet18" in out
    assert "<bool>" not in out


def test_options_stand_in_panels(monkeypatch, capsys) -> None:
    out = shown(["inspect", "--help"], monkeypatch, capsys)
    panels = [line.split("─ ")[1].split(" ─")[0] for line in out.splitlines() if "╭─ " in line]
    assert panels == [
        *("Arguments", "Options", "Model", "Layers"),
        *("Interventions", "Rules", "Tables", "Output", "Help"),
    ]
