"""What a comparison of two runs, A and B, came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.errors import ErrorRecord
from gradscope.records.fields import SPARSE
from gradscope.records.report import Finding
from gradscope.records.run import RunInfo
from gradscope.records.showing import Shown

#: Dtypes in which A can be run once more.
REFERENCES = ("float64",)
#: What of a comparison can be shown alone.
TABLES_OF_DIFF = ("calls", "parameters", "findings")


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """How far a tensor of B is from A's.

    ``error`` is ‖b − a‖ / ‖a‖ (L2), ``largest`` the largest absolute difference of two elements.
    ``own`` is the error that is left where all that comes from around it is A's. ``noise`` and
    ``own_noise`` are what the two are in A itself where each number is moved by its last bit. None:
    nobody knows. An error that is no number has a ``note`` that says why. ``departs`` says of the
    own error that it is no noise; of the error, where there is no own. ``reference_a`` and
    ``reference_b`` are the errors of A and of B from a reference, where one was run.
    """

    error: float | None = None
    cosine: float | None = None
    largest: float | None = None
    noise: float | None = None
    own: float | None = None
    own_noise: float | None = None
    note: str | None = field(default=None, metadata=SPARSE)
    departs: bool = field(default=False, metadata=SPARSE)
    reference_a: float | None = field(default=None, metadata=SPARSE)
    reference_b: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class CallDiff:
    """One output of a call of A, ``name_b`` where B calls it otherwise.

    The own error of ``gradient`` is that of the gradients which the call sends back to its inputs.
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

    ``update_ratios`` are those of A's optimizer and of B's, where both made a step.
    """

    name: str
    shape: tuple[int, ...]
    value: TensorDiff
    gradient: TensorDiff | None
    name_b: str | None = field(default=None, metadata=SPARSE)
    update_ratios: tuple[float, float] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, repr=False)
class DiffReport(Shown):
    """Everything one ``gradscope diff`` learned.

    ``step`` is by how much a number was moved for the noise, ``factor`` how many times the noise an
    own error has to be to count. ``only_a`` and ``only_b`` are calls and parameters that the other
    lacks.

    ``measured`` says what errors are of: "runs" of both, or "ends", what comes out of them, where
    one is compiled; of saved reports "sketches", which are estimates, or "statistics", which are
    lower bounds. ``reference`` is the dtype of a third run, of A, that both were held against.
    """

    status: str  # ok | findings | failed
    a: RunInfo
    b: RunInfo
    schema: str = "gradscope.diff/1"
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
