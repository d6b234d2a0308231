"""Records of a training run for display: header, steps, and measurements over steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gradscope.records.answers import Judgement
from gradscope.records.norms import NormSeries, merged, steps_lost
from gradscope.records.report import Report
from gradscope.records.showing import Plotted, report_of_step
from gradscope.records.training import (
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)
from gradscope.records.transformer import TransformerSeries
from gradscope.typeset.numbers import plural


@dataclass(frozen=True, slots=True)
class LayerSeries:
    """The measurements of one parameter or module call at the sampled steps.

    ``values`` has a column for each measure, with one entry per step; None if there was nothing to
    measure. ``call`` is None for a parameter. ``shape`` is the parameter's shape, and ``types`` has
    the classes of the module, nearest first. In a run of several processes, ``lowest`` and
    ``highest`` are the extremes of a call over ranks, and ``fault`` is the reason why a parameter
    has no global norm: "partial", "missing" or "differs". ``norms`` has a parameter's norms at
    every step whose gradients were read; ``course`` combines these with the samples.
    """

    name: str
    steps: tuple[int, ...]
    values: dict[str, tuple[float | None, ...]]
    model: int = 0
    call: int | None = None
    shape: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    lowest: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    highest: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    fault: str | None = None
    norms: NormSeries | None = None

    def course(self, measure: str) -> Course:
        """Return a measure at every step that has it."""
        values = self.values.get(measure, (None,) * len(self.steps))
        counts = self.values.get(counter(measure), ())
        lost = {step for step, n in zip(self.steps, counts, strict=False) if n}
        steps, norms = self.norms.of(measure) if self.norms is not None else ((), ())
        if not steps:
            return Course(self.steps, values, sorted(lost))
        found = merged(measure, self.steps, values, self.norms)
        lost.update(steps_lost(steps, norms))
        every = sorted(found)
        return Course(every, [found[step] for step in every], sorted(lost))


def steps_with(measure: str, series: Iterable[LayerSeries]) -> list[int]:
    """Return the steps at which any of the series has the measure."""
    every: dict[int, Sequence[int]] = {}  # parameters that were read together share them
    for one in series:
        every[id(one.steps)] = one.steps
        if one.norms is not None:
            steps, _ = one.norms.of(measure)
            every[id(steps)] = steps
    return sorted(set[int]().union(*every.values()))


class Course(NamedTuple):
    """A measure over its steps; ``lost`` has the steps at which it was NaN or Inf."""

    steps: Sequence[int]
    values: Sequence[float | None]
    lost: Sequence[int]


def counter(measure: str) -> str:
    """Return the column that counts NaN and Inf in the measured tensor; "" if there is none."""
    for side in ("grad_out_", "grad_in_", "out_"):
        if measure.startswith(side):
            return f"{side}nonfinite"
    return "nonfinite" if measure in ("grad_norm", "clipped_norm") else ""


@dataclass(frozen=True, slots=True, repr=False)
class RunHistory(Plotted):
    """The content of a page about a run.

    ``sampled`` has the sampled steps that are still stored. ``ranks`` has the runs of all
    processes, if there were several. For a run without an end, ``age`` is the number of seconds
    since the last write; None if unknown. ``judgement`` lists the rules that could be judged.
    ``path`` is the run's path.
    """

    run: TrainingRun
    models: tuple[TrainedModel, ...] = ()
    steps: tuple[TrainingStep, ...] = ()
    sampled: tuple[int, ...] = ()
    events: tuple[TrainingEvent, ...] = ()
    findings: tuple[TrainingFinding, ...] = ()
    parameters: tuple[LayerSeries, ...] = ()
    calls: tuple[LayerSeries, ...] = ()
    attention: tuple[TransformerSeries, ...] = ()
    experts: tuple[TransformerSeries, ...] = ()
    residual: tuple[TransformerSeries, ...] = ()
    ranks: tuple[TrainingRun, ...] = field(default=())
    age: float | None = None
    judgement: Judgement = field(default_factory=Judgement)
    path: Path | None = None

    def __repr__(self) -> str:
        made = f"{plural(self.last_step, 'step')}, {plural(len(self.findings), 'finding')}"
        return f"<gradscope.RunHistory of {self.run.script or 'a script'}: {made}>"

    def report(self, step: int | None = None, model: str | None = None) -> Report:
        """Return the record of a sampled step, as ``gradscope.inspect`` returns it.

        Args:
            step: its number, one of ``sampled``; None: the last one.
            model: the name of one of several models; None: the first.

        Raises:
            OptionError: the step was not sampled, or has no such model.
            ConfigError: the file is gone or damaged.
        """
        found: Report = report_of_step(self, step, model)
        return found

    @property
    def thinned(self) -> bool:
        """True if some steps are no longer stored, as in a very long run."""
        return 0 < len(self.steps) < self.last_step

    @property
    def last_step(self) -> int:
        """The number of the last finished step; 0 before the first."""
        return self.steps[-1].step if self.steps else self.run.steps
