"""The cases of `cases.py` with and without observation, and how far gradscope's figures are off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradscope.api.reading import read_history
from gradscope.records.tensors import NormSeries, number_or_none
from gradscope.runfile.reader import RunFile
from training.ranks.launched import side_by_side

CASES = Path(__file__).parent / "cases.py"
#: As cases.py has them.
STEPS, CLIP = 2, 0.5
#: Beside the total a gradient so small is zero but for rounding, and has no digits to compare.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure beside what it should be.

    Attributes:
        step: 0 or 1.
        name: of a parameter; "" for the whole.
        figure: a column of the run file.
        against: "full_tensor", or "one process".
        size: relative; infinite where one of the two has no number.
    """

    case: str
    step: int
    name: str
    figure: str
    against: str
    size: float


class Launch:
    """The cases with and without observation, of so many processes.

    Args:
        folder: for the runs.
        processes: how many.
        options: of cases.py.
        kill: the last rank at the end of the observed run.
    """

    def __init__(self, folder: Path, processes: int, *options: str, kill: bool = False) -> None:
        self.processes, self.folder = processes, folder
        plain = side_by_side(folder / "plain", processes, CASES, *options)
        assert plain.returncode == 0, plain.stderr
        watched = ["-m", "gradscope", "run", "--every", "1", "-o", "run", CASES, *options]
        last = ["--kill"] if kill else []
        self.done = side_by_side(folder / "watched", processes, *watched, *last)
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

    def figures(self, step: int) -> dict[str, dict[str, float | None]]:
        """By parameter, from the series: what ``show`` and ``export`` have."""
        return {
            one.name: {key: column[one.steps.index(step)] for key, column in one.values.items()}
            | _read(one.norms, step)
            for one in self.history.parameters
            if step in one.steps
        }

    def differences(self) -> Iterator[Difference]:
        """All figures of all parameters and the totals, beside both truths."""
        steps = {step.step: step for step in self.history.steps}
        for first, case in self.cases():
            for against in ("full_tensor", "one process"):
                truths = case["steps"] if against == "full_tensor" else case["alone"]
                for number, truth in enumerate(truths):
                    step = steps[first + number]
                    total, share = truth["total"], clipped(truth["total"])
                    sampled = self.samples[first + number].report.totals.gradient_norm
                    whole = {
                        "gradient_norm": (step.gradient_norm, total),
                        "clipped_norm": (step.clipped_norm, total * share),
                        "totals.gradient_norm": (sampled, total),
                    }
                    if "loss" in truth and "accumulate" not in case["case"]:
                        whole["loss"] = step.loss, truth["loss"]
                    found = [("", figure, *both) for figure, both in whole.items()]
                    found += _of_parameters(self.figures(first + number), truth)
                    for name, figure, own, true in found:
                        size = _off(own, true)
                        yield Difference(case["case"], number, name, figure, against, size)


def _read(norms: NormSeries | None, step: int) -> dict[str, float | None]:
    """The norms of the same step that were read without a sample."""
    if norms is None or step not in norms.steps:
        return {}
    i = norms.steps.index(step)
    return {
        "grad_norm read": number_or_none(norms.gradient[i]),
        "clipped_norm read": number_or_none(norms.clipped[i]),
    }


def _of_parameters(
    figures: dict[str, dict[str, float | None]], truth: dict[str, Any]
) -> Iterator[tuple[str, str, float | None, float | None]]:
    for name, size in truth["values"].items():
        own, gradient = figures.get(name, {}), truth["gradients"][name]
        yield name, "value_norm", own.get("value_norm"), size
        if gradient and gradient < _ROUNDING * truth["total"]:
            continue
        for read in ("", " read"):
            yield name, f"grad_norm{read}", own.get(f"grad_norm{read}"), gradient
            got = own.get(f"clipped_norm{read}")
            yield name, f"clipped_norm{read}", got, gradient * clipped(truth["total"])
        ratio = truth["moved"][name] / size if size else None
        yield name, "update_ratio", own.get("update_ratio"), ratio


def _off(own: float | None, true: float | None) -> float:
    if own == true:
        return 0.0
    return abs(own - true) / abs(true) if own is not None and true else float("inf")


def clipped(total: float) -> float:
    """Return the factor of `clip_grad_norm_` for gradients of this total norm."""
    return min(1.0, CLIP / (total + 1e-6))
