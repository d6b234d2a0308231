"""The class of a rule: documentation, thresholds, and limits in a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from gradscope.records.loop import LoopRecord
from gradscope.records.report import Finding
from gradscope.records.tensors import finite_or_none
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import Parameters, at

#: The findings of a report.
Findings = Iterator[Finding]

#: Sets of thresholds that other tools use, by the name that the config takes.
PRESETS = {
    "sagemaker": "SageMaker Debugger's built-in rules",
    "deepchecker": "TheDeepChecker's settings",
    "autotrainer": "AUTOTRAINER's monitor",
}
OWN = "gradscope, calibrated"
#: The source of a threshold that is a share of steps: it is chosen, not calibrated, because whether
#: a fact holds in one step needs no statistics.
CHOSEN = "gradscope, chosen"
#: Calibrations that several rules share.
SILENT_ON_HONEST = (
    "Silent on the honest programs of tests/rules and on 20 honest trainings that were "
    "written without sight of the rules."
)
SILENT_ON_TWINS = (
    "Silent on the honest programs of tests/rules, and on the mended twins and honest "
    "trainings that were written without sight of the rules."
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number that a rule compares a run with; None switches the test off.

    ``presets`` has the values of the presets that set it.
    """

    name: str
    default: float | None
    meaning: str
    source: str = OWN
    presets: Mapping[str, float | None] = field(default_factory=dict)
    old_name: str | None = None  # which settings may still use


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold's value in one run, and its source."""

    value: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The thresholds of one rule as a run's settings have them."""

    limits: Mapping[str, Limit] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """Return the value of a threshold that always has one."""
        value = self.limits[name].value
        assert value is not None, f"`{name}` is switched off"
        return value

    def get(self, name: str) -> float | None:
        """Return the value; None if the test is switched off."""
        return self.limits[name].value

    def of(self, name: str) -> Limit:
        """Return the value and its source."""
        return self.limits[name]

    def source(self, name: str) -> str:
        """Return the source of a threshold."""
        return self.limits[name].source


@dataclass(frozen=True, slots=True)
class Runs:
    """The parts of a rule for a training run.

    They also determine when the rule can be judged; see ``_judged.py``.

    Attributes:
        samples: the number of consecutive sampled steps in which it must hold; 0: it reads no
            samples.
        samples_before: for a rule over samples, the number of samples needed before these: a
            number, or the name of a threshold.
        steps: for a rule over step metrics, the number of consecutive steps in which it must
            hold.
        steps_before: the number of steps needed before these.
        metrics: the attributes of ``TrainingStep`` that it reads; a step without one of them
            does not count.
        calls: True if it reads the records of calls, which compiled modules lack.
        structure: the report's field for the structure that it judges: "attention", "experts"
            or "residual"; models without it are not judged.
        always: True if a single step without the fault refutes it, because it would hold from
            the first step on.
        first: True if only the first step of the run counts.
        per: the unit of one report. "place": each layer or parameter, by its cause. "model":
            each model, with its worst place. "run": the first place only, because the defect
            soon spreads everywhere.
        parameters: the parameters that it reads: "stepped", those of the step's optimizer;
            "unheld", also those that no optimizer of the script holds; "all".
        skips: True if a rule over step metrics also judges skipped steps.
        ranks: True if it judges the files of several processes.
        loop: True if it reads the training loop's actions at every step, and no sample.
        at_attribute: True if its place is the line that sets the faulty attribute.
        at_call: True if its place is the line that calls the layer, because the layer's input
            is at fault.
        at_model_call: True if its place is the line that calls the model, for the same reason.
        at_optimizer: True if its place is the line that made the step's optimizer.
        end: True if it reads the script's actions between epochs or at its end, so that a
            script that ends early cannot be judged.
    """

    samples: int = 3
    samples_before: int | str = 0
    steps: int = 1
    steps_before: int | str = 0
    metrics: tuple[str, ...] = ()
    calls: bool = False
    structure: str = ""
    always: bool = False
    first: bool = False
    per: str = "place"
    parameters: str = "stepped"
    skips: bool = False
    ranks: bool = False
    loop: bool = False
    at_attribute: bool = False
    at_call: bool = False
    at_model_call: bool = False
    at_optimizer: bool = False
    end: bool = False

    @property
    def over_steps(self) -> bool:
        """True if the rule reads the metrics of every step."""
        return bool(self.metrics)

    @property
    def over_samples(self) -> bool:
        """True if the rule reads samples."""
        return self.samples > 0 and not self.loop

    def steps_needed(self, limits: Limits) -> int:
        """Return the number of steps with its metrics that the rule needs."""
        return _number(self.steps_before, limits) + self.steps

    def samples_needed(self, limits: Limits) -> int:
        """Return the number of samples that the rule needs."""
        return _number(self.samples_before, limits) + self.samples


class Details(TypedDict, total=False):
    """The keywords of ``Rule.finding``."""

    severity: str | None
    advice: str | None
    call: int | None
    value: float | None
    limit: Limit | None
    threshold: float | None
    source: str | None
    cause: str | None
    location: str | None


def _number(of: int | str, limits: Limits) -> int:
    return math.ceil(limits[of]) if isinstance(of, str) else of


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule's documentation.

    ``severity`` is the usual one; the text says when a finding has another. ``calibration`` says
    how often the rule fires on healthy and on broken models. ``runs`` says how it judges a training
    run; None: it does not. ``explains`` has codes, or beginnings of codes, whose findings in a run
    count as symptoms of this rule's finding (``_causes.py``); ``explains_later`` has those that
    must begin at a later step, and ``explains_as``, by the ``cause`` of this rule's finding, those
    that only a finding with this cause explains: of these a NaN or Inf only if the numbers that
    made it had grown. A rule ``on_demand`` runs only if ``select`` names it, because it runs the
    model several times.
    """

    code: str
    name: str
    severity: str
    summary: str
    what: str
    why: str
    fix: str
    sources: tuple[str, ...]
    thresholds: tuple[Threshold, ...] = ()
    calibration: str = ""
    runs: Runs | None = Runs()
    explains: tuple[str, ...] = ()
    explains_later: tuple[str, ...] = ()
    explains_as: tuple[tuple[str, tuple[str, ...]], ...] = ()
    on_demand: bool = False

    def limits(self, preset: str | None = None, own: Mapping[str, float] | None = None) -> Limits:
        """Return the thresholds, replaced by those of a preset, then by the settings' own."""
        found = {}
        for threshold in self.thresholds:
            name = threshold.name
            limit = Limit(threshold.default, threshold.source)
            if preset is not None and preset in threshold.presets:
                limit = Limit(threshold.presets[preset], PRESETS[preset])
            for given in (threshold.old_name, name):
                if own and given is not None and given in own:
                    limit = Limit(own[given], "the config")
            found[name] = limit
        return Limits(found)

    def finding(
        self,
        name: str,
        message: str,
        *,
        severity: str | None = None,
        advice: str | None = None,
        call: int | None = None,
        value: float | None = None,
        limit: Limit | None = None,
        threshold: float | None = None,
        source: str | None = None,
        cause: str | None = None,
        location: str | None = None,
    ) -> Finding:
        """Return a finding of this rule; severity and advice are the rule's own unless given.

        ``limit`` gives the threshold and its source. NaN and Inf as a value are left out, because
        formats cannot write them.
        """
        if limit is not None:
            threshold, source = limit.value, limit.source
        return Finding(
            code=self.code,
            rule=self.name,
            severity=severity or self.severity,
            name=name,
            message=message,
            advice=advice or self.fix,
            call=call,
            value=finite_or_none(value),
            threshold=threshold,
            source=source,
            cause=cause,
            location=location,
        )

    def in_loop(
        self,
        loop: LoopRecord,
        name: str,
        message: str,
        *,
        first: int = 1,
        model: str | None = None,
        parameters: Parameters | None = None,
        **details: Unpack[Details],
    ) -> TrainingFinding:
        """Return a finding of this rule that lasts from step ``first`` on.

        Args:
            model: the name of its model.
            parameters: the parameters that it concerns; None: all of the run.
        """
        finding = self.finding(name, message, **details)
        return at(finding, loop, first, model=model, parameters=parameters)
