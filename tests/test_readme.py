"""The README's commands run and print what it shows; its YAML is a config, its Python runs."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
from pathlib import Path

import processes
import pytest
from console import same

import gradscope
from gradscope import config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    """The contents of the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def sessions() -> list[list[tuple[str, list[str], int]]]:
    """Each console block as its commands, the lines that they print, and their exit codes."""
    found = []
    for block in blocks("console"):
        session: list[tuple[str, list[str], int]] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                command, _, comment = line[2:].partition("  # exit ")
                session.append((command, [], int(comment or 0)))
            else:
                session[-1][1].append(line)
        found.append(session)
    return found


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a clone of the repository to the README's commands."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS")
    return tmp_path


def run(command: str, folder: Path) -> tuple[int, list[str]]:
    program, *words = shlex.split(command)
    assert program == "gradscope"
    home = str(Path(gradscope.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home}
    done = processes.gradscope(words, cwd=folder, env=environment, merged=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.numbers
@pytest.mark.parametrize("session", sessions(), ids=lambda session: session[0][0])
def test_a_console_block_shows_what_its_commands_print(session, clone):
    for command, shown, code in session:
        exit_code, printed = run(command, clone)
        assert exit_code == code, "\n".join(printed)
        if shown:
            assert same(printed, shown), "\n".join([command, *printed])


def test_the_set_up_commands_are_those_that_ci_runs():
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert commands == ["pip install . && gradscope inspect", "pip install '.[test]' && pytest"]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    patterns = re.findall(r'grep -m 1 "(.*)" README\.md', script)
    assert [
        line for pattern in patterns for line in README.splitlines() if re.match(pattern, line)
    ] == commands


def test_the_yaml_is_a_config(clone):
    (text,) = blocks("yaml")
    (clone / "model.yaml").write_text(text, encoding="utf-8")
    loaded = config.read("model.yaml")
    assert loaded.given >= set(config.Config.model_fields) - {"backward"}


def test_the_python_runs():
    (code,) = blocks("python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert [line.split()[0] for line in printed.getvalue().splitlines()] == [
        "(root)",
        "0",
        "1",
        "2",
    ]


def test_the_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
