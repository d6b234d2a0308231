"""Ends of a script before its end, and the exit code of findings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import gradscope

from gradscope.runfile.reader import RunFile

SCRIPT = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(1, 11):
    x = torch.randn(8, 4)
    loss = net(x).square().mean()
    if step == 6:
        loss = loss / torch.zeros(())
    optimizer.zero_grad()
    try:
        loss.backward()
        optimizer.step()
    except Exception:
        pass
    print(step)
"""


def run(folder: Path, *options: str):
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    words = ["run", "-o", "run.db", *options, "train.py"]
    return gradscope(words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("when", ["nan", "error"])
def test_the_script_ends_before_the_step_that_is_not_finite(when, tmp_path):
    done = run(tmp_path, "--stop-on", when)
    assert (done.returncode, done.stdout.split()) == (1, ["1", "2", "3", "4", "5"])
    with RunFile.open(tmp_path / "run.db") as recorded:
        (finding,) = [f for f in recorded.findings if f.finding.code == "GS301"]
        assert finding.steps[0][0] == 6
        assert finding.origin is not None
        assert finding.origin.op == "div"


def test_by_default_it_goes_on_and_the_exit_code_is_its_own(tmp_path):
    done = run(tmp_path)
    assert (done.returncode, len(done.stdout.split())) == (0, 10)


def test_fail_on_makes_the_exit_code(tmp_path):
    done = run(tmp_path, "--fail-on", "error")
    assert (done.returncode, len(done.stdout.split())) == (1, 10)


@pytest.mark.parametrize("words", [["--stop-on", "never", "gone.py"], ["--stop-on", "bad", "x.py"]])
def test_a_mistake_on_the_command_line_runs_nothing(words, tmp_path):
    done = gradscope(["run", *words], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert not (tmp_path / "gradscope-runs").exists()
