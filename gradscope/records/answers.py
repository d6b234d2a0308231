"""Answers of ``why``: causes and places of gradients that are not useful, and unjudged rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.data import SPARSE, renamed
from gradscope.records.run import ErrorRecord, RunInfo
from gradscope.records.showing import Shown
from gradscope.records.tensors import TensorStats


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A rule that could not be judged.

    Attributes:
        code: the rule's code.
        unit: the missing unit: "samples", "steps" (with the metrics that it reads),
            "first-step" (a sample of step 1), "calls" (compiled modules have none), or "end"
            (gradscope ended the script early).
        needs: the needed number, for each optimizer and model.
        seen: the recorded number.
        help: the option of ``gradscope run`` that gives enough, or another remedy.
    """

    code: str
    unit: str
    needs: int
    seen: int
    help: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The codes of the rules that could be judged, and the others.

    A rule that does not apply is in neither, such as GS609 without a gradient scaler.
    """

    judged: tuple[str, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of another finding in the same run: its code and its name."""

    code: str
    name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Cause and place of a gradient that is not useful, for all parameters ``upstream``."""

    name: str
    kind: str  # parameter | module
    state: str  # missing | zero | non-finite | healthy; of a training run also not-judged
    message: str
    cause: str | None = None
    module: str | None = None
    call: int | None = None
    location: str | None = None
    upstream: tuple[str, ...] = field(default=(), metadata=renamed("behind"))
    advice: str | None = None
    #: Of a zero gradient: whether one arrives after an optimizer step. None: unknown.
    recovers: bool | None = field(default=None, metadata=SPARSE)
    #: Of a training run: the severity of its rule, and the steps in which it occurred.
    severity: str | None = field(default=None, metadata=SPARSE)
    steps: tuple[tuple[int, int], ...] = field(default=(), metadata=SPARSE)
    #: Of a zero gradient: the layer where it starts, or the parameter whose zeros make it. If the
    #: model's own forward or the loss makes it, the layer whose result goes in.
    starts: str | None = field(default=None, metadata=SPARSE)
    #: Of a training run: the code of the rule, and the finding that this one follows from.
    code: str | None = field(default=None, metadata=SPARSE)
    explained_by: Explanation | None = field(default=None, metadata=SPARSE)

    @property
    def behind(self) -> tuple[str, ...]:
        """The old name of ``upstream``."""
        return self.upstream


@dataclass(frozen=True, slots=True)
class NonFiniteOrigin:
    """The operation that made a NaN or Inf from finite numbers, and where the NaN or Inf spread.

    ``phase`` is input, parameter, forward, loss, backward or step. ``name`` is the module that was
    executing, or the parameter. ``reason`` is the arithmetic, such as "sqrt at 0".
    """

    kind: str  # nan | inf
    phase: str
    message: str
    op: str | None = None
    name: str | None = None
    call: int | None = None
    location: str | None = None
    reason: str | None = None
    count: int | None = None
    inputs: tuple[TensorStats, ...] = ()
    spread: tuple[str, ...] = ()
    advice: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class WhyReport(Shown):
    """Answers of one ``gradscope why``; ``checked`` counts the parameters that it checked."""

    run: RunInfo
    schema: str = "gradscope.why/2"
    status: str = "ok"  # ok | findings | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    checked: int = 0
    frozen: int = 0
    answers: tuple[Answer, ...] = ()
    error: ErrorRecord | None = None
    #: Of a training run: which of its steps were sampled, in words; the rules that could be judged,
    #: and those that need more samples.
    scope: str | None = field(default=None, metadata=SPARSE)
    judged: tuple[str, ...] | None = field(default=None, metadata=SPARSE)
    not_judged: tuple[NotJudged, ...] = field(default=(), metadata=SPARSE)
    #: Of a training run: whether layers were asked for by name. Their symptoms are shown in full.
    named: bool = field(default=False, metadata=SPARSE)
