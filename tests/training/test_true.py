"""A run's numbers are those that an unrelated tracer finds: float64, and nothing of gradscope."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.runfile.reader import RunFile
from training.agreement import disagreements
from training.corpus import ALL, EVERYTHING, HERE, Script, observed, run, traced

#: The tracer has weak references to parameters, which a swap refuses. Sampled steps of a compiled
#: model are eager, however it is compiled: one stands for all. So does one of a script that is run
#: with several words. What begins an interpreter is run for how it starts, with numbers as others.
_LEFT_OUT = (
    *("swaps", "compiled-ways=module-backend=inductor"),
    *("looks_at_itself-hooks", "warned-always", "warned-recorded", "loader_spawn"),
)
SCRIPTS = [one.param for one in ALL if one.name not in _LEFT_OUT and not one.first]

_DESCENT = """
import torch
model = torch.nn.Linear(2, 1, bias=False)
with torch.no_grad():
    model.weight.copy_(torch.tensor([[3.0, 4.0]]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
x = torch.tensor([[0.0, 2.0]])
for _ in range(2):
    optimizer.zero_grad()
    model(x).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_numbers_are_the_tracers(script: Script, runs: Path):
    ran = observed(script, runs, *EVERYTHING)
    with RunFile.open(ran.out) as recorded:
        found = disagreements(recorded, traced(script, runs))
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_the_tracer_finds_what_can_be_computed_by_hand(tmp_path: Path):
    """The loss is 2·w₁, its gradient (0, 2), clipped to (0, 1), the step (0, 0.25) of (3, 4)."""
    script = tmp_path / "descent.py"
    script.write_text(_DESCENT, encoding="utf-8")
    out = tmp_path / "trace.json"
    run([str(HERE / "tracer.py"), str(out), str(script)], tmp_path / "weights.pt", out)
    first, second = json.loads(out.read_text(encoding="utf-8"))["steps"]
    assert first["losses"] == [8.0]
    assert second["losses"] == [pytest.approx(7.5, rel=1e-6)]
    assert first["gradient_norm"] == 2.0
    assert first["clipped_norm"] == pytest.approx(1.0, rel=1e-6)
    assert first["learning_rates"] == [0.25]
    assert "optimizer" in first["optimizer"]
    (row,) = first["parameters"]
    assert ["model", "weight"] in row["names"]
    assert row["update_ratio"] == pytest.approx(0.05, rel=1e-6)


def test_a_number_that_is_wrong_is_seen(runs: Path):
    """Each number of the tracer's, changed by a ten-thousandth."""
    script = next(script for script in ALL if script.name == "dcgan")
    ran, seen = observed(script, runs, *EVERYTHING), traced(script, runs)
    with RunFile.open(ran.out) as recorded:
        for change in ("losses", "learning_rates", "gradient_norm", "clipped_norm"):
            assert disagreements(recorded, _wrong(seen, change, parameter=False)), change
        for change in ("grad_norm", "clipped_norm", "update_ratio"):
            assert disagreements(recorded, _wrong(seen, change, parameter=True)), change
        assert disagreements(recorded, {**seen, "steps": seen["steps"][:-1]})


def _wrong(seen: dict, change: str, *, parameter: bool) -> dict:
    """The tracer's report with one number of its second step a little larger."""
    changed = json.loads(json.dumps(seen))
    place = changed["steps"][1]["parameters"][-1] if parameter else changed["steps"][1]
    value = place[change]
    place[change] = [value[0] * 1.0001, *value[1:]] if isinstance(value, list) else value * 1.0001
    return changed
