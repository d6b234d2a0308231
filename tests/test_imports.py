"""Commands that need no torch load none. The last tests show that these can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradscope
from gradscope import plugins
from gradscope.records import json as record_json
from gradscope.records.report import Report
from gradscope.records.run import RunInfo

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
print(json.dumps([code, [name for name in {heavy!r} if name in sys.modules]]), file=sys.stderr)
"""


def loaded(arguments: list[str], folder: Path, *, first: str = "") -> tuple[int, list[str]]:
    """The exit code of a command in a process of its own, and the heavy packages it imported."""
    code = RUN.format(first=first, arguments=arguments, heavy=HEAVY)
    # The package that this test imported, wherever it is, and nothing that lies in the folder.
    home = str(Path(gradscope.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    exit_code, names = json.loads(done.stderr.splitlines()[-1])
    return exit_code, names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = RunInfo("demo", "cpu", "float32", "train", seed=0, steps=1, loss="cross_entropy")
    (tmp_path / "report.json").write_text(record_json.dumps(Report("ok", run)), encoding="utf-8")
    (tmp_path / "bad.yaml").write_text("model: demo\nwieghts: DEFAULT\n", encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("model: [demo\n", encoding="utf-8")
    (tmp_path / "type.yaml").write_text("model: demo\nsteps: many\n", encoding="utf-8")
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
    "help of check": (["check", "--help"], 0),
    "check with a wrong config among others": (["check", "demo", "bad.yaml"], 2),
    "check with an unknown rule": (["check", "demo", "--select", "GS9"], 2),
    "check with an unknown rule in the config": (["check", "demo", "rules.select=[GS9]"], 2),
    "check with a missing baseline": (["check", "demo", "--baseline", "nowhere.json"], 2),
    **{f"show as {f}": (["show", "report.json", "-f", f], 0) for f in FORMATS},
}


@pytest.mark.parametrize(("arguments", "code"), LIGHT.values(), ids=LIGHT)
def test_what_needs_no_torch_loads_none(arguments, code, folder):
    assert loaded(arguments, folder) == (code, [])


def test_the_package_itself_is_light(folder):
    assert loaded(["--version"], folder, first="import gradscope.config, gradscope.demo") == (0, [])


def test_inspecting_the_demo_loads_no_torchvision(folder):
    code, names = loaded(["inspect", "demo", "-o", "report2.json"], folder)
    assert code == 0
    assert "torch" in names
    assert not {"torchvision", "sklearn", "timm", "transformers", "matplotlib"} & set(names)


def test_a_heavy_import_is_noticed(folder):
    assert loaded(["--version"], folder, first="import numpy") == (0, ["numpy"])


def test_a_heavy_import_behind_a_command_is_noticed(folder):
    planted = "import gradscope.records.json as r; old = r.load_shown\n"
    planted += "def load(path):\n    import torch\n    return old(path)\n"
    planted += "r.load_shown = load"
    code, names = loaded(["show", "report.json"], folder, first=planted)
    assert code == 0
    assert "torch" in names
