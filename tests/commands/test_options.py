"""Options in groups, and what a command does before a model runs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import gradscope
from gradscope.commands._options import takes_groups


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option(help="Across.")] = 3
    height: Annotated[int | None, typer.Option(help="Down.")] = None


@takes_groups
def run(name: str, deep: bool = False, *, size: Size, last: str = "z") -> None:
    """Print all that was given."""
    print(name, deep, size, last)


def test_the_options_of_a_group_stand_in_its_place() -> None:
    assert list(inspect.signature(run).parameters) == ["name", "deep", "width", "height", "last"]


def test_a_group_reaches_the_command_whole() -> None:
    app = typer.Typer()
    app.command()(run)
    result = CliRunner().invoke(app, ["box", "--width", "4", "--last", "y"])
    assert result.output == "box False Size(width=4, height=None) y\n"


def test_a_command_can_be_called_with_less(capsys) -> None:
    run("box", height=2)
    assert capsys.readouterr().out == "box False Size(width=3, height=2) z\n"


@pytest.mark.slow
def test_the_garbage_collector_rests_only_while_torch_is_imported() -> None:
    code = (
        "import gc\n"
        "from gradscope.commands._model import importing_torch\n"
        "with importing_torch():\n"
        "    assert not gc.isenabled()\n"
        "    import torch\n"
        "assert gc.isenabled() and gc.get_freeze_count()\n"
        "with importing_torch():\n"
        "    assert gc.isenabled()\n"
    )
    home = Path(gradscope.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=home, check=True, capture_output=True, text=True
    )
    assert not done.stderr  # where Triton tells of leaks
