"""Collects the findings of a training run: the rules' results on its steps, each reported once.

A finding has the figures of its first step; only a worse severity replaces them. Its steps are
ranges: between two successive samples with the finding, all steps count. No torch here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.leaks import RULES, AxisResult
from gradscope.records.loop import LoopRecord
from gradscope.records.report import Finding, Report
from gradscope.records.run import RunInfo
from gradscope.records.tensors import NormNames, ParameterNorms
from gradscope.records.training import StepSample, TrainingFinding, TrainingStep
from gradscope.rules import (
    SEVERITIES,
    Depth,
    RuleSettings,
    Runs,
    Sampled,
    SampleHistory,
    StepHistory,
    Weights,
)

#: With more ranges than this, the two that are nearest to each other become one.
MOST_RANGES = 100


class StepRanges:
    """A set of steps that only grows."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, first: int, last: int) -> bool:
        """Add the steps from one to the other; return True if there is a new range."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first - 1)  # the first that reaches it
        high = low
        while high < len(firsts) and firsts[high] <= last + 1:
            first, last = min(first, firsts[high]), max(last, lasts[high])
            high += 1
        firsts[low:high], lasts[low:high] = [first], [last]
        if len(firsts) > MOST_RANGES:
            near = min(range(1, len(firsts)), key=lambda i: firsts[i] - lasts[i - 1])
            del firsts[near], lasts[near - 1]
        return low == high

    @property
    def count(self) -> int:
        """Number of steps in the ranges."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def all(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges in order."""
        return tuple(zip(self._firsts, self._lasts, strict=True))


#: Identity of a finding: rule, place, model, cause. For a rule on a full model or run only the
#: first two, or the first, differ.
Key = tuple[str, str, int | None, str | None]
#: Findings by key, each with its rule's part on runs.
Found = dict[Key, tuple[Finding, Runs]]

#: A finding that grows step by step is given again after this many steps.
_AGAIN = 64
#: If a finding disappears and comes back, it must hold for twice as long each time, up to this
#: factor.
_LONGEST = 64
_NON_FINITE = "GS301"
#: The leak rules judge the results of `--leaks`, selected or not.
_LEAKS = tuple(code for code, _ in RULES.values())


@dataclass(slots=True)
class _Reported:
    """A finding of the run; ``given`` is the number of its steps that were already returned."""

    finding: Finding
    model: int | None
    origin: NonFiniteOrigin | None = None
    steps: StepRanges = field(default_factory=StepRanges)
    given: int = 0

    def record(self) -> TrainingFinding:
        return TrainingFinding(self.finding, self.steps.all(), self.model, self.origin)


@dataclass(slots=True)
class _Streak:
    """A finding that was in each of the last samples, since the step ``first``."""

    finding: Finding
    first: int
    #: Whether it was in the first sample of all.
    always: bool
    count: int = 0


@dataclass(slots=True)
class _Judged:
    """The judgements of one subject, in order: the steps of an optimizer, or the samples of a
    model."""

    any: bool = False
    streaks: dict[Key, _Streak] = field(default_factory=dict)
    #: How often a finding ended before it was reported.
    ended: dict[Key, int] = field(default_factory=dict)


class RunFindings:
    """Takes a run's steps and samples in order, and collects the rules' findings.

    ``step`` takes microseconds; ``sample`` takes as long as the rules of ``check``. Both return new
    findings, and findings that now hold in more steps; a finding that holds at every step is
    returned every 64 steps. ``all`` is exact.

    Attributes:
        made_at: returns the line that made a module or a parameter, by the model's number.
        called_at: returns the line of a module's first call, in the same way.
        optimizer_at: returns the line that made an optimizer, by its name.
        attribute_at: returns the line that sets an attribute, by its name.
    """

    made_at: Callable[[int, str], str | None] | None = None
    called_at: Callable[[int, str], str | None] | None = None
    optimizer_at: Callable[[str], str | None] | None = None
    attribute_at: Callable[[str], str | None] | None = None

    def __init__(self, settings: RuleSettings) -> None:
        active = tuple(settings.active())
        self._over_steps = [
            (entry.find_over_steps, limits, entry.rule.runs or Runs())
            for entry, limits in active
            if entry.find_over_steps is not None
        ]
        self._over_samples = [
            (entry.find_over_samples, limits, entry.rule.runs or Runs())
            for entry, limits in active
            if entry.find_over_samples is not None
        ]
        self._sampled = [
            (entry.in_runs, limits, entry.rule.runs)
            for entry, limits in active
            if entry.in_runs is not None and entry.rule.runs is not None
        ]
        self._over_origins = [
            (entry.find, limits)
            for entry, limits in active
            if entry.rule.code == _NON_FINITE and entry.find is not None
        ]
        self._in_loop = [
            (entry.find_in_loop, limits)
            for entry, limits in active
            if entry.find_in_loop is not None
        ]
        self._over_leaks = [
            (entry.find, limits)
            for entry, limits in replace(settings, select=_LEAKS).active()
            if entry.find is not None
        ]
        self._names: dict[int, tuple[str, ...]] = {}
        self._norms: list[tuple[tuple[str, ...], ParameterNorms]] = []  # of the step that comes
        self._of_loop: dict[Key, TrainingFinding] = {}
        self._reported: dict[Key, _Reported] = {}
        self._steps: dict[str, tuple[_Judged, StepHistory]] = {}
        self._skips: dict[str, _Judged] = {}
        self._models: dict[int, Sampled] = {}
        self._samples: dict[tuple[int, str, bool], tuple[_Judged, SampleHistory]] = {}
        self._depths: dict[tuple[int, str], Depth] = {}
        self._weights: dict[tuple[int, str], Weights] = {}

    def norms(self, record: NormNames | ParameterNorms) -> None:
        """Take in the norms of a step before the step itself, after the list of their names."""
        if isinstance(record, NormNames):
            self._names[record.id] = record.names
        else:
            self._norms.append((self._names[record.names], record))

    def step(self, step: TrainingStep) -> tuple[TrainingFinding, ...]:
        """Judge a step by its step metrics and those of the steps before."""
        known = self._steps.get(step.optimizer)
        if known is None:
            known = self._steps[step.optimizer] = (_Judged(), StepHistory(step))
        else:
            known[1].add(step, alone=len(self._steps) == 1)
        verdicts, history = known
        history.norms.add(self._norms)
        self._norms = []
        found: Found = {}
        for find, limits, runs in self._over_steps:
            for finding in find(history, limits):
                placed = self._at_optimizer(finding, runs, step.optimizer)
                found.setdefault(_key(finding, None, runs), (placed, runs))
        if not found and not verdicts.streaks:
            verdicts.any = True
            return ()
        return tuple(self._judged(verdicts, step.step, None, found, steps=True))

    def skipped(self, step: TrainingStep) -> tuple[TrainingFinding, ...]:
        """Judge a step that a gradient scaler skipped: only its loss scale counts."""
        if step.optimizer in self._steps:
            history = self._steps[step.optimizer][1]
            history.skip(step)
        else:
            history = StepHistory(step)
            self._steps[step.optimizer] = (_Judged(), history)
        found: Found = {}
        for find, limits, runs in self._over_steps:
            for finding in find(history, limits) if runs.skips else ():
                found.setdefault(_key(finding, None, runs), (finding, runs))
        verdicts = self._skips.setdefault(step.optimizer, _Judged())
        return tuple(self._judged(verdicts, step.step, None, found, steps=True))

    def sample(self, sample: StepSample) -> tuple[TrainingFinding, ...]:
        """Judge a sampled step: by its own sample, and by the samples before."""
        model = sample.model
        views = self._models.setdefault(model, Sampled()).views(sample)
        stepped = bool(views["stepped"].parameters)
        place = (model, sample.optimizer, stepped)
        verdicts, history = self._samples.setdefault(place, (_Judged(), SampleHistory()))
        history.add(sample)
        if history.weights:
            self._depths.setdefault((model, sample.optimizer), Depth()).add(history)
            self._weights.setdefault((model, sample.optimizer), Weights()).add(history)
        found: Found = {}
        for find, limits, runs in self._sampled:
            if runs.first and sample.step != 1:
                continue
            for finding in find(views[runs.parameters], limits):
                located = self._located(finding, runs, sample)
                found.setdefault(_key(finding, model, runs), (located, runs))
        for find_over, limits, runs in self._over_samples:
            for finding in find_over(history, limits):
                located = self._located(finding, runs, sample)
                found.setdefault(_key(finding, model, runs), (located, runs))
        return tuple(self._judged(verdicts, sample.step, model, found, steps=False))

    def _located(self, finding: Finding, runs: Runs, sample: StepSample) -> Finding:
        """Return a finding in a sample with the line that its rule names as its place."""
        line = self._at_optimizer(finding, runs, sample.optimizer).location
        if runs.at_call and self.called_at is not None:
            line = line or self.called_at(sample.model, finding.name)
        if runs.at_model_call and self.called_at is not None:
            line = line or self.called_at(sample.model, "")
        if runs.at_attribute and self.attribute_at is not None and finding.cause:
            line = line or self.attribute_at(finding.cause)
        return replace(finding, location=line)

    def _at_optimizer(self, finding: Finding, runs: Runs, optimizer: str) -> Finding:
        """Return a finding with the line that made the optimizer, if its rule names that."""
        if finding.location or not runs.at_optimizer or self.optimizer_at is None:
            return finding
        return replace(finding, location=self.optimizer_at(optimizer))

    def loop(self, record: LoopRecord) -> tuple[TrainingFinding, ...]:
        """Judge the loop so far, by facts of every step.

        Returns:
            New or extended findings, and findings that no longer hold (without steps).
        """
        depths = [depth.record(*place) for place, depth in self._depths.items()]
        weights = (one.record(*place) for place, one in self._weights.items())
        record = replace(
            record, depths=tuple(depths), weights=tuple(one for one in weights if one is not None)
        )
        found = {
            one.key: replace(one, finding=self._placed(one.finding, one.model, one.key))
            for find, limits in self._in_loop
            for one in find(record, limits)
        }
        gone = [replace(one, steps=()) for key, one in self._of_loop.items() if key not in found]
        news = [one for key, one in found.items() if self._of_loop.get(key) != one]
        self._of_loop = found
        return (*gone, *news)

    def add_origins(
        self, step: int, origins: Sequence[NonFiniteOrigin], model: int | None = None
    ) -> tuple[TrainingFinding, ...]:
        """Take the origin of a step's NaN or Inf, before the step itself.

        Only the first origin of the run counts, because later steps inherit it.
        """
        found: list[TrainingFinding] = []
        kind = origins[0].kind if origins else None
        report = Report("findings", _NO_RUN, loss_nonfinite=kind, non_finite=tuple(origins[:1]))
        for find, limits in self._over_origins:
            for finding in find(report, limits):
                runs = Runs(per="run")
                key = _key(finding, model, runs)
                if key not in self._reported:
                    reported = self._reported[key] = _Reported(finding, model, origins[0])
                    found += self._holds(reported, step, step, steps=False)
        return tuple(found)

    def leaks(
        self, step: int, model: int, axes: Sequence[AxisResult]
    ) -> tuple[TrainingFinding, ...]:
        """Take in a model's forbidden dependencies, judged once, after this step."""
        found: list[TrainingFinding] = []
        report = Report("findings", _NO_RUN, leaks=tuple(axes))
        for find, limits in self._over_leaks:
            for finding in find(report, limits):
                reported = self._reported[_key(finding, model, Runs())] = _Reported(finding, model)
                found += self._holds(reported, step, step, steps=False)
        return tuple(found)

    def all(self) -> tuple[TrainingFinding, ...]:
        """Return all findings so far, the worst first, then by code, then by first step."""
        reported = [*(one.record() for one in self._reported.values()), *self._of_loop.values()]
        reported.sort(
            key=lambda one: (
                SEVERITIES.index(one.finding.severity),
                one.finding.code,
                one.steps,
            )
        )
        return tuple(reported)

    def _placed(self, finding: Finding, model: int | None, key: Key) -> Finding:
        """Return the finding with the line that made its subject: the first known one, as a model
        may be gone.
        """
        before = self._of_loop.get(key)
        if before is not None:
            return replace(finding, made=before.finding.made)
        if self.made_at is None or model is None or not finding.name:
            return finding
        return replace(finding, made=self.made_at(model, finding.name))

    def _judged(
        self, verdicts: _Judged, at: int, model: int | None, found: Found, *, steps: bool
    ) -> Iterator[TrainingFinding]:
        """Yield the findings to report after a rule has judged."""
        for key in [key for key in verdicts.streaks if key not in found]:
            del verdicts.streaks[key]
            reported = self._reported.get(key)
            if reported is None:
                verdicts.ended[key] = verdicts.ended.get(key, 0) + 1
            elif reported.given < reported.steps.count:
                yield self._given(reported)
        for key, (finding, runs) in found.items():
            streak = verdicts.streaks.get(key)
            if streak is None:
                streak = verdicts.streaks[key] = _Streak(finding, at, always=not verdicts.any)
            streak.count += 1
            reported = self._reported.get(key)
            if not _holds_long(
                streak, runs, verdicts.ended.get(key, 0) if reported is None else 0, steps
            ):
                continue
            if reported is None:
                placed = self._placed(streak.finding, model, key)
                reported = self._reported[key] = _Reported(placed, model)
            elif SEVERITIES.index(finding.severity) < SEVERITIES.index(reported.finding.severity):
                # The finding keeps its first name, by which its record is known.
                first = reported.finding
                reported.given = 0
                reported.finding = replace(
                    finding, name=first.name, cause=first.cause, made=first.made
                )
            yield from self._holds(reported, streak.first, at, steps=steps)
        verdicts.any = True

    def _holds(
        self, reported: _Reported, first: int, last: int, *, steps: bool
    ) -> Iterable[TrainingFinding]:
        """Add steps to a finding; yield its record if it is worth returning now."""
        more = reported.steps.add(min(first, last), max(first, last))
        grown = reported.steps.count - reported.given
        if more or not reported.given or grown >= _AGAIN or (grown and not steps):
            yield self._given(reported)

    def _given(self, reported: _Reported) -> TrainingFinding:
        reported.given = reported.steps.count
        return reported.record()


_NO_RUN = RunInfo("", "", "", "train", 0, 1, "")


def _key(finding: Finding, model: int | None, runs: Runs) -> Key:
    if runs.per == "place":
        return finding.code, finding.name, model, finding.cause
    return finding.code, "", model if runs.per == "model" else None, None


def _holds_long(streak: _Streak, runs: Runs, ended: int, steps: bool) -> bool:
    if runs.always and not streak.always:
        return False
    needed = runs.steps if steps else runs.samples
    return streak.count >= needed * min(1 << min(ended, 10), _LONGEST)
