"""Imports of the command line: no torch where no model runs, no command but the requested one. The
last tests show that these can fail.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradscope
from gradscope import plugins
from gradscope.records import json as record_json
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.records.run import RunInfo
from gradscope.records.training import TrainingRun
from gradscope.runfile.writer import RunWriter

HEAVY = ("torch", "torchvision", "numpy", "PIL", "sklearn", "timm", "transformers", "matplotlib")

RUN = """
import sys
{first}
from gradscope.cli import main
sys.argv = ["gradscope", *{arguments!r}]
try:
    main()
    code = 0
except SystemExit as stop:
    code = stop.code or 0
import json
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def modules(
    arguments: list[str], folder: Path, *, first: str = "", variables: dict[str, str] | None = None
) -> tuple[int, str, set[str]]:
    """Run a command in its own process; return its exit code, its output and its imports."""
    code = RUN.format(first=first, arguments=arguments)
    # The package that this test imported, wherever it is, and nothing that lies in the folder.
    home = str(Path(gradscope.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": home, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    exit_code, names = json.loads(done.stderr.splitlines()[-1])
    return exit_code, done.stdout, set(names)


def loaded(arguments: list[str], folder: Path, *, first: str = "") -> tuple[int, list[str]]:
    """The exit code of a command, and the heavy packages it imported."""
    code, _, names = modules(arguments, folder, first=first)
    return code, [name for name in HEAVY if name in names]


def commands(names: set[str]) -> set[str]:
    """The commands whose files are among the modules."""
    room = "gradscope.commands."
    files = {name.removeprefix(room) for name in names if name.startswith(room)}
    return {file for file in files if not re.search(r"(^|\.)_", file)}


def completing(words: str) -> dict[str, str]:
    """The variables with which bash asks for what may follow the words."""
    return {
        "_GRADSCOPE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = RunInfo("demo", "cpu", "float32", "train", seed=0, steps=1, loss="cross_entropy")
    report = Report("ok", run, calls=(ModuleCall("conv1", "Conv2d", call=0, order=0),))
    (tmp_path / "report.json").write_text(record_json.dumps(report), encoding="utf-8")
    (tmp_path / "bad.yaml").write_text("model: demo\nwieghts: DEFAULT\n", encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("model: [demo\n", encoding="utf-8")
    (tmp_path / "type.yaml").write_text("model: demo\nsteps: many\n", encoding="utf-8")
    run = TrainingRun("train.py", 0.0)
    RunWriter(tmp_path / "run.db", run).finish(run)
    return tmp_path


FORMATS = plugins.names("gradscope.reporters.report")

LIGHT = {
    "no arguments": ([], 0),
    "help": (["--help"], 0),
    "version": (["--version"], 0),
    "help of inspect": (["inspect", "--help"], 0),
    "help of layers": (["layers", "--help"], 0),
    "schema": (["schema"], 0),
    "init": (["init", "new.yaml"], 0),
    "an unknown key": (["inspect", "bad.yaml"], 2),
    "broken YAML": (["inspect", "broken.yaml"], 2),
    "a wrong type": (["inspect", "type.yaml"], 2),
    "a missing file": (["inspect", "nowhere.yaml"], 2),
    "an unknown override": (["inspect", "demo", "wieghts=DEFAULT"], 2),
    "an unknown option": (["inspect", "--colour"], 2),
    "show of a missing file": (["show", "nowhere.json"], 2),
    "show of a run": (["show", "run.db"], 0),
    "diff of reports": (["diff", "report.json", "report.json"], 0),
    "export": (["export", "run.db", "--to", "csv", "run.csv"], 0),
    "help of features": (["features"], 0),
    "help of features filters": (["features", "filters", "--help"], 0),
    "features without a picture": (["features", "filters", "--top", "0"], 2),
    "help of check": (["check", "--help"], 0),
    "check with wrong configs only": (["check", "broken.yaml", "bad.yaml"], 2),
    "check with an unknown rule": (["check", "demo", "--select", "GX9"], 2),
    "check with an unknown rule in the config": (["check", "demo", "rules.select=[GX9]"], 2),
    "check with a missing baseline": (["check", "demo", "--baseline", "nowhere.json"], 2),
    **{f"show as {f}": (["show", "report.json", "-f", f], 0) for f in FORMATS},
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), LIGHT.values(), ids=LIGHT)
def test_what_needs_no_torch_loads_none(arguments, code, folder):
    assert loaded(arguments, folder) == (code, [])


def test_the_package_itself_is_light(folder):
    assert loaded(["--version"], folder, first="import gradscope.config, gradscope.demo") == (0, [])


@pytest.mark.slow
def test_pictures_of_channels_need_no_scikit_learn(folder):
    code, names = loaded(["features", "filters", "conv1", "-o", "filters.png"], folder)
    assert code == 0
    assert "torch" in names
    assert "sklearn" not in names


@pytest.mark.slow
def test_inspecting_the_demo_loads_no_torchvision(folder):
    code, names = loaded(["inspect", "demo", "-o", "report2.json"], folder)
    assert code == 0
    assert "torch" in names
    assert not {"torchvision", "sklearn", "timm", "transformers", "matplotlib"} & set(names)


#: Arguments, the exit code, the commands that may be imported, and packages that nothing needs yet.
ASKED = {
    "help": (["--help"], 0, set(), {"pydantic", "yaml"}),
    "no arguments": ([], 0, set(), {"pydantic", "yaml"}),
    "version": (["--version"], 0, set(), {"pydantic", "yaml", "rich"}),
    "an unknown command": (["inspct"], 2, set(), {"yaml", "rich"}),
    "an unknown option": (["--colour"], 2, set(), {"yaml", "rich"}),
    "help of one": (["graph", "--help"], 0, {"graph"}, {"yaml"}),
    "help of one in a folder": (
        ["features", "filters", "-h"],
        0,
        {"features", "features.filters"},
        {"yaml"},
    ),
    "an unknown option of one": (["check", "--colour"], 2, {"check"}, set()),
    "an argument missing": (["show"], 2, {"show"}, {"yaml"}),
    "one that runs": (["schema"], 0, {"schema"}, {"rich"}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code", "asked", "needless"), ASKED.values(), ids=ASKED)
def test_only_the_command_that_was_asked_for_is_imported(arguments, code, asked, needless, folder):
    ended, _, names = modules(arguments, folder)
    assert (ended, commands(names), needless & names) == (code, asked, set())


COMPLETED = {
    "a command": ("gradscope in", ["init", "inspect"], set()),
    "any command": ("gradscope ", plugins.commands("gradscope.commands"), set()),
    "an option": ("gradscope graph --dep", ["--depth"], {"graph"}),
    "an option of no command": ("gradscope --vers", ["--version"], set()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("words", "offered", "asked"), COMPLETED.values(), ids=COMPLETED)
def test_completion_imports_no_other_command(words, offered, asked, folder):
    code, out, names = modules([], folder, variables=completing(words))
    assert (code, out.split()) == (0, offered)
    assert commands(names) == asked
    assert not {"torch", "yaml"} & names


@pytest.mark.slow
def test_a_command_imported_for_its_help_is_noticed(folder):
    planted = "import importlib\nfrom gradscope import plugins\n"
    planted += "def docstring(room, name, function):\n"
    planted += "    module = importlib.import_module(f'{room}.{name}'.replace('-', '_'))\n"
    planted += "    return getattr(module, function).__doc__\n"
    planted += "plugins.docstring = docstring"
    every = {name.replace("-", "_") for name in plugins.commands("gradscope.commands")}
    assert commands(modules(["--help"], folder, first=planted)[2]) == every
    variables = completing("gradscope in")
    offered = {"init", "inspect"}
    assert commands(modules([], folder, first=planted, variables=variables)[2]) == offered


def test_a_package_that_nothing_needs_yet_is_noticed(folder):
    _, _, names = modules(["--version"], folder, first="import yaml, rich, pydantic")
    assert {"yaml", "rich", "pydantic"} <= names


def test_a_heavy_import_is_noticed(folder):
    assert loaded(["--version"], folder, first="import numpy") == (0, ["numpy"])


@pytest.mark.slow
def test_a_heavy_import_behind_a_command_is_noticed(folder):
    planted = "import gradscope.records.json as r; old = r.load_shown\n"
    planted += "def load(path):\n    import torch\n    return old(path)\n"
    planted += "r.load_shown = load"
    code, names = loaded(["show", "report.json"], folder, first=planted)
    assert code == 0
    assert "torch" in names
