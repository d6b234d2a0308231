"""Every ``--help``: its examples are right, its options stand in panels, no type is shown."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
from pages import all_pages, blocks
from typer.core import TyperGroup
from typer.main import get_command

from gradscope import cli, plugins
from gradscope.click import Context

ROOM = "gradscope.commands"
#: The file of each command by its words; those of a command with commands, too.
FILES = {
    " ".join(words): importlib.import_module(".".join((ROOM, *words)).replace("-", "_"))
    for words in [
        *((name,) for name in plugins.commands(ROOM)),
        *((f, name) for f in plugins.folders(ROOM) for name in plugins.names(f"{ROOM}.{f}")),
    ]
}


def command(*words: str):
    """The command behind the first words, and the words that are its own."""
    found = get_command(cli.app())
    while words and isinstance(found, TyperGroup):
        with Context(found) as ctx:
            _, found, words = found.resolve_command(ctx, list(words))
    return found, list(words)


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


EXAMPLES = [text for file in FILES.values() for text, _ in file.EXAMPLES]
PAGES = all_pages(Path(__file__).parents[2])
#: The commands that pages show and do not run: those in the README's sentences, those for a shell.
SHOWN = sorted(
    {
        *re.findall(r"`(gradscope [\w-]+ [^`]+)`", PAGES["README.md"]),
        *(
            line.partition("#")[0].strip()
            for page in PAGES.values()
            for block in blocks("sh", page)
            for line in block.splitlines()
            if line.startswith("gradscope ")
        ),
    }
    - {"gradscope COMMAND --help"}
)


@pytest.mark.slow
@pytest.mark.parametrize("text", [*EXAMPLES, *(text for text, _ in cli._EXAMPLES), *SHOWN])
def test_an_example_can_be_typed(text: str) -> None:
    parsed = list(invocations(text))
    assert parsed
    for words in parsed:
        found, arguments = command(*words)
        with found.make_context(found.name, arguments, resilient_parsing=False) as ctx:
            assert ctx.command.name in words


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_command_shows_its_examples(name: str, monkeypatch, capsys) -> None:
    out = shown([*name.split(), "--help"], monkeypatch, capsys)
    examples = FILES[name].EXAMPLES
    assert len(examples) >= 2
    for text, what in examples:
        assert name in text
        assert f"   # {what}\n   {text}\n" in out
    assert "<bool>" not in out and "<list" not in out


def test_an_example_that_names_no_option_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        command("inspect")[0].make_context("inspect", ["--nothing"])


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
