"""What a run leaves behind: frozen, plain data that every view renders and every rule reads.

Standard library only. Add a field here when a view or a rule needs one more fact; reports.py
writes and reads whatever stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: A number as a record keeps it. Non-finite entries of ``TensorStats.values`` are the strings
#: "nan", "inf" and "-inf", complex ones are ``(real, imaginary)``: JSON has no token for them.
Value = float | str | tuple[float | str, float | str]


@dataclass(frozen=True, slots=True)
class TensorStats:
    """One tensor reduced to numbers.

    ``norm`` is L2, ``std`` is the population's; both and ``mean``, ``min``, ``max`` are taken over
    the finite elements. ``zeros``, ``nan`` and ``inf`` count elements. Whatever does not exist
    (the mean of an empty tensor, anything on the ``meta`` device) is None.
    """

    shape: tuple[int, ...]
    dtype: str
    numel: int
    norm: float | None = None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    zeros: int | None = None
    nan: int | None = None
    inf: int | None = None
    values: tuple[Value, ...] | None = None


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor that went into or came out of a call, as it was then, and its gradient.

    ``path`` is its place in the arguments or the result: ``""`` for a bare tensor, else ``0``,
    ``last_hidden_state``, ``1.boxes``. ``gradient`` is None where none arrived.
    """

    path: str
    activation: TensorStats
    gradient: TensorStats | None = None
    grad_fn: str | None = None
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One execution of one module's ``forward``; ``order`` counts entries into forward from 0."""

    name: str
    type: str
    call: int
    order: int
    aliases: tuple[str, ...] = ()
    training: bool = True
    notes: tuple[str, ...] = ()
    inputs: tuple[TensorRecord, ...] = ()
    outputs: tuple[TensorRecord, ...] = ()
    saved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ParameterStats:
    """One parameter, what the run added to its ``.grad``, and how far the optimizer moved it."""

    name: str
    shape: tuple[int, ...]
    requires_grad: bool
    value: TensorStats
    gradient: TensorStats | None = None
    update_ratio: float | None = None
    aliases: tuple[str, ...] = ()
    in_optimizer: bool | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """Two plain steps and one observed: do the plain ones repeat, and is the observed one equal?"""

    repeatable: bool
    identical: bool
    max_difference: float | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """How the run was made. ``notices`` says what was inferred or mended on the way."""

    model: str
    device: str
    dtype: str
    mode: str
    seed: int
    steps: int
    loss: str
    autocast: str | None = None
    optimizer: str | None = None
    repeats: int = 1
    verified: Verification | None = None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall-clock time of the observed run, all steps together."""

    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the whole model, whatever the layer patterns select."""

    parameters: int = 0
    trainable: int = 0
    gradient_norm: float | None = None
    saved_bytes: int | None = None
    modules: int = 0
    calls: int = 0
    seconds: Seconds = Seconds()


@dataclass(frozen=True, slots=True)
class StepParameter:
    """A parameter's part in one step: its gradient's norm so far and its update ratio."""

    name: str
    gradient_norm: float | None = None
    update_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One backward of a run with several: ``backward`` counts repeats within ``step``, from 0.

    Gradients are those accumulated in the step so far; ``inputs`` are the model's own.
    """

    step: int
    backward: int
    loss: float | None
    loss_nonfinite: str | None = None
    gradient_norm: float | None = None
    inputs: tuple[TensorRecord, ...] = ()
    parameters: tuple[StepParameter, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's own code that was executing."""

    file: str
    line: int
    function: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Why a run failed: ``phase`` is construction, input, forward, loss, backward or step."""

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


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of the autograd graph; ``to`` follows ``next_functions``: (id, input number)."""

    id: int
    op: str
    kind: str  # function | parameter | input
    name: str | None = None
    module: str | None = None
    call: int | None = None
    shape: tuple[int, ...] | None = None
    to: tuple[tuple[int, int] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """The autograd graph from one output of one call back to its leaves; the root comes first."""

    name: str
    call: int
    path: str
    nodes: tuple[GraphNode, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """A module as patterns see it; ``parameters`` are its own: name, shape, requires_grad."""

    name: str
    type: str
    aliases: tuple[str, ...] = ()
    parameters: tuple[tuple[str, tuple[int, ...], bool], ...] = ()
    total: int = 0  # parameters of it and all below


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
    totals: Totals = Totals()
    calls: tuple[ModuleCall, ...] = ()
    parameters: tuple[ParameterStats, ...] = ()
    history: tuple[StepRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    chains: tuple[Chain, ...] = ()
    error: ErrorRecord | None = None
