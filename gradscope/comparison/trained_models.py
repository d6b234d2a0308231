"""The models of two training runs, compared as saved reports are in each step sampled in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradscope.comparison.reports import compare_reports
from gradscope.errors import OptionError
from gradscope.records.diff import DiffReport, ParameterDiff
from gradscope.records.report import Report
from gradscope.runfile.reader import RunFile


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One model in one step of both runs.

    Attributes:
        model: its name, where there are several.
        alone: the models, of A or of B, that could not be compared.
    """

    step: int
    model: str
    report: DiffReport
    alone: Sequence[str]

    @property
    def diverges(self) -> bool:
        return bool(self.report.findings) or worst_update(self.report) is not None

    @property
    def where(self) -> str:
        return f"step {self.step}" + (f" of {self.model}" if self.model else "")


def compare_models(
    sampled: Sequence[int], a: RunFile, b: RunFile, match: Sequence[str]
) -> ComparedModel | None:
    """The first model that diverges, in the first step in which one does; else one of the last
    step.

    Raises:
        OptionError: no model can be compared in any step.
    """
    pairs = _pairs([model.name for model in a.models], [model.name for model in b.models])
    several = len(a.models) > 1 or len(b.models) > 1
    alone = dict.fromkeys(model.name for model in a.models if model.name not in pairs)
    alone |= dict.fromkeys(model.name for model in b.models if model.name not in pairs.values())
    last: ComparedModel | None = None
    failure: OptionError | None = None
    for step in sampled:
        ours, theirs = _reports(a, step), _reports(b, step)
        for name, other in pairs.items():
            if name not in ours or other not in theirs:
                continue
            try:
                report = compare_reports(
                    *(ours[name], theirs[other], match), files=(str(a.path), str(b.path))
                )
            except OptionError as error:  # nothing in common
                failure, alone[name] = failure or error, None
                continue
            found = ComparedModel(step, name if several else "", report, tuple(alone))
            if found.diverges:
                return found
            last = found if last is None or last.step < step else last
    if last is None and failure is not None:
        raise failure
    return None if last is None else replace(last, alone=tuple(alone))


def _pairs(a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    """The models of the same name; others by their order."""
    others = (name for name in b if name not in a)
    pairs = {name: name if name in b else next(others, None) for name in a}
    return {name: other for name, other in pairs.items() if other is not None}


def _reports(run: RunFile, step: int) -> dict[str, Report]:
    """What is known of each model in a step, by the model's name."""
    names = {model.id: model.name for model in run.models}
    return {
        names[one.model]: replace(one.report, status="ok")
        for one in run.sample(step)
        if one.model in names
    }


def worst_update(report: DiffReport) -> ParameterDiff | None:
    """The parameter whose updates are most different though its gradients are not."""
    differing = [
        one
        for one in report.parameters
        if one.gradient is not None
        and one.gradient.note is None
        and not one.gradient.diverges
        and update_error(one) > report.step
    ]
    return max(differing, key=update_error) if differing else None


def update_error(parameter: ParameterDiff) -> float:
    """|b − a| / a of the update ratios."""
    a, b = parameter.update_ratios or (0.0, 0.0)
    return abs(b - a) / a if a else math.inf if b else 0.0
