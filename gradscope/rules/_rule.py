"""The class of a rule: its documentation, its thresholds, and its limits in a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradscope.records.norms import finite_or_none
from gradscope.records.report import Finding

#: Sets of thresholds that other tools use, by the name that the config takes.
PRESETS = {
    "sagemaker": "SageMaker Debugger's built-in rules",
    "deepchecker": "TheDeepChecker's settings",
    "autotrainer": "AUTOTRAINER's monitor",
}
OWN = "gradscope, calibrated"
#: A share of steps in which a fact holds: a fact of one step needs no statistics.
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
        """The value of a threshold that always has one."""
        value = self.limits[name].value
        assert value is not None, f"`{name}` is switched off"
        return value

    def get(self, name: str) -> float | None:
        """The value, or None where the test is not made."""
        return self.limits[name].value

    def of(self, name: str) -> Limit:
        """Return the value and its source."""
        return self.limits[name]

    def source(self, name: str) -> str:
        """Return the source of a threshold."""
        return self.limits[name].source


@dataclass(frozen=True, slots=True)
class Runs:
    """Use of a rule for one step in a training run, on the sampled steps.

    What a rule declares here says from when on it can be judged; see ``_judged.py``.

    Attributes:
        samples: after how many sampled steps in a row it is reported; 0:
            it reads none.
        samples_before: of a rule over samples, how many must lie before the first of these: a
            number, or the threshold that says it.
        steps: of a rule over the step metrics, in how many of all steps in a row it must hold.
        steps_before: of such a rule, how many must lie before the first of these.
        metrics: of such a rule, the attributes of ``TrainingStep`` that it reads: a step without a
            value in one of them does not count.
        calls: whether it reads what calls took and gave. Of compiled modules there are none.
        structure: of a rule about a structure that not every model has, which of the report's
            fields records it: "attention", "experts" or "residual". It judges no other model.
        always: whether one step without it refutes it for good: what is so by
            construction holds from the first step on.
        first: whether only the first step of the run counts, before anything was learned.
        per: the unit of one report. "place": each layer or parameter that it names, by its
            cause. "model": a model, of which it names the worst place, another one at each step.
            "run": the first place of all, as a defect there soon is everywhere.
        parameters: which it reads: "stepped", those that the step's optimizer holds; "unheld",
            those that no optimizer of the script holds as well; "all".
        skips: whether a rule over the step metrics is asked after a skipped step, too.
        ranks: whether it judges the files of several processes, once these are read together.
        loop: whether it reads what the training loop does at every step, and no sample.
        at_attribute: whether its place is the line that sets the attribute that is its cause.
        at_call: whether its place is the line that calls the layer that it names: its mistake is in
            what the layer is given.
        at_optimizer: whether its place is the line that made the optimizer of the step.
        end: whether it reads what a script does between epochs or at its end, so that one that
            ends early cannot be judged.
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


def _number(of: int | str, limits: Limits) -> int:
    return math.ceil(limits[of]) if isinstance(of, str) else of


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule's documentation.

    ``severity`` is the usual one; the text says when a finding has another. ``calibration`` says
    what the defaults were measured on: how often healthy models, how often broken ones fire.
    ``runs`` is how it speaks of a training run; None: one step of a run is not enough for it.
    ``explains`` are codes, or beginnings of codes, of the rules whose findings in a run follow from
    its own: these are shown as its symptoms (``_causes.py``). A rule ``on_demand`` looks only if
    ``select`` names it: it runs the model several times more.
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
    on_demand: bool = False

    def limits(self, preset: str | None = None, own: Mapping[str, float] | None = None) -> Limits:
        """The thresholds, replaced by those of a preset, then by the settings' own."""
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
        """A finding of this rule; severity and advice are the rule's own unless given.

        ``limit`` gives the threshold and its source. A value that is not a number is left out:
        formats have none.
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
