"""Everything that an inspection learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.answers import Answer, Birth
from gradscope.records.errors import ErrorRecord
from gradscope.records.fields import SPARSE
from gradscope.records.findings import Finding
from gradscope.records.graph import Chain
from gradscope.records.modules import (
    Link,
    ModuleCall,
    ModuleFacts,
    ParameterStats,
    UnitActivity,
    Unregistered,
)
from gradscope.records.precision import PrecisionForecast
from gradscope.records.run import RunInfo, StepRecord, Totals


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one ``gradscope inspect`` learned."""

    status: str  # ok | findings | failed
    run: RunInfo
    schema: str = "gradscope.report/1"
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    loss: float | None = None
    loss_nonfinite: str | None = None
    totals: Totals = field(default_factory=Totals)
    calls: tuple[ModuleCall, ...] = ()
    parameters: tuple[ParameterStats, ...] = ()
    history: tuple[StepRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    chains: tuple[Chain, ...] = ()
    error: ErrorRecord | None = None
    modules: tuple[ModuleFacts, ...] = field(default=(), metadata=SPARSE)
    links: tuple[Link, ...] = field(default=(), metadata=SPARSE)
    unregistered: tuple[Unregistered, ...] = field(default=(), metadata=SPARSE)
    #: Parameters without a gradient here that other seeds or batches reach. None: nobody looked.
    elsewhere: tuple[str, ...] | None = field(default=None, metadata=SPARSE)
    activity: tuple[UnitActivity, ...] = field(default=(), metadata=SPARSE)
    precision: tuple[PrecisionForecast, ...] = field(default=(), metadata=SPARSE)
    answers: tuple[Answer, ...] = field(default=(), metadata=SPARSE)
    births: tuple[Birth, ...] = field(default=(), metadata=SPARSE)
