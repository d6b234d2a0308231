"""Two training runs compared: the first step in which they part, and the layer."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from torch import nn

import gradscope
from gradscope.comparison.runs import compare_runs
from gradscope.errors import OptionError
from gradscope.records.diff import DiffReport
from gradscope.runfile.reader import RunFile


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def trained(
    path: Path,
    *,
    fault: int | None = None,
    rate: float = 0.1,
    steps: int = 12,
    decay: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A run; in the step ``fault`` what the first layer returns is made larger by 1 %."""
    torch.manual_seed(0)
    model = Net().to(dtype)
    x, y = torch.randn(5, 6, dtype=dtype), torch.tensor([0, 1, 2, 0, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    forward = model.first.forward
    with gradscope.watch(model, optimizer, out=path, every=2):
        for step in range(1, steps + 1):
            if step == fault:
                model.first.forward = lambda x: forward(x) * 1.01
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


def compared(a: Path, b: Path) -> DiffReport:
    with RunFile.open(a) as one, RunFile.open(b) as other:
        return compare_runs(one, other)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "plain": trained(folder / "plain.db"),
        "again": trained(folder / "again.db"),
        "wide": trained(folder / "wide.db", dtype=torch.float64),
        "fault": trained(folder / "fault.db", fault=6),
        "rate": trained(folder / "rate.db", rate=0.2),
        "long": trained(folder / "long.db", steps=20),
    }


@pytest.mark.slow
@pytest.mark.parametrize("other", ["again", "long"])
def test_two_equal_runs_do_not_part(runs, other):
    report = compared(runs["plain"], runs[other])
    assert (report.status, report.findings) == ("ok", ())
    assert {row.activation.error for row in report.calls} == {0.0}
    assert "12 steps are recorded in both runs and compared" in report.notices[0]


def test_the_step_and_the_layer_are_named(runs):
    """Step 6 is looked at: of every second step the even ones, after the first three."""
    parted, layer = compared(runs["plain"], runs["fault"]).findings
    assert parted.code == "GD106"
    assert "diverge in step 6: the gradient norm is" in parted.message
    assert "in step 5 the relative error was 0.0e+00" in parted.message
    assert (layer.code, layer.name) == ("GD101", "first")
    assert "in step 6, " in layer.message or "in step 7, " in layer.message


def test_the_parameter_is_named_at_a_step_that_was_not_sampled(runs, tmp_path):
    """Step 7 is not looked at, but its gradients are read."""
    paths = runs["plain"], trained(tmp_path / "fault.db", fault=7)
    parted = compared(*paths).findings[0]
    assert "diverge in step 7" in parted.message
    apart: dict[str, float] = {}
    norms = []
    for path in paths:
        with RunFile.open(path) as run:
            assert 7 not in run.sampled
            norms.append(run.norm_series())
    for (model, name), one in norms[0].items():
        a, b = one.gradient[6], norms[1][model, name].gradient[6]
        apart[name] = abs(b - a) / a
    assert f"the gradient of `{max(apart, key=apart.get)}` differs most: " in parted.message


def test_the_figures_are_those_of_the_runs(runs):
    found = compared(runs["plain"], runs["fault"]).findings[0]
    norms = []
    for name in ("plain", "fault"):
        with RunFile.open(runs[name]) as run:
            norms.append(run.steps(6, 6)[0].gradient_norm)
    assert found.value == pytest.approx(abs(norms[1] - norms[0]) / norms[0], rel=1e-12)


def test_another_learning_rate_is_named_before_it_shows(runs):
    found = compared(runs["plain"], runs["rate"]).findings[0]
    assert "diverge in step 1: a learning rate is 0.1 in A and 0.2 in B" in found.message
    assert found.value == pytest.approx(1.0)


def test_another_optimizer_is_named_by_what_it_does(tmp_path):
    """Its learning rate is the same, and so are all gradients of the first step."""
    a = trained(tmp_path / "a.db", steps=3)
    b = trained(tmp_path / "b.db", steps=3, decay=0.1)
    report = compared(a, b)
    (found,) = [finding for finding in report.findings if finding.cause == "optimizer"]
    assert found.code == "GD106"
    assert found.message.startswith("in step 1, its update ratio is ")
    ratios = {row.name: row.update_ratios for row in report.parameters}
    assert found.value == pytest.approx(abs(ratios[found.name][1] / ratios[found.name][0] - 1))


def test_other_random_numbers_part_at_once(runs):
    """A float64 batch is another draw."""
    found = compared(runs["plain"], runs["wide"]).findings[0]
    assert "diverge in step 1" in found.message


def test_runs_without_a_common_step(runs, tmp_path):
    later = shutil.copy(runs["plain"], tmp_path / "later.db")
    with contextlib.closing(sqlite3.connect(later)) as file, file:
        file.execute("UPDATE step SET step = step + 1000")
    with pytest.raises(OptionError, match="no step in common"):
        compared(runs["plain"], later)


def test_a_run_without_a_step_is_named(runs, tmp_path):
    empty = trained(tmp_path / "empty.db", steps=0)
    with pytest.raises(OptionError, match=r"empty\.db` has no step"):
        compared(runs["plain"], empty)


@pytest.mark.parametrize(
    ("processes", "factor", "cause"),
    [
        ((1, 4), 4.0, "sum"),
        ((1, 4), 0.25, "twice"),
        ((4, 1), 0.25, "sum"),
        ((4, 1), 4.0, "twice"),
        ((2, 2), 2.0, None),
        ((1, 4), 2.0, None),
        ((1, 4), 1.0, None),
    ],
)
def test_a_gradient_off_by_the_number_of_processes(runs, tmp_path, processes, factor, cause):
    paths = [shutil.copy(runs["plain"], tmp_path / f"{name}.db") for name in "ab"]
    for path, count, scale in zip(paths, processes, (1.0, factor), strict=True):
        with sqlite3.connect(path) as file:
            file.execute("UPDATE run SET world_size = ?", (count,))
            file.execute("UPDATE step SET gradient_norm = gradient_norm * ?", (scale,))
        file.close()
    found = [one for one in compared(*paths).findings if one.code == "GD107"]
    assert [one.cause for one in found] == ([] if cause is None else [cause])


def test_a_norm_that_one_run_has_not_read_is_no_difference(runs, tmp_path):
    paths = [shutil.copy(runs["plain"], tmp_path / f"{name}.db") for name in "ab"]
    with sqlite3.connect(paths[1]) as file:
        file.execute("UPDATE step SET gradient_norm = NULL, clipped_norm = NULL WHERE step = 5")
    file.close()
    assert compared(*paths).findings == ()


def adversaries(path: Path, *, fault: bool = False, other: type[nn.Module] = Net) -> Path:
    """A run that trains two models in turn; at fault is the second."""
    torch.manual_seed(0)
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, 0, 1])
    one, two = Net(), other()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, two)]
    if fault:
        forward = two.second.forward
        two.second.forward = lambda x: forward(x) * 1.01
    with gradscope.watch([one, two], optimizers, out=path, every=1):
        for _ in range(3):
            for model, optimizer in zip((one, two), optimizers, strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    return path


def test_of_several_models_the_first_that_departs_is_told(tmp_path):
    report = compared(adversaries(tmp_path / "a.db"), adversaries(tmp_path / "b.db", fault=True))
    found = {(finding.code, finding.name) for finding in report.findings}
    assert ("GD101", "second") in found
    assert any("in step 2 of two, " in finding.message for finding in report.findings)
    assert any("the tables are of step 2 of two" in notice for notice in report.notices)


def test_several_models_that_are_the_same(tmp_path):
    report = compared(adversaries(tmp_path / "a.db"), adversaries(tmp_path / "b.db"))
    assert (report.status, report.findings) == ("ok", ())


class Other(nn.Module):
    """Nothing of ``Net`` is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x[:, None])[..., 0]


def test_a_model_that_the_other_run_has_not_is_said(tmp_path):
    report = compared(adversaries(tmp_path / "a.db"), adversaries(tmp_path / "b.db", other=Other))
    assert any(notice.startswith("two: not compared") for notice in report.notices)
