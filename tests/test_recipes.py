"""The recipes run under ``gradscope run`` as they are, and their steps are seen."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import processes
import pytest
from pages import blocks

from gradscope.runfile.reader import RunFile

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
#: How many steps each script makes; with ultralytics that depends on its warm-up.
STEPS = {
    "trainer.py": 8,
    "sft.py": 8,
    "accelerated.py": 8,
    "lit.py": 8,
    "finetune.py": 8,
    "detect.py": None,
    "denoise.py": 8,
}


def scripts() -> dict[str, str]:
    """The page's scripts by their names, which are in their first lines."""
    return {
        found[1]: block
        for block in blocks("python", PAGE)
        if (found := re.match(r"# (\w+\.py)\n", block))
    }


def missing(script: str) -> list[str]:
    """The packages that a script imports and that are not installed."""
    named = re.findall(r"^(?:from|import) (\w+)", script, re.MULTILINE)
    return [name for name in named if importlib.util.find_spec(name) is None]


def test_each_recipe_has_a_number_of_steps():
    assert list(scripts()) == list(STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_recipe_runs_as_it_is(name, tmp_path):
    script = scripts()[name]
    if missing(script):
        pytest.skip(f"not installed: {', '.join(missing(script))}")
    (tmp_path / name).write_text(script, encoding="utf-8")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true"}
    env["YOLO_CONFIG_DIR"] = str(tmp_path)
    done = processes.gradscope(["run", "-o", "run.db", name], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "internal error" not in done.stderr, done.stderr
    with RunFile.open(tmp_path / "run.db") as run:
        assert run.run.steps == (STEPS[name] or run.run.steps) > 0
        assert run.sampled
        assert [one for one in run.steps() if one.loss is not None]
