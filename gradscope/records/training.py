"""Records of a training run: its start, models, steps and events, and their series for display.

Steps are counted from 1, over all optimizers of the run. Times are seconds since the run began.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gradscope.records.answers import Judgement, NonFiniteOrigin
from gradscope.records.data import SPARSE, renamed
from gradscope.records.report import Finding, Report
from gradscope.records.run import DeviceMesh, GroupNorm, ParameterPlacement
from gradscope.records.showing import Plotted, report_of_step
from gradscope.records.tensors import NormNames, NormSeries, ParameterNorms, merged, steps_lost
from gradscope.records.transformer import TransformerSeries
from gradscope.typeset.numbers import plural

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Script, options and outcome of a run in one process.

    ``script`` and ``arguments`` are as on the command line; ``started`` and ``ended`` are seconds
    since 1970, in UTC. ``ended`` is None while the run goes on, and if the process was killed;
    ``exit`` is the exit code, or the exception that ended the script.

    ``every``: at the end, every Nth step was sampled. ``plain`` and ``sampled_seconds`` are the
    median seconds of an unsampled and of a sampled step. ``cost`` is the share of the run's time
    that gradscope took, ``cost_seconds`` the same in seconds. ``notices`` name the parts that were
    not recorded, and why. ``cut`` is the option by which gradscope ended the script
    early: "--steps 50"; None if the script ended on its own.
    """

    script: str
    started: float
    schema: str = "gradscope.run/2"
    arguments: tuple[str, ...] = ()
    directory: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    device: str | None = None
    rank: int = 0
    world_size: int = 1
    ended: float | None = None
    exit: str | None = None
    steps: int = 0
    every: int | None = None
    plain: float | None = None
    sampled_seconds: float | None = field(default=None, metadata=renamed("watched"))
    cost: float | None = None
    notices: tuple[str, ...] = ()
    cost_seconds: float | None = field(default=None, metadata=SPARSE)
    cut: str | None = field(default=None, metadata=SPARSE)


#: Why no calls of a model are recorded, by what ``torch.compile`` compiled.
_COMPILED = {
    "model": "it is compiled (torch.compile)",
    "parts": "parts of it are compiled (torch.compile)",
    "function": "a compiled function calls it (torch.compile)",
}


def without_calls(compiled: str) -> str:
    """Return the notice that calls of a compiled model are not recorded."""
    why = _COMPILED.get(compiled, "it is compiled")
    return (
        f"no calls are recorded, as {why}; parameters, gradients and updates are. "
        "`--compiled` records the calls too"
    )


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model that the script trains: an outermost module, under the name of its variable.

    ``wrapper`` is "DistributedDataParallel" or "FSDP" if one of them spreads it over processes,
    else None. ``stage`` is its number in a pipeline, from 0. ``autocast`` is the dtype of
    ``torch.autocast`` around or inside its forward; None without. ``compiled`` is what
    ``torch.compile`` compiled: "model", "parts" of it, or a "function" that calls it. Without
    ``--compiled``, none of its calls are recorded then.
    """

    id: int
    name: str
    type: str
    parameters: int
    trainable: int
    modules: int
    first_step: int = 1
    wrapper: str | None = field(default=None, metadata=SPARSE)
    stage: int | None = field(default=None, metadata=SPARSE)
    autocast: str | None = None
    compiled: str | None = None


@dataclass(frozen=True, slots=True)
class GradientParts:
    """The gradient's norm over parts of a sampled step's batch, before clipping and without the
    loss scale. Norms of equal parts show the gradient's noise.

    Attributes:
        size: the number of samples in each part.
        sums: the norm after each backward, if each adds the gradient of a micro-batch.
        ranks: the norm of each rank's own gradient, before DDP averages them; in the file of one
            rank, its own.
    """

    size: int
    sums: tuple[float, ...] = ()
    ranks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RunNoise:
    """The noise scale tr(Σ) / |G|² of a run's gradient, in samples.

    Attributes:
        value: the estimate; None if the gradient is no larger than its noise.
        low, high: its 95 % interval; ``high`` is None if it has no upper end.
        size: the number of samples in each part.
        parts: the number of micro-batches or ranks in each step.
        by_ranks: True if the parts are ranks.
        steps: the number of sampled steps that it uses.
    """

    value: float | None
    low: float
    high: float | None
    size: int
    parts: int
    by_ranks: bool
    steps: int


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The step metrics of one step of one optimizer, sampled or not.

    Attributes:
        step: its number in the run.
        optimizer: the name of its variable, else its class; "" in a script that has none.
        optimizer_step: its number among the steps of that optimizer.
        time: the time of its end.
        seconds: since the step before it ended.
        losses: the loss of each backward since the step before, without the loss scale, and
            divided as a pipeline divides gradients; None if a loss is NaN or Inf or not a
            single number.
        summed: the two ends of the slice of ``losses`` whose sum is ``loss``; None: all. If
            gradients are set to None between two backwards, a new sum begins. If an optimizer
            calls a closure several times, the first call counts.
        nonfinite: "nan" or "inf" if a loss or a gradient contains one.
        gradient_norm: the L2 norm over all parameters of the optimizer after the last backward,
            without the loss scale; None if not read then.
        clipped_norm: the norm that the optimizer got; it differs after clipping.
        learning_rates: the rate of each parameter group.
        loss_scale: the factor of a gradient scaler.
        sampled: True if the step was sampled; it then has samples.
        norms: in one process of several, the two norms of each group of parameters, over this
            process's shards; the first is without the loss scale.
        own_seconds: with several processes, the seconds before the first backward: data,
            forward and loss. The rest of the step waits for other processes.
        batch: with several processes, the number of samples in the models' inputs: the first
            axis of the first tensor of each outermost call.
        update_rms: the root mean square of Δw over all parameters that got a gradient, from the
            optimizer's state; else from a sample that has Δw of all.
        parts: of a sampled step, the gradient's norm over its micro-batches or of this rank.
    """

    step: int
    optimizer: str
    optimizer_step: int
    time: float
    seconds: float
    losses: tuple[float | None, ...] = ()
    nonfinite: str | None = None
    gradient_norm: float | None = None
    clipped_norm: float | None = None
    learning_rates: tuple[float, ...] = ()
    loss_scale: float | None = None
    sampled: bool = False
    norms: tuple[GroupNorm, ...] = ()
    own_seconds: float | None = field(default=None, metadata=SPARSE)
    batch: int | None = field(default=None, metadata=SPARSE)
    summed: tuple[int, int] | None = None
    update_rms: float | None = field(default=None, metadata=SPARSE)
    parts: GradientParts | None = field(default=None, metadata=SPARSE)

    @property
    def loss(self) -> float | None:
        """The loss of the step: the sum of all losses whose gradients it accumulated."""
        return sum_of(self.summed_losses)

    @property
    def summed_losses(self) -> Sequence[float | None]:
        """The losses whose sum is ``loss``."""
        return self.losses if self.summed is None else self.losses[slice(*self.summed)]


@dataclass(frozen=True, slots=True)
class StepSample:
    """One model in one sampled step, recorded as by ``inspect``.

    Gradients in ``report`` are those at the end of the last backward, without the loss scale;
    ``clipped`` has the norms that the optimizer got, by parameter, if they differ. ``optimizer`` is
    the optimizer of the step, as in ``TrainingStep``. ``settings`` has the plain numbers of its
    first parameter group before the step: ``lr``, ``eps``, … ``unheld`` has the model's trainable
    parameters that no optimizer of the script holds.
    """

    step: int
    model: int
    report: Report
    clipped: dict[str, float | None] = field(default_factory=dict)
    optimizer: str = ""
    settings: dict[str, float] = field(default_factory=dict)
    unheld: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """The tensors of one rank in a sampled step, as texts that are equal if all bits are.

    Attributes:
        step, model: as in a sample.
        kind: "parameter", "gradient" (as the optimizer got it), "buffer", or "input" (of the
            outermost model's calls).
        part: ranks with an equal part hold the same shard. For inputs it is the index among the
            ranks with different data.
        digest: one text for all tensors.
        tensors: a text for each, by name; for inputs by the number of the call.
    """

    step: int
    model: int
    kind: str
    part: str
    digest: str
    tensors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingEvent:
    """An event of a run: ``kind`` is one of those in docs/runs.md, ``step`` the step during which
    it happened."""

    step: int
    time: float
    kind: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)


#: The shown name of a finding that concerns no layer, such as one on the loss.
RUN = "(run)"


class _OfFinding(Generic[_Value]):
    """A field of the finding that a ``TrainingFinding`` has."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: TrainingFinding, owner: type | None = None) -> _Value:
        value: _Value = getattr(record.finding, self.name)
        return value


@dataclass(frozen=True, slots=True)
class TrainingFinding:
    """A finding of a run and its steps: ranges of step numbers, both ends included.

    If a rule fires at two successive samples, the steps between them count too. ``origin`` is the
    origin of a NaN or Inf in the first of the steps. ``parameters`` has the parameters that the
    finding concerns, each by its model's number and its name; None if it concerns the full run, or
    if ``name`` is enough. The fields of the finding can be read here too: ``code``, ``message``, …
    """

    finding: Finding
    steps: tuple[tuple[int, int], ...]
    model: int | None = None
    origin: NonFiniteOrigin | None = None
    parameters: tuple[tuple[int, str], ...] | None = field(default=None, metadata=SPARSE)

    @property
    def key(self) -> tuple[str, str, int | None, str | None]:
        """The key that two findings share if they are the same at different steps."""
        return self.finding.code, self.finding.name, self.model, self.finding.cause

    code = _OfFinding[str]()
    rule = _OfFinding[str]()
    severity = _OfFinding[str]()
    name = _OfFinding[str]()
    message = _OfFinding[str]()
    advice = _OfFinding[str]()
    call = _OfFinding[int | None]()
    value = _OfFinding[float | None]()
    threshold = _OfFinding[float | None]()
    source = _OfFinding[str | None]()
    cause = _OfFinding[str | None]()
    location = _OfFinding[str | None]()
    made = _OfFinding[str | None]()


def sum_of(losses: Sequence[float | None]) -> float | None:
    """Return the sum of losses; None without a loss, or if one is NaN or Inf."""
    if len(losses) == 1:  # nearly all steps, of which a run can have hundreds of thousands
        return losses[0]
    known = [loss for loss in losses if loss is not None]
    return math.fsum(known) if known and len(known) == len(losses) else None


#: Everything that a run file holds but the run itself.
TrainingRecord = (
    TrainedModel
    | TrainingStep
    | NormNames
    | ParameterNorms
    | StepSample
    | Fingerprints
    | TrainingEvent
    | TrainingFinding
    | DeviceMesh
    | ParameterPlacement
)


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
    ``path`` is the run's path. ``noise`` is the gradient's noise scale, if sampled steps have
    micro-batches or ranks.
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
    noise: RunNoise | None = field(default=None, metadata=SPARSE)

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
