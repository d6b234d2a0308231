"""Records of ``inspect`` and ``check``, with their findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradscope.errors import did_you_mean
from gradscope.records.answers import Answer, NonFiniteOrigin
from gradscope.records.data import SPARSE
from gradscope.records.full_samples import (
    Accumulation,
    Change,
    GradientCheck,
    Histogram,
    PerSample,
    Sketch,
    TaskGradients,
)
from gradscope.records.graph import Chain
from gradscope.records.leaks import AxisResult
from gradscope.records.modules import (
    Link,
    ModuleCall,
    ModuleFacts,
    ParameterStats,
    UnitActivity,
    Unregistered,
)
from gradscope.records.run import ErrorRecord, LossPart, ParallelRun, RunInfo, StepRecord, Totals
from gradscope.records.showing import Plotted, Shown
from gradscope.records.transformer import AttentionCall, ExpertCall, ResidualCall
from gradscope.typeset.numbers import plural


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's statement: the layer where the trouble starts, the figures, the next step.

    ``location`` is the line at fault; ``made`` the line of a training
    script that made the module or the parameter ``name``.
    """

    code: str
    rule: str
    severity: str
    name: str
    message: str
    advice: str
    call: int | None = None
    value: float | None = None
    threshold: float | None = None
    source: str | None = None
    cause: str | None = None
    location: str | None = field(default=None, metadata=SPARSE)
    made: str | None = field(default=None, metadata=SPARSE)

    @property
    def line(self) -> str | None:
        """The line to open: the location, else the line that made it."""
        return self.location or self.made


@dataclass(frozen=True, slots=True)
class PrecisionForecast:
    """The effect of a cast on one tensor's non-zero elements, as shares from 0 to 1.

    ``kind`` is "activation" or "gradient"; a gradient is multiplied by ``scale``, the loss scale,
    before the cast. ``name`` is a module with its ``call``, or a parameter, which has none.
    ``numel`` is the number of elements that the shares count. The kind "total", named "**", is all
    gradients together: ``underflow`` of the parameters' gradients, ``overflow`` also of the
    gradients of calls' outputs.
    """

    name: str
    kind: str
    dtype: str
    scale: float
    numel: int
    underflow: float
    overflow: float
    call: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Report(Plotted):
    """Result of one ``gradscope inspect``.

    ``report["fc.weight"]`` is a parameter, ``report["fc"]`` the call of a layer, and
    ``report["fc", 1]`` the second call of one that ran several times.
    """

    status: str  # ok | findings | failed
    run: RunInfo
    schema: str = "gradscope.report/2"
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    loss: float | None = None
    loss_nonfinite: str | None = None
    #: The losses from which the loss is computed, if there are several.
    losses: tuple[LossPart, ...] = field(default=(), metadata=SPARSE)
    totals: Totals = field(default_factory=Totals)
    calls: tuple[ModuleCall, ...] = ()
    parameters: tuple[ParameterStats, ...] = ()
    history: tuple[StepRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    chains: tuple[Chain, ...] = ()
    error: ErrorRecord | None = None
    modules: tuple[ModuleFacts, ...] = field(default=(), metadata=SPARSE)
    links: tuple[Link, ...] = field(default=(), metadata=SPARSE)
    attention: tuple[AttentionCall, ...] = field(default=(), metadata=SPARSE)
    experts: tuple[ExpertCall, ...] = field(default=(), metadata=SPARSE)
    residual: tuple[ResidualCall, ...] = field(default=(), metadata=SPARSE)
    unregistered: tuple[Unregistered, ...] = field(default=(), metadata=SPARSE)
    #: Parameters without a gradient here that other seeds or batches reach. None: not checked.
    elsewhere: tuple[str, ...] | None = field(default=None, metadata=SPARSE)
    activity: tuple[UnitActivity, ...] = field(default=(), metadata=SPARSE)
    precision: tuple[PrecisionForecast, ...] = field(default=(), metadata=SPARSE)
    answers: tuple[Answer, ...] = field(default=(), metadata=SPARSE)
    non_finite: tuple[NonFiniteOrigin, ...] = field(default=(), metadata=SPARSE)
    #: The gradients of each of ``losses``. None: not requested.
    tasks: TaskGradients | None = field(default=None, metadata=SPARSE)
    #: The gradient of each sample of the batch. None: not requested.
    per_sample: PerSample | None = field(default=None, metadata=SPARSE)
    #: The verdict of each axis of `gradscope leaks`. None: not requested.
    leaks: tuple[AxisResult, ...] | None = field(default=None, metadata=SPARSE)
    histograms: tuple[Histogram, ...] = field(default=(), metadata=SPARSE)
    sketches: tuple[Sketch, ...] = field(default=(), metadata=SPARSE)
    gradient_checks: tuple[GradientCheck, ...] = field(default=(), metadata=SPARSE)
    #: Whether micro-batches add up to the batch. None: there are none.
    accumulation: Accumulation | None = field(default=None, metadata=SPARSE)
    #: What the config's interventions changed, and where they changed nothing.
    interventions: tuple[Change, ...] = field(default=(), metadata=SPARSE)
    #: How it was spread over processes. None: it was not.
    parallel: ParallelRun | None = field(default=None, metadata=SPARSE)

    def __getitem__(self, key: str | tuple[str, int]) -> ParameterStats | ModuleCall:
        """Return a parameter or a layer's call by its name, or by one of its other names.

        Raises:
            KeyError: there is none, or a layer ran several times and no call is named.
        """
        name, number = key if isinstance(key, tuple) else (key, None)
        found = [one for one in self._items if name in (one.name, *one.aliases)]
        if number is not None:
            found = [c for c in found if isinstance(c, ModuleCall) and c.call == number]
        if len(found) == 1:
            return found[0]
        raise KeyError(_lookup_fault(self._items, found, name, number))

    def __contains__(self, name: object) -> bool:
        return any(name in (one.name, *one.aliases) for one in self._items)

    @property
    def _items(self) -> list[ParameterStats | ModuleCall]:
        return [*self.parameters, *self.calls]

    #: A report has items, but is not a sequence.
    __iter__ = None


def _lookup_fault(
    items: Sequence[ParameterStats | ModuleCall],
    found: Sequence[ParameterStats | ModuleCall],
    name: str,
    number: int | None,
) -> str:
    """Explain a lookup that does not match exactly one parameter or call."""
    if found:
        calls = f"report[{name!r}, 0] is the first, report[{name!r}, {len(found) - 1}] the last"
        return f"`{name}` ran {len(found)} times: {calls}"
    if number is not None and any(name in (one.name, *one.aliases) for one in items):
        return f"there is no call {number} of `{name}`"
    close = did_you_mean(str(name), [one.name for one in items if one.name])
    return f"there is no parameter and no layer `{name}`" + (f": {close}" if close else "")


@dataclass(frozen=True, slots=True)
class RuleText:
    """The text of a rule, for formats that include the rule book."""

    code: str
    name: str
    severity: str
    summary: str
    help: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """A known finding in a baseline, without its figures."""

    model: str
    code: str
    name: str
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """The verdict on one model. ``known`` has findings of the baseline, which do not count."""

    status: str  # ok | findings | failed
    run: RunInfo
    config: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    known: tuple[Finding, ...] = ()
    error: ErrorRecord | None = None
    answers: tuple[Answer, ...] = field(default=(), metadata=SPARSE)
    non_finite: tuple[NonFiniteOrigin, ...] = field(default=(), metadata=SPARSE)
    precision: tuple[PrecisionForecast, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Shown):
    """Result of one ``gradscope check``.

    ``rules`` has the codes of the rules that ran, ``stale`` the entries of ``baseline`` without a
    finding. ``notes`` name the parts that could not be judged.
    """

    schema: str = "gradscope.check/2"
    status: str = "ok"  # ok | findings | failed
    versions: dict[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    models: tuple[CheckedModel, ...] = ()
    baseline: str | None = None
    stale: tuple[BaselineEntry, ...] = ()
    notes: tuple[str, ...] = field(default=(), metadata=SPARSE)

    def __repr__(self) -> str:
        return f"<gradscope.CheckReport of {plural(len(self.models), 'model')}: {self.status}>"
