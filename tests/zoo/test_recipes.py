"""Public models in ordinary trainings get no error, and next to no warning, from `gradscope run`.

All models with all recipes: `for m in MODELS: for r in RECIPES` of `recipes.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zoo import recipes

pytestmark = pytest.mark.slow

SCRIPT = str(Path(recipes.__file__))
CASES = [
    ("torchvision:resnet18", "sgd"),
    ("torchvision:mobilenet_v3_small", "ema"),
    ("timm:vit_tiny_patch16_224", "adamw"),
    ("transformers:GPT2", "scaler"),
    ("transformers:Bert", "accumulate"),
]


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_an_ordinary_training(name: str, recipe: str, tmp_path: Path) -> None:
    pytest.importorskip(name.partition(":")[0])
    run = [sys.executable, "-m", "gradscope", "run", "-o", "run.db", SCRIPT, name, recipe]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    show = [sys.executable, "-m", "gradscope", "show", "run.db", "-f", "json"]
    record = json.loads(subprocess.run(show, cwd=tmp_path, capture_output=True, check=True).stdout)
    assert record["run"]["steps"] == recipes.STEPS
    loud = [one for one in record["findings"] if one["severity"] != "info"]
    assert [(one["code"], one["message"]) for one in loud] == []
