"""Public models in ordinary trainings get no error, and next to no warning, from `gradscope run`.

All models with all recipes: `for m in MODELS: for r in RECIPES` of `recipes.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import gradscope

from zoo import recipes

pytestmark = pytest.mark.slow

SCRIPT = str(Path(recipes.__file__))
CASES = [
    ("torchvision:shufflenet_v2_x0_5", "sgd"),
    ("torchvision:mobilenet_v3_small", "ema"),
    ("timm:vit_tiny_patch16_224", "adamw"),
    ("transformers:GPT2", "scaler"),
    ("transformers:Bert", "accumulate"),
]


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_an_ordinary_training(name: str, recipe: str, tmp_path: Path) -> None:
    pytest.importorskip(name.partition(":")[0])
    done = gradscope(["run", "-o", "run.db", SCRIPT, name, recipe], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(gradscope(["show", "run.db", "-f", "json"], cwd=tmp_path).stdout)
    assert record["run"]["steps"] == recipes.STEPS
    loud = [one for one in record["findings"] if one["severity"] != "info"]
    assert [(one["code"], one["message"]) for one in loud] == []
