"""Records of ``leaks``: the dependencies of a model's outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.data import SPARSE
from gradscope.records.run import ErrorRecord, RunInfo
from gradscope.records.showing import Shown

#: In the order in which they are judged and shown. ``order`` is judged on demand only.
AXES = ("time", "batch", "padding", "mask", "label", "documents", "cache", "order")
#: The worst first.
VERDICTS = ("leaks", "by-design", "not-judged", "clean")
#: The rule of each axis.
RULES = {
    "time": ("GS901", "sees-the-future"),
    "batch": ("GS902", "sees-other-samples"),
    "padding": ("GS903", "sees-padding"),
    "mask": ("GS904", "sees-masked-tokens"),
    "label": ("GS905", "sees-the-label"),
    "documents": ("GS908", "sees-other-documents"),
    "cache": ("GS906", "cache-disagrees"),
    "order": ("GS907", "depends-on-order"),
}


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of code; ``text`` is None if the file cannot be read."""

    file: str
    line: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class AxisResult:
    """The result of one axis: the forbidden dependencies of outputs along it.

    Attributes:
        axis: one of ``AXES``.
        verdict: one of ``VERDICTS``.
        message: the finding, or why it could not be judged, in one line.
        effect: the largest forbidden change of an output, relative to the outputs' spread.
        reach: the reach of the leak: ``63 tokens ahead``, ``all other samples``.
        layer: the innermost module of the first call that leaks; "" is the root.
        call: the number of that call.
        operation: the operation that leaks, such as ``softmax``.
        source: its line.
        advice: the next step.
        finite: True if forward passes show the leak; None if not tested.
        gradient: True if gradients show it; None if not computed.
    """

    axis: str
    verdict: str
    message: str
    effect: float | None = None
    reach: str | None = None
    layer: str | None = None
    call: int | None = None
    operation: str | None = None
    source: SourceLine | None = None
    advice: str | None = None
    finite: bool | None = None
    gradient: bool | None = None
    severity: str | None = field(default=None, metadata=SPARSE)

    @property
    def code(self) -> str:
        """Code of the rule for a leak of this axis."""
        return RULES[self.axis][0]

    @property
    def rule(self) -> str:
        """The name of the rule that reports the leak."""
        return RULES[self.axis][1]


@dataclass(frozen=True, slots=True)
class DependencyMap:
    """The dependence of each output position on each input position along an axis.

    Attributes:
        axis: the axis of both.
        instrument: ``gradient`` or ``finite``.
        outputs, inputs: the positions of rows and columns.
        values: a row for each output: the size of the dependency, 0 without one, None if unknown.
    """

    axis: str
    instrument: str
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True, repr=False)
class LeaksReport(Shown):
    """Result of one ``gradscope leaks``.

    ``forwards`` and ``backwards`` count the passes.
    """

    run: RunInfo
    schema: str = "gradscope.leaks/1"
    status: str = "ok"  # ok | findings | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    axes: tuple[AxisResult, ...] = ()
    maps: tuple[DependencyMap, ...] = ()
    forwards: int = 0
    backwards: int = 0
    error: ErrorRecord | None = None

    @property
    def leaks(self) -> tuple[AxisResult, ...]:
        """The axes that leak."""
        return tuple(one for one in self.axes if one.verdict == "leaks")
