"""What the rules found: in one model, and in all that a check looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.answers import Answer, Birth
from gradscope.records.errors import ErrorRecord
from gradscope.records.fields import SPARSE
from gradscope.records.precision import PrecisionForecast
from gradscope.records.run import RunInfo


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says: the layer where the trouble starts, the figures, and the next step."""

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


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule as formats describe it that carry the rule book along."""

    code: str
    name: str
    severity: str
    summary: str
    help: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """A finding that is put up with: the same one has other figures on another day."""

    model: str
    code: str
    name: str
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """One model's verdict. ``known`` are findings that the baseline holds: they do not count."""

    status: str  # ok | findings | failed
    run: RunInfo
    config: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    known: tuple[Finding, ...] = ()
    error: ErrorRecord | None = None
    answers: tuple[Answer, ...] = field(default=(), metadata=SPARSE)
    births: tuple[Birth, ...] = field(default=(), metadata=SPARSE)
    precision: tuple[PrecisionForecast, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything one ``gradscope check`` learned.

    ``rules`` are the codes of those that looked, ``stale`` the entries of ``baseline`` that no
    finding answers to any more.
    """

    schema: str = "gradscope.check/1"
    status: str = "ok"  # ok | findings | failed
    versions: dict[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    models: tuple[CheckedModel, ...] = ()
    baseline: str | None = None
    stale: tuple[BaselineEntry, ...] = ()
