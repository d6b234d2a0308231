"""``experiment``: short trainings of a script that differ in one thing, and the verdict."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradscope.api.reading import read_history
from gradscope.errors import OptionError
from gradscope.experiment.arm_runs import ArmRun, ArmRuns
from gradscope.experiment.arms import AS_IT_IS, Arm, chosen
from gradscope.experiment.comparison import Arms, Curve, Dependence
from gradscope.experiment.judge import Judged, course, gains_nothing, judge
from gradscope.experiment.scratch import Scratch
from gradscope.experiment.script_facts import losses_of
from gradscope.records.experiment import FAILED, LEFT_OUT, ArmResult, ExperimentReport
from gradscope.records.training import TrainingStep
from gradscope.rules import folded
from gradscope.training.launch import Script
from gradscope.version import __version__

#: Without another number.
STEPS, SECONDS = 100, 60.0
#: The mean of a step's losses equals the loss function's result within this share.
_SAME_VALUE = 1e-4
#: The rule that finds steps which together hardly move the weights.
_TINY = "GS612"
#: The rule whose errors are layers without a gradient, as all units are off.
_DEAD = "GS103"


def experiment(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    arms: Sequence[str] = (),
    steps: int = STEPS,
    seconds: float = SECONDS,
    jobs: int = 1,
) -> ExperimentReport:
    """Run a training script several times, each with one change, to find out why it does not learn.

    Each arm runs the script in a separate process, in a scratch copy of the working folder.

    Args:
        script: the file, or "-m pkg.module".
        arguments: the arguments of the script.
        arms: the arms to run in addition to ``as-it-is`` and ``other-seed``, by name; without
            names, all that apply to the script.
        steps: an arm ends after this many steps, counted over all optimizers.
        seconds: it ends after this time, if that comes first.
        jobs: the number of arms that run at a time.

    Returns:
        The verdict; its ``cause`` is None if the arms show none.

    Raises:
        OptionError: there is no such script or arm, or a number is not usable.
    """
    module = str(script).startswith("-m ")
    words = str(script).removeprefix("-m ")
    given = Script(words, tuple(arguments), is_module=module)
    return Experiment(given, chosen(arms), steps, seconds, jobs).report()


class Experiment:
    """An experiment that is ready to run.

    Attributes:
        interruption: the reason for an early end: Ctrl-C, or a signal.
        scratch: the parts of the copy of the working folder.

    Raises:
        OptionError: the script cannot be read, or a number is not usable.
    """

    def __init__(
        self, script: Script, arms: Sequence[Arm], steps: int, seconds: float, jobs: int
    ) -> None:
        script.check()
        if not 0 < seconds < float("inf"):
            raise OptionError(f"`--seconds {seconds:g}` is not a time", help="give more than 0")
        if steps < 1 or jobs < 1:
            raise OptionError("`--steps` and `--jobs` are 1 or more")
        self.arms, self.steps, self.seconds, self.jobs = tuple(arms), steps, seconds, jobs
        self.scratch = Scratch.of(Path.cwd())
        self.script = _from(self.scratch.source, script)
        self.interruption: KeyboardInterrupt | None = None

    def report(self) -> ExperimentReport:
        """Run all arms, and judge them. After Ctrl-C, judge the arms that have ended."""
        runs = ArmRuns(
            *(self.script, self.steps, self.seconds, self.jobs, self.scratch),
            *(read_history, _unlearned),
        )
        found = runs.run(self.arms)
        self.interruption = runs.interruption
        return self._judged(found)

    def _judged(self, found: dict[Arm, ArmRun]) -> ExperimentReport:
        words = [self.script.words, *map(shlex.quote, self.script.arguments)]
        report = ExperimentReport(
            " ".join(words),
            versions={"gradscope": __version__, "python": platform.python_version()},
            steps=self.steps,
            seconds=self.seconds,
        )
        notices = ["interrupted: not every arm ran"] if self.interruption else []
        plain = found.get(AS_IT_IS)
        if plain is None or plain.fault is not None or plain.history is None:
            message = "interrupted before the first arm ended" if plain is None else plain.fault
            arms = tuple(_without_loss(one) for one in found.values())
            advice = None if plain is None else plain.advice
            report = replace(report, status="failed", message=message or "", arms=arms)
            return replace(report, advice=advice)
        versions = {**report.versions, **plain.history.run.versions}
        report = replace(report, versions=versions, notices=tuple(notices))
        losses = losses_of(plain.history.steps)
        judged = _verdict(found, losses)
        ordered = [found[arm] for arm in self.arms if arm in found]
        rows = [row for one in ordered for row in _rows(one, losses, judged)]
        return replace(
            report,
            status="findings" if judged.cause else "ok",
            cause=judged.cause,
            message=judged.message,
            evidence=judged.evidence,
            advice=judged.advice,
            arms=tuple(rows),
            findings=_findings(found, judged.cause),
        )


def _from(folder: Path, script: Script) -> Script:
    """Return the script's path from the folder, if it is inside: then its copy runs."""
    path = Path(script.name)
    if script.is_module or not path.is_absolute() or not path.is_relative_to(folder):
        return script
    return replace(script, name=str(path.relative_to(folder)))


def _unlearned(found: dict[Arm, ArmRun]) -> bool:
    """Return True if these arms show that the script gains nothing from its inputs."""
    plain = found[AS_IT_IS].history
    losses = () if plain is None else losses_of(plain.steps)
    return len(losses) == 1 and gains_nothing(_compared(found, losses))


def _verdict(found: dict[Arm, ArmRun], losses: Sequence[str]) -> Judged:
    """Return the verdict on the arms that ran."""
    plain = found[AS_IT_IS]
    if len(losses) > 1:
        names = " and ".join(losses)
        return Judged(None, f"undetermined: {names} have a loss each, so neither shows learning")
    if plain.notes.get("draws"):
        return Judged(
            None,
            "undetermined: the script draws its data from a distribution, as an agent does. "
            "Its loss does not show whether it learns: compare the returns that it prints",
        )
    return judge(_compared(found, losses))


def _compared(found: dict[Arm, ArmRun], losses: Sequence[str]) -> Arms:
    """Return the arms that have a loss, with their notes."""
    plain = found[AS_IT_IS]
    ran = {one.arm.name: one for one in found.values() if one.fault is None}
    curves = {name: _curve(one, losses) for name, one in ran.items()}
    one_batch = ran.get("one-batch")
    floor = None if one_batch is None else _floor(one_batch.notes, curves["one-batch"])
    with_loss = {name: curve for name, curve in curves.items() if curve.losses}
    seen = {} if "mismatched" not in ran else ran["mismatched"].notes
    repeats = seen.get("samples", 0) / max(1, seen.get("distinct", 0))
    blind = {} if "no-input" not in ran else ran["no-input"].notes
    relation = blind.get("relation")
    dependence = None if relation is None else Dependence(**relation)
    rate_left = _rate_left(_steps(plain, None))
    is_open = floor is None and one_batch is not None and bool(one_batch.notes.get("losses"))
    moved = _moved(one_batch)
    return Arms(
        with_loss,
        floor,
        repeats,
        dependence,
        rate_left,
        moved,
        is_open,
        is_paired=bool(seen.get("paired")),
        is_faulty=_is_faulty(one_batch),
        is_constant=0 < blind.get("given", 0) == blind.get("constant"),
        is_dead=_is_faulty(plain, _DEAD),
        is_stale=one_batch is not None and _is_stale(one_batch.notes),
    )


def _rate_left(steps: Sequence[TrainingStep]) -> float:
    """Return the last learning rate as a share of the largest; 1 if there is none."""
    rates = [max(step.learning_rates, default=0.0) for step in steps]
    return rates[-1] / max(rates) if any(rates) else 1.0


def _moved(one: ArmRun | None) -> float | None:
    """Return how far the steps of an arm can move its weights, if a rule finds that too little."""
    findings = () if one is None or one.history is None else one.history.findings
    return next((finding.value for finding in findings if finding.code == _TINY), None)


def _is_stale(notes: dict[str, Any]) -> bool:
    """Return True if the targets of *one batch* had to be replaced, and no input."""
    return bool(notes.get("fresh")) and not notes.get("changed") and not notes.get("loaded")


def _is_faulty(one: ArmRun | None, code: str = "") -> bool:
    """Return True if a rule, or the one with this code, reports an error in an arm."""
    findings = () if one is None or one.history is None else one.history.findings
    return any(one.severity == "error" and one.code.startswith(code) for one in findings)


def _floor(notes: dict[str, Any], curve: Curve) -> float | None:
    """Return the lowest loss of the first batch, if only loss functions of PyTorch make the
    loss."""
    values, floors = zip(*notes.get("losses") or [(None, None)], strict=True)
    if curve.first is None or None in floors or not values:
        return None
    for divisor in (1, len(values)):  # their sum, or their mean over the batches of a step
        if abs(sum(values) / divisor - curve.first) <= _SAME_VALUE * abs(curve.first):
            return float(sum(floors)) / divisor
    return None


def _steps(one: ArmRun, optimizer: str | None) -> list[TrainingStep]:
    steps = [] if one.history is None else one.history.steps
    return [s for s in steps if s.losses and optimizer in (None, s.optimizer)]


def _curve(one: ArmRun, losses: Sequence[str], optimizer: str | None = None) -> Curve:
    return Curve(tuple(step.loss for step in _steps(one, optimizer)))


def _rows(one: ArmRun, losses: Sequence[str], judged: Judged) -> list[ArmResult]:
    """Return an arm's row; with several losses, one row for each optimizer."""
    if one.fault is not None:
        return [_without_loss(one)]
    rows = []
    for optimizer in losses if len(losses) > 1 else (None,):
        curve = _curve(one, losses, optimizer)
        slope, low, high = curve.slope() or (None, None, None)
        rows.append(
            ArmResult(
                one.arm.name,
                one.arm.what,
                steps=len(curve.losses),
                losses=curve.losses,
                verdict=judged.arms.get(one.arm.name) or course(curve),
                optimizer=optimizer,
                start=curve.first,
                end=None if curve.diverged else curve.end,
                slope=slope,
                slope_low=low,
                slope_high=high,
                seconds=one.seconds,
            )
        )
    return rows


def _without_loss(one: ArmRun) -> ArmResult:
    state = LEFT_OUT if one.history is None and one.seconds is None else FAILED
    return ArmResult(
        one.arm.name, one.arm.what, state, verdict=one.fault or "", seconds=one.seconds
    )


def _findings(found: dict[Arm, ArmRun], cause: str | None) -> Any:
    """Return the rules' findings in the arm that the cause concerns."""
    name = "one-batch" if cause == "model-or-loss" else AS_IT_IS.name
    history = next((one.history for arm, one in found.items() if arm.name == name), None)
    causes = folded(() if history is None else history.findings)
    return tuple(one.finding.finding for one in causes if one.finding.severity != "info")
