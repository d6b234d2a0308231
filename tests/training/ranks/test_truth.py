"""Figures of whole parameters, put together from what each process wrote, under every parallelism.

Held against `full_tensor()` and against one process on the whole batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradscope.commands._runs import read_history
from gradscope.reporters.report import View
from gradscope.reporters.training import terminal
from gradscope.runfile.reader import RunFile
from training.ranks.launched import launched

pytestmark = pytest.mark.slow

CASES = Path(__file__).parent / "cases.py"
#: As cases.py has it.
STEPS = 2


class Launch:
    """The cases with and without observation, of so many processes."""

    def __init__(self, folder: Path, processes: int) -> None:
        self.processes, self.folder = processes, folder
        plain = launched(folder / "plain", processes, CASES)
        assert plain.returncode == 0, plain.stderr
        watched = ["-m", "gradscope", "run", "--every", "1", "-o", "run", CASES, "--kill"]
        self.done = launched(folder / "watched", processes, *watched)
        self.plain = [self._truth("plain", rank) for rank in range(processes)]
        self.truth = [self._truth("watched", rank) for rank in range(processes)]
        with RunFile.open(folder / "watched" / "run") as run:
            self.history = read_history(run, calls=True)
            self.samples = {step: run.sample(step)[0] for step in run.sampled}

    def _truth(self, how: str, rank: int) -> list[dict[str, Any]]:
        text = (self.folder / how / f"truth-{rank}.json").read_text(encoding="utf-8")
        found: list[dict[str, Any]] = json.loads(text)
        return found

    def cases(self) -> list[tuple[int, dict[str, Any]]]:
        """Each but the one with a NaN, and the number of its first step in the run."""
        every = enumerate(self.truth[0])
        return [(1 + STEPS * i, case) for i, case in every if "nan" not in case["case"]]


@pytest.fixture(scope="module", params=[2, 4])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("ranks"), request.param)


def figures(launch: Launch, step: int) -> dict[str, dict[str, float | None]]:
    """By parameter, from the series: what ``show`` and ``export`` have."""
    return {
        one.name: {key: column[one.steps.index(step)] for key, column in one.values.items()}
        for one in launch.history.parameters
        if step in one.steps
    }


def close(number: float | None) -> object:
    """Equal but for roundings; None, as of a weight that is all zeros, is None."""
    return None if number is None else pytest.approx(number, rel=1e-6)


def clipped(total: float) -> float:
    """What `clip_grad_norm_` multiplies gradients of this total norm with."""
    return min(1.0, 0.5 / (total + 1e-6))


def test_every_parameter_is_that_of_full_tensor(launch):
    for first, case in launch.cases():
        for number, truth in enumerate(case["steps"]):
            found = figures(launch, first + number)
            where = case["case"], number
            assert set(found) == set(truth["values"]), where
            share = clipped(truth["total"])
            for name, one in found.items():
                norm, size = truth["gradients"][name], truth["values"][name]
                assert one["grad_norm"] == pytest.approx(norm, rel=1e-6), (*where, name)
                assert one["clipped_norm"] == pytest.approx(norm * share, rel=1e-6), (*where, name)
                assert one["value_norm"] == pytest.approx(size, rel=1e-6), (*where, name)
                ratio = truth["moved"][name] / size if size else None
                assert one["update_ratio"] == close(ratio), (*where, name)


def test_every_total_is_that_of_full_tensor(launch):
    steps = {step.step: step for step in launch.history.steps}
    for first, case in launch.cases():
        for number, truth in enumerate(case["steps"]):
            step, total = steps[first + number], truth["total"]
            assert step.gradient_norm == pytest.approx(total, rel=1e-6), case["case"]
            assert step.clipped_norm == close(total * clipped(total)), case["case"]
            sample = launch.samples[first + number]
            assert sample.report.totals.gradient_norm == pytest.approx(total, rel=1e-6)


def test_and_that_of_one_process_on_the_whole_batch(launch):
    steps = {step.step: step for step in launch.history.steps}
    for first, case in launch.cases():
        if "mixed" in case["case"]:  # other numbers, by its own policy
            continue
        for number, alone in enumerate(case["alone"]):
            step, found = steps[first + number], figures(launch, first + number)
            where = case["case"], number
            assert step.gradient_norm == pytest.approx(alone["total"], rel=1e-6), where
            loss = alone["loss"]
            if "accumulate" not in case["case"]:
                assert step.loss == pytest.approx(loss, rel=1e-6), where
            for name, one in found.items():
                size = alone["values"][name]
                ratio = alone["moved"][name] / size if size else None
                assert one["grad_norm"] == pytest.approx(alone["gradients"][name], rel=1e-6), where
                assert one["update_ratio"] == close(ratio), where


def test_nothing_was_changed(launch):
    for plain, watched in zip(launch.plain, launch.truth, strict=True):
        for one, other in zip(plain, watched, strict=True):
            assert one["weights"] == other["weights"], one["case"]


def test_nothing_was_sent(launch):
    """Not even where one rank alone has a NaN to locate: others would wait forever."""
    for plain, watched in zip(launch.plain, launch.truth, strict=True):
        for one, other in zip(plain, watched, strict=True):
            assert one["collectives"] == other["collectives"], one["case"]
            assert sum(one["collectives"].values()) > 0, one["case"]


def test_a_nan_of_one_rank_is_told_with_why_it_was_not_located(launch):
    events = [event for event in launch.history.events if event.kind == "non-finite"]
    assert any(event.details.get("rank") == launch.processes - 1 for event in events)
    (found,) = [
        one for one in launch.history.findings if one.origin and "waits" in one.origin.message
    ]
    assert "cannot be run again in one of them" in found.origin.message


def test_names_are_those_of_the_script(launch):
    names = {one.name for one in (*launch.history.parameters, *launch.history.calls)}
    assert not [name for name in names if "wrapped" in name or name.startswith("module.")]
    types = {kind for one in launch.history.calls for kind in one.types[:1]}
    assert not [kind for kind in types if kind.startswith(("FSDP", "Checkpoint"))]


def test_a_killed_rank_leaves_what_it_recorded(launch):
    assert launch.done.returncode != 0
    text = terminal.render(launch.history, View(width=120))
    last = launch.processes - 1
    assert f"ranks {'0, 1' if last == 1 else '0–3'} of {launch.processes} together" in text
    assert "no end was written" in text
    assert len(launch.history.steps) == STEPS * len(launch.truth[0])


def test_activations_are_one_ranks_with_the_spread_over_all(launch):
    for one in launch.history.calls:
        for low, own, high in zip(
            one.lowest["out_norm"], one.values["out_norm"], one.highest["out_norm"], strict=True
        ):
            assert own is None or low <= own <= high
    spread = [
        one for one in launch.history.calls if one.lowest["out_norm"] != one.highest["out_norm"]
    ]
    assert spread
