"""A run records attention, experts and residual stream at its sampled steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import gradscope, python

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import torch
import torch.nn.functional as F
from rules.small_transformers import Decoder

torch.manual_seed(0)
model = Decoder(mixture=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(4):
    ids = torch.randint(0, 24, (4, 12))
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


@pytest.mark.slow
def test_parts_of_a_run(tmp_path: Path):
    source = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    plain = python(["train.py"], cwd=tmp_path)
    ran = gradscope(["run", "--every", "1", "-o", "all.db", "train.py"], cwd=tmp_path)
    assert ran.stdout == plain.stdout
    assert plain.stdout.count("0x") == 4
    shown = gradscope(["show", "all.db", "-f", "json"], cwd=tmp_path)
    data = json.loads(shown.stdout)
    names = {kind: [one["name"] for one in data[kind]] for kind in ("attention", "experts")}
    assert names["attention"] == ["blocks.0.attention", "blocks.1.attention"]
    assert names["experts"] == ["blocks.0.mlp", "blocks.1.mlp"]
    assert [one["name"] for one in data["residual"]] == ["blocks.0", "blocks.1"]
    first = data["experts"][0]
    assert first["steps"] == [1, 2, 3, 4]
    for share in first["values"]["share"]:
        assert len(share) == 8
        assert sum(share) == pytest.approx(1)
    assert all(len(heads) == 4 for heads in data["attention"][0]["values"]["entropy"])
    csv = gradscope(["show", "all.db", "--table", "attention", "-f", "csv"], cwd=tmp_path)
    assert len(csv.stdout.splitlines()) == 1 + 2 * 4 * 4
    page = gradscope(["show", "all.db", "-f", "html"], cwd=tmp_path)
    assert "blocks.1.attention head 3" in page.stdout
    assert "blocks.0.mlp expert 7" in page.stdout
    gradscope(["run", "--every", "1", "--probe", "none", "-o", "none.db", "train.py"], cwd=tmp_path)
    none = json.loads(gradscope(["show", "none.db", "-f", "json"], cwd=tmp_path).stdout)
    assert none["attention"] == none["experts"] == none["residual"] == []
