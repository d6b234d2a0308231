"""The pages' commands run and print what is shown; their YAML is a config, their Python runs.

A Python block whose first line is the comment ``# name.py`` is a file for the page's commands. What
the others print is the ``text`` block right after them.

``GRADSCOPE_GOLDEN=write pytest -n 0 -m slow tests/test_pages.py`` puts what is printed today into
the pages. Read the difference afterwards.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import textwrap
import tomllib
from pathlib import Path

import processes
import pytest
import torch
from console import same
from pages import all_pages, blocks, broken_links, broken_rows, scripts, sessions, write_files

import gradscope
from gradscope import plugins
from gradscope.config import loaded_config as config

ROOT = Path(__file__).parents[1]
WRITES = os.environ.get("GRADSCOPE_GOLDEN") == "write"
PAGES = all_pages(ROOT)
README = PAGES["README.md"]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a clone of the repository to the pages' commands."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(command: str, folder: Path) -> tuple[int, list[str]]:
    program, *words = shlex.split(command)
    assert program == "gradscope"
    home = str(Path(gradscope.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home}
    done = processes.gradscope(words, cwd=folder, env=environment, merged=True)
    return done.returncode, done.stdout.splitlines()


CONSOLE = [
    pytest.param(page, session, id=f"{page}: {session[0][0]}")
    for page, text in PAGES.items()
    for session in sessions(text)
]


#: What PyTorch itself says or builds is shown as its current release does.
OF_TORCH = ("gradscope graph torchvision:vit_b_16", "gradscope check ./nets.py:Residual")
OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)


@pytest.mark.slow
@pytest.mark.numbers
@pytest.mark.parametrize(("page", "session"), CONSOLE)
def test_a_console_block_shows_what_its_commands_print(page, session, clone):
    write_files(PAGES[page], clone)
    for command, shown, code in session:
        exit_code, printed = run(command, clone)
        assert exit_code == code, "\n".join(printed)
        if shown and not (OLDER and command.startswith(OF_TORCH)) and not same(printed, shown):
            comment = f"  # exit {code}" if code else ""
            replace(page, f"$ {command}{comment}\n", shown, printed)
            assert WRITES, "\n".join([command, *printed])


def broken(line: str) -> str:
    """A long line of prose as a terminal breaks it; ``same`` sees no difference."""
    prose = line.startswith(("gradscope: ", "error[", "GS"))
    return textwrap.fill(line, 108, subsequent_indent="    ") if prose else line


def replace(page: str, before: str, old: list[str], new: list[str]) -> None:
    """Replace the lines after some text in a page, if pages are written."""
    if WRITES:
        new = list(map(broken, new))
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        was, becomes = (before + "\n".join(lines).strip("\n") + "\n" for lines in (old, new))
        assert text.count(was) == 1, was
        path.write_text(text.replace(was, becomes), encoding="utf-8")


def test_no_command_is_shown_twice():
    commands = [command for page in PAGES.values() for s in sessions(page) for command, *_ in s]
    assert [command for command in set(commands) if commands.count(command) > 1] == []


def test_the_set_up_commands_are_those_that_ci_runs():
    commands = [line for block in blocks("sh", README) for line in block.splitlines()]
    assert commands == ["pip install . && gradscope inspect", "pip install '.[test]' && pytest"]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    patterns = re.findall(r'grep -m 1 "(.*)" README\.md', script)
    assert [
        line for pattern in patterns for line in README.splitlines() if re.match(pattern, line)
    ] == commands


def test_the_readme_is_short_and_leads_to_every_page_and_command():
    assert len(README.splitlines()) <= 200
    assert [page for page in PAGES if page != "README.md" and f"]({page})" not in README] == []
    rows = re.findall(r"^\| `gradscope ([\w-]+)` \|", README, re.MULTILINE)
    assert sorted(rows) == sorted(plugins.commands("gradscope.commands"))


def test_every_command_is_run_on_some_page():
    run = {
        command.split()[1] for page in PAGES.values() for s in sessions(page) for command, *_ in s
    }
    assert set(plugins.commands("gradscope.commands")) - run == set()


def test_the_readme_says_which_python_and_torch_it_needs():
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    needed = dict(re.findall(r"(Python|PyTorch) ([\d.]+) or newer", README))
    assert f">={needed['Python']}" == project["requires-python"]
    assert f"torch>={needed['PyTorch']}" in project["dependencies"]


def test_the_readme_s_pictures_are_there():
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert len(pictures) == 4
    assert [path for path in pictures if not (ROOT / path).is_file()] == []


def test_the_map_names_files_that_are_there():
    named = re.findall(r"`([\w./]+\.py)`", PAGES["docs/architecture.md"])
    files = [f"/{path.relative_to(ROOT)}" for top in ("gradscope", "tests") for path in
             (ROOT / top).rglob("*.py")]  # fmt: skip
    new = re.compile(r"its_name|gs516_large_parameter")  # what somebody is to add
    gone = [n for n in named if not new.search(n) and not any(f.endswith(f"/{n}") for f in files)]
    assert gone == []


def test_the_glossary_has_each_word_once():
    _, glossary = PAGES["docs/architecture.md"].split("## Glossary\n")
    rows = re.findall(r"^\| ([^|]+) \|", glossary.split("\n## ")[0], re.MULTILINE)
    words = [word.strip() for row in rows for word in row.split(",")]
    assert "rank" in words
    assert [word for word in words if words.count(word) > 1] == []


def test_the_extras_that_are_named_exist():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "gradscope").rglob("*.py")]
    named = {
        extra.strip()
        for text in [*PAGES.values(), *sources]
        for found in re.findall(r"(?:gradscope|'\.)\[([a-z, ]+)\]|extra `(\w+)`", text)
        for extra in "".join(found).split(",")
    }
    assert {"hf", "export", "test"} <= named
    assert named - {*extras} == set()


def test_each_yaml_is_a_config_and_one_has_every_key(clone):
    texts = [text for page in PAGES.values() for text in blocks("yaml", page)]
    given = []
    for text in texts:
        (clone / "model.yaml").write_text(text, encoding="utf-8")
        given.append(config.read("model.yaml").given)
    every = set(config.Config.model_fields) - {"backward"}
    assert any(keys >= every for keys in given)


PYTHON = [page for page, text in PAGES.items() if scripts(text)]


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON)
def test_the_python_prints_what_is_shown(page, clone):
    write_files(PAGES[page], clone)
    names: dict[str, object] = {}
    for code, shown in scripts(PAGES[page]):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        lines = printed.getvalue().splitlines()
        if not same(lines, shown):
            replace(page, f"{code}```\n\n```text\n", shown, lines)
            assert WRITES, printed.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_and_tables_are_whole(page):
    assert broken_links(ROOT / page) == []
    assert broken_rows(PAGES[page]) == []


def test_links_that_lead_nowhere_are_noticed(tmp_path):
    page = tmp_path / "a.md"
    (tmp_path / "b.md").write_text("# One\n## Why `x`?\n## One\n", encoding="utf-8")
    page.write_text("# Here\n[a](b.md#why-x) [b](b.md#one-1) [c](#here) [d](https://x.y/z)\n")
    assert broken_links(page) == []
    page.write_text("# Here\n[a](c.md) [b](b.md#two) [c](#there) [d](b.md#one-2) [e](d.png)\n")
    assert broken_links(page) == ["c.md", "b.md#two", "#there", "b.md#one-2", "d.png"]


def test_a_row_with_a_cell_too_many_is_noticed():
    head = "| a | b |\n| --- | --- |\n"
    assert broken_rows(f"{head}| 1 \\| 2 | 3 |\n") == []
    assert broken_rows(f"{head}| `1 | 2` | 3 |\n") == ["| `1 | 2` | 3 |"]
