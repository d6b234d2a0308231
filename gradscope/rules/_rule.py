"""What a rule is: its documentation, its thresholds, and the limits that one run holds it to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradscope.records.report import Finding

#: Sets of thresholds that other tools use, by the name that the config takes.
PRESETS = {
    "sagemaker": "SageMaker Debugger's built-in rules",
    "deepchecker": "TheDeepChecker's settings",
    "autotrainer": "AUTOTRAINER's monitor",
}
OWN = "gradscope, calibrated"


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number that a rule holds a run against; None is a test that is not made.

    ``presets`` has the values of those sets that say something of it.
    """

    name: str
    default: float | None
    meaning: str
    source: str = OWN
    presets: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold's value in one run, and who says so."""

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
        """The value, and who says so."""
        return self.limits[name]

    def source(self, name: str) -> str:
        """Who says so."""
        return self.limits[name].source


@dataclass(frozen=True, slots=True)
class Runs:
    """How a rule that reads one step speaks of a training run, of which it sees steps now and then.

    Attributes:
        samples: in how many steps in a row, of those looked at, it must hold before it is told.
        steps: of a rule over the vital signs, the same of all steps.
        always: whether one step in which it does not hold refutes it for good: what is so by
            construction holds from the first step on.
        first: whether only the first step of the run counts, before anything was learned.
        per: what it is told once of. "place": each layer or parameter that it names, by its cause.
            "model": a model, of which it names the worst place, another one at each step. "run":
            the first place of all, as what is broken there soon is everywhere.
        parameters: which it reads: "stepped", those that the step's optimizer holds; "unheld",
            those that no optimizer of the script holds as well; "all".
        skips: whether a rule over the vital signs is asked after a skipped step, too.
        ranks: whether it judges the files of several processes, once these are read together.
    """

    samples: int = 3
    steps: int = 1
    always: bool = False
    first: bool = False
    per: str = "place"
    parameters: str = "stepped"
    skips: bool = False
    ranks: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule's documentation.

    ``severity`` is the usual one; the text says when a finding has another. ``calibration`` says
    what the defaults were measured on: how often healthy models, how often broken ones fire.
    ``runs`` is how it speaks of a training run; None: one step of a run is not enough for it.
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

    def limits(self, preset: str | None = None, own: Mapping[str, float] | None = None) -> Limits:
        """The thresholds with a preset and then one's own numbers put in."""
        found = {}
        for threshold in self.thresholds:
            name = threshold.name
            limit = Limit(threshold.default, threshold.source)
            if preset is not None and preset in threshold.presets:
                limit = Limit(threshold.presets[preset], PRESETS[preset])
            if own and name in own:
                limit = Limit(own[name], "the config")
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

        ``limit`` stands for its threshold and source. A value that is no number is left out:
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
            value=value if value is not None and math.isfinite(value) else None,
            threshold=threshold,
            source=source,
            cause=cause,
            location=location,
        )
