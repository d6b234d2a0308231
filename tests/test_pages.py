"""The pages' commands run and print what is shown; their YAML is a config, their Python runs.

A Python block whose first line is the comment ``# name.py`` is a file for the page's commands. What
the others print is the ``text`` block right behind them.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import all_pages, blocks, broken_links, broken_rows, scripts, sessions, write_files

import gradscope
from gradscope import config, plugins

ROOT = Path(__file__).parents[1]
PAGES = all_pages(ROOT)
README = PAGES["README.md"]

#: Numbers of another machine differ in their last shown digit.
TOLERANCE = 5e-3

_TIME = re.compile(r"[\d.]+ (s|ms|µs)\b")
_RULE = re.compile(r"─+")
_NUMBER = re.compile(r"-?[\d,]*\.?\d+(e[-+]\d+)?")


def same(found: list[str], shown: list[str]) -> bool:
    """Equal but for times, for spacing, and for the last digits of numbers."""
    one, other = (_words(lines) for lines in (found, shown))
    return len(one) == len(other) and all(map(_alike, one, other))


def _words(lines: list[str]) -> list[str]:
    text = _RULE.sub("─", "\n".join(line.rstrip() for line in lines).strip())
    return _TIME.sub("TIME", text).split()


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
        return False
    numbers = [float(word.replace(",", "")) for word in (one, other)]
    return math.isclose(*numbers, rel_tol=TOLERANCE, abs_tol=1e-8)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a clone of the repository to the pages' commands."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS")
    return tmp_path


def run(command: str, folder: Path) -> tuple[int, list[str]]:
    assert command.startswith("gradscope ")
    program = f'"{sys.executable}" -m {command}'
    home = str(Path(gradscope.__file__).parents[1])
    done = subprocess.run(
        program,
        shell=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": home},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


CONSOLE = [
    pytest.param(page, session, id=f"{page}: {session[0][0]}")
    for page, text in PAGES.items()
    for session in sessions(text)
]


@pytest.mark.parametrize(("page", "session"), CONSOLE)
def test_a_console_block_shows_what_its_commands_print(page, session, clone):
    write_files(PAGES[page], clone)
    for command, shown, code in session:
        exit_code, printed = run(command, clone)
        assert exit_code == code, "\n".join(printed)
        if shown:
            assert same(printed, shown), "\n".join([command, *printed])


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
    assert len(README.encode()) <= 15_000
    assert [page for page in PAGES if page != "README.md" and f"]({page})" not in README] == []
    commands = plugins.names("gradscope.commands")
    shown = [command.split()[1] for session in sessions(README) for command, *_ in session]
    assert [name for name in commands if name not in shown] == []


def test_each_yaml_is_a_config_and_one_has_every_key(clone):
    texts = [text for page in PAGES.values() for text in blocks("yaml", page)]
    given = []
    for text in texts:
        (clone / "model.yaml").write_text(text, encoding="utf-8")
        given.append(config.read("model.yaml").given)
    every = set(config.Config.model_fields) - {"backward"}
    assert any(keys >= every for keys in given)


PYTHON = [page for page, text in PAGES.items() if scripts(text)]


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_prints_what_is_shown(page, clone):
    write_files(PAGES[page], clone)
    names: dict[str, object] = {}
    for code, shown in scripts(PAGES[page]):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert same(printed.getvalue().splitlines(), shown), printed.getvalue()


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


SHOWN = ["loss = 2.303 · forward 9.01 ms", "layer  norm", "───────", "out    1.234e-05"]

OTHER = {
    "another number": ["loss = 2.403 · forward 9.01 ms", *SHOWN[1:]],
    "another word": [*SHOWN[:3], "fc     1.234e-05"],
    "a line too many": [*SHOWN, "fc 1.0"],
    "a line too few": SHOWN[:3],
    "another order of magnitude": [*SHOWN[:3], "out    1.234e-06"],
}


def test_times_and_spaces_make_no_difference():
    found = ["loss = 2.304 · forward 21 µs", "layer    norm", "──", "out 1.235e-05"]
    assert same(found, SHOWN)


@pytest.mark.parametrize("lines", OTHER.values(), ids=OTHER)
def test_other_output_is_noticed(lines):
    assert not same(lines, SHOWN)
