"""Why a run failed, and where in the user's code."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.fields import SPARSE
from gradscope.records.tensors import TensorStats


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's own code that was executing."""

    file: str
    line: int
    function: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class RelatedLine:
    """A line that had a part in an error: it saved what another mutated or freed, or made it."""

    role: str  # saved | mutated | freed | carried | made
    file: str
    line: int
    code: str | None = None
    name: str | None = None
    call: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Why a run failed: ``phase`` is config, construction, input, forward, loss, backward or step.

    Of a full training script it is script.

    ``details`` are sentences that say which operands conflict; ``related`` are lines other than the
    one that raised.
    """

    kind: str
    message: str
    phase: str
    name: str | None = None
    call: int | None = None
    location: str | None = None
    advice: str | None = None
    exception: str | None = None
    inputs: tuple[TensorStats, ...] = ()
    frames: tuple[Frame, ...] = ()
    details: tuple[str, ...] = field(default=(), metadata=SPARSE)
    related: tuple[RelatedLine, ...] = field(default=(), metadata=SPARSE)
