"""A coordinate check: how the activations of a model scale with its width."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.data import SPARSE
from gradscope.records.run import ErrorRecord, RunInfo
from gradscope.records.showing import Plotted

NON_FINITE, GROWS, VANISHES = "non-finite", "grows", "vanishes"
UNDETERMINED, UNCHANGED, STABLE = "undetermined", "unchanged", "stable"
#: The worst first, each with its severity.
VERDICTS = {
    NON_FINITE: "error",
    GROWS: "error",
    VANISHES: "warning",
    UNDETERMINED: "info",
    UNCHANGED: "info",
    STABLE: None,
}
#: The subject of a verdict: the activation before the first step, or its change since.
INITIAL, CHANGE = "initial", "change"

#: A root mean square for each step, width and seed; None: not finite, or of another shape.
Series = tuple[tuple[tuple[float | None, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Slope:
    """The exponent of a power of the width, fitted for each seed.

    Attributes:
        value: the mean over seeds of the least-squares slope of log RMS over log width.
        error: its standard error over seeds.
        low, high: the ends of its 95 % interval, by Student's t.
        seeds: the slope of each seed.
    """

    value: float
    error: float
    low: float
    high: float
    seeds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScaledKey:
    """A key of the config, and its value at each width."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LayerScaling:
    """One call of one layer: the first floating tensor that it returns, over widths and steps.

    Attributes:
        name: the layer's name, "" for the model.
        verdict: one of ``VERDICTS``.
        quantity: the subject of the verdict, ``INITIAL`` or ``CHANGE``; "" for a stable layer.
        output: True for the model's output.
        initial: the slope of the activation before the first step.
        activation: the slope of the activation after the last step.
        change: the slope of their difference. A slope is None if a value is zero, not finite or
            within the rounding error of the dtype.
        activations, changes: the values by step (from 0), width and seed, as nested lists.
    """

    name: str
    type: str
    verdict: str
    quantity: str = ""
    call: int = 0
    output: bool = False
    severity: str | None = field(default=None, metadata=SPARSE)
    initial: Slope | None = None
    activation: Slope | None = None
    change: Slope | None = None
    activations: Series = ()
    changes: Series = ()


@dataclass(frozen=True, slots=True, repr=False)
class CoordCheckReport(Plotted):
    """Measurements of one ``gradscope coord-check``.

    Attributes:
        status: "findings" if a layer grows, vanishes or is not finite, "failed" if the model
            raised, else "ok".
        scale: the keys that change with the width; the first one's values are the widths.
        seeds: the seeds of the initialisations.
        steps: the number of optimizer steps.
        parameters: the number of parameter elements at each width.
        threshold: a layer is stable if the 95 % interval of its slope is within ± this.
    """

    run: RunInfo
    schema: str = "gradscope.coord_check/1"
    status: str = "ok"
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    scale: tuple[ScaledKey, ...] = ()
    widths: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    steps: int = 0
    parameters: tuple[int, ...] = ()
    threshold: float = 0.25
    layers: tuple[LayerScaling, ...] = ()
    error: ErrorRecord | None = None
