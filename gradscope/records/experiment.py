"""An experiment: short trainings of one script that differ in one thing, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gradscope.records.report import Finding
from gradscope.records.showing import Plotted

#: Causes that an experiment can find.
CAUSES = (
    *("model-or-loss", "input-unused", "targets-unrelated"),
    *("learning-rate", "regularisation", "precision"),
)
#: The arm that all are compared with, its twin, and the arms that change the model's inputs.
PLAIN, SEED, DATA = "as-it-is", "other-seed", ("one-batch", "no-input", "mismatched")
#: The arms that give each position of a sequence the target of its neighbour.
SHIFTED = ("targets-earlier", "targets-later")
#: Beginning of the names of arms that change the learning rate.
RATE = "learning-rate"
#: States of an arm.
RAN, LEFT_OUT, FAILED = "ran", "left-out", "failed"


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The result of one arm, for the loss of one optimizer.

    Attributes:
        name: the arm's name on the command line.
        intervention: the change in words.
        state: "ran", "left-out" or "failed".
        steps: the number of its steps.
        losses: the loss of each step; None for NaN or Inf.
        verdict: the arm's result, or why it was left out or failed, in one line.
        optimizer: the optimizer of this loss, if several have separate losses.
        start, end: the loss at the start, and the median of the last fifth of the steps.
        slope: the change of the loss per step in the last third, with its 95 % interval.
        seconds: the duration.
    """

    name: str
    intervention: str
    state: str = RAN
    steps: int = 0
    losses: tuple[float | None, ...] = ()
    verdict: str = ""
    optimizer: str | None = None
    start: float | None = None
    end: float | None = None
    slope: float | None = None
    slope_low: float | None = None
    slope_high: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ExperimentReport(Plotted):
    """Result of one ``gradscope experiment``.

    Attributes:
        script: its path as on the command line, with its arguments.
        status: "findings" if a cause was found, "failed" if *as it is* did not run, else "ok".
        cause: one of ``CAUSES``; None if the arms show none.
        message: the verdict in words.
        evidence: the numbers that support it, a sentence each.
        advice: the next step.
        findings: findings of the rules of ``gradscope run``, in the arm that they explain.
        notices: notices on the run.
    """

    script: str
    schema: str = "gradscope.experiment/1"
    status: str = "ok"
    versions: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    cause: str | None = None
    message: str = ""
    evidence: tuple[str, ...] = ()
    advice: str | None = None
    arms: tuple[ArmResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    notices: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<gradscope.ExperimentReport of {self.script}: {self.cause or 'no cause'}>"

    @property
    def ran(self) -> Sequence[ArmResult]:
        """The arms with a loss."""
        return [one for one in self.arms if one.state == RAN]
