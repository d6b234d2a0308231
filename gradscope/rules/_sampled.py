"""Reduces a sample to what a rule may read: the parameters that trained in the step."""

from __future__ import annotations

from dataclasses import replace

from gradscope.records.report import Report
from gradscope.records.training import StepSample


class Sampled:
    """One model over its sampled steps, with the parameters that trained at least once.

    In a GAN, the other optimizer's parameters have no gradient, or a discarded one, in half of all
    steps, and may be frozen in these steps.
    """

    def __init__(self) -> None:
        self._trained: set[str] = set()

    def views(self, sample: StepSample) -> dict[str, Report]:
        """Return the report for each choice of ``Runs.parameters``."""
        report = sample.report
        self._trained.update(p.name for p in report.parameters if p.requires_grad)
        unheld = frozenset(sample.unheld)
        stepped = [p for p in report.parameters if p.in_optimizer is not False]
        held = [p for p in report.parameters if p.in_optimizer is not False or p.name in unheld]
        every = [
            p if p.requires_grad or p.name not in self._trained else replace(p, requires_grad=True)
            for p in report.parameters
        ]
        return {
            "stepped": replace(report, parameters=tuple(stepped)),
            "unheld": replace(report, parameters=tuple(held)),
            "all": replace(report, parameters=tuple(every)),
        }
