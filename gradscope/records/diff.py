"""The comparison of two runs, A and B."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.data import SPARSE, renamed
from gradscope.records.report import Finding
from gradscope.records.run import ErrorRecord, RunInfo
from gradscope.records.showing import Shown

#: Dtypes in which A can be run again.
REFERENCES = ("float64",)
#: Parts of a comparison that can be shown alone.
TABLES_OF_DIFF = ("calls", "parameters", "findings")


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """The differences between a tensor of A and its counterpart in B.

    ``error`` is ‖b − a‖ / ‖a‖ (L2), ``largest`` the largest absolute difference of two elements.
    ``teacher_forced`` is the error of a call that gets A's tensors. ``noise`` and
    ``teacher_forced_noise`` are these two errors for A itself, after a change of each number's last
    bit. None: unknown. If an error is missing, ``note`` gives the reason. ``diverges``: the
    teacher-forced error exceeds its noise; without such an error, ``error`` exceeds its noise.
    ``reference_a`` and ``reference_b`` are the errors of A and B from a reference run.
    """

    error: float | None = None
    cosine: float | None = None
    largest: float | None = None
    noise: float | None = None
    teacher_forced: float | None = field(default=None, metadata=renamed("own"))
    teacher_forced_noise: float | None = field(default=None, metadata=renamed("own_noise"))
    note: str | None = field(default=None, metadata=SPARSE)
    diverges: bool = field(default=False, metadata=renamed("departs", sparse=True))
    reference_a: float | None = field(default=None, metadata=SPARSE)
    reference_b: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class CallDiff:
    """One output of a call of A; ``name_b`` is B's name for it, if different.

    The teacher-forced error of ``gradient`` is that of the gradients of the call's inputs.
    """

    name: str
    type: str
    call: int
    path: str
    shape: tuple[int, ...]
    activation: TensorDiff
    gradient: TensorDiff | None
    name_b: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ParameterDiff:
    """A parameter of A: its value and its gradient.

    ``update_ratios`` has the ratios of A's and of B's optimizer, if both made a step.
    """

    name: str
    shape: tuple[int, ...]
    value: TensorDiff
    gradient: TensorDiff | None
    name_b: str | None = field(default=None, metadata=SPARSE)
    update_ratios: tuple[float, float] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, repr=False)
class DiffReport(Shown):
    """Result of one ``gradscope diff``.

    ``step`` is the relative change of each number in the measurement of noise. An error counts as a
    divergence from ``factor`` times the noise on. ``only_a`` and ``only_b`` are calls and
    parameters that the other run lacks. ``measured`` is the method: "runs": both were run;
    "outputs": one is compiled, so only outputs and parameter gradients are compared; "sketches" of
    saved reports, which give estimates; "statistics" of saved reports, which give lower bounds.
    ``reference`` is the dtype of a third run (of A) with which both are compared.
    """

    status: str  # ok | findings | failed
    a: RunInfo
    b: RunInfo
    schema: str = "gradscope.diff/2"
    versions: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    losses: tuple[float | None, float | None] = (None, None)
    step: float = 0.0
    factor: float = 0.0
    calls: tuple[CallDiff, ...] = ()
    parameters: tuple[ParameterDiff, ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: ErrorRecord | None = None
    measured: str = field(default="runs", metadata=SPARSE)
    reference: str | None = field(default=None, metadata=SPARSE)

    def __repr__(self) -> str:
        return f"<gradscope.DiffReport of {self.a.model} and {self.b.model}: {self.status}>"
