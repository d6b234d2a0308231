"""What a rule may read of one step of a training run: the parameters that this step was about."""

from __future__ import annotations

from dataclasses import replace

from gradscope.records.report import Report


class Sampled:
    """One model over the steps in which it was looked at: who trains it, and what ever trained.

    In a GAN the other optimizer's parameters have no gradient, or one that is thrown away, in half
    of all steps, and may be frozen for that long.
    """

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._trained: set[str] = set()

    def views(self, report: Report) -> dict[str, Report]:
        """The report as each choice of ``Runs.parameters`` reads it."""
        for p in report.parameters:
            if p.in_optimizer:
                self._held.add(p.name)
            if p.requires_grad:
                self._trained.add(p.name)
        stepped = [p for p in report.parameters if p.in_optimizer is not False]
        idle = [p for p in report.parameters if p.in_optimizer or p.name not in self._held]
        every = [
            p if p.requires_grad or p.name not in self._trained else replace(p, requires_grad=True)
            for p in report.parameters
        ]
        return {
            "stepped": replace(report, parameters=tuple(stepped)),
            "idle": replace(report, parameters=tuple(idle)),
            "all": replace(report, parameters=tuple(every)),
        }
