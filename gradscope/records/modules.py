"""Records of a model's modules, parameters and calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.data import SPARSE
from gradscope.records.tensors import TensorRecord, TensorStats


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
    #: Elements of the parameters of the module and of all below it, each parameter once.
    parameters: int | None = field(default=None, metadata=SPARSE)
    #: Of forward, calls inside it included; None without a request for them.
    flops: int | None = field(default=None, metadata=SPARSE)
    seconds: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class ParameterStats:
    """One parameter, the gradient that the run added, and its update by the optimizer."""

    name: str
    shape: tuple[int, ...]
    requires_grad: bool
    value: TensorStats
    gradient: TensorStats | None = None
    update_ratio: float | None = None
    aliases: tuple[str, ...] = ()
    in_optimizer: bool | None = None
    #: ‖Δw‖ of the optimizer's step: with ‖w‖ 0, there is no ratio. Of training runs, and of steps
    #: of several processes.
    update_norm: float | None = field(default=None, metadata=SPARSE)
    #: Whether the optimizer's step changed any element; None without one, or outside it.
    moved: bool | None = field(default=None, metadata=SPARSE)
    #: Of the optimizer's step Δw: its root mean square; ‖Δw‖ over ‖g‖ as the optimizer got it; the
    #: cosine of Δw and g (−1: straight down the gradient); the share of weight decay.
    update_rms: float | None = field(default=None, metadata=SPARSE)
    effective_lr: float | None = field(default=None, metadata=SPARSE)
    cosine: float | None = field(default=None, metadata=SPARSE)
    decay_share: float | None = field(default=None, metadata=SPARSE)
    #: Of the optimizer's state after the step: the norms of the first and of the second moment, and
    #: the standard deviation of the second's elements over their mean.
    m_norm: float | None = field(default=None, metadata=SPARSE)
    v_norm: float | None = field(default=None, metadata=SPARSE)
    v_spread: float | None = field(default=None, metadata=SPARSE)
    #: Of optimizers that orthogonalise the update of a matrix, if it is small: the largest singular
    #: value of Δw, and ‖Δw‖² over its square.
    spectral_norm: float | None = field(default=None, metadata=SPARSE)
    stable_rank: float | None = field(default=None, metadata=SPARSE)
    #: Misspelt attributes that were meant to be ``requires_grad`` and differ from its value.
    misspelt: tuple[str, ...] = field(default=(), metadata=SPARSE)

    @property
    def grad(self) -> TensorStats | None:
        """``gradient``, by PyTorch's word: ``p.grad.norm``."""
        return self.gradient


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """Facts on a module, also if no layer pattern selects it.

    ``kinds`` has its base classes in ``torch.nn``, nearest first. ``parameters`` has its own
    parameters, by full name; ``written`` its own buffers that forward wrote to. ``settings`` are
    plain attributes that rules read, such as a dropout's ``p``. ``misspelt`` has attributes that
    were probably meant as ``requires_grad``, but have no effect. ``library`` is the installed
    package of its class, if it is not PyTorch. ``rows`` is a tensor of [L, 1, D] whose row i
    forward adds to part i of its input's first axis, such as positions.
    """

    name: str
    type: str
    kinds: tuple[str, ...] = ()
    training: bool = True
    calls: int = 0
    aliases: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    written: tuple[str, ...] = field(default=(), metadata=SPARSE)
    settings: dict[str, Any] = field(default_factory=dict, metadata=SPARSE)
    misspelt: tuple[str, ...] = field(default=(), metadata=SPARSE)
    library: str | None = field(default=None, metadata=SPARSE)
    rows: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Link:
    """Two connected operations of the autograd graph: the result of ``op`` went into ``into``.

    Operations that only move numbers (views, casts, permutations) are skipped. A name is the
    innermost module of the operation, None outside of modules.
    """

    op: str
    into: str
    name: str | None = None
    call: int | None = None
    into_name: str | None = None
    into_call: int | None = None
    #: Whether other operations read the same result too.
    shared: bool = field(default=False, metadata=SPARSE)
    #: The user's line that made the operation, if a rule requested it.
    location: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Tensors that backward reaches, but that are not parameters of the model.

    ``name`` is the module whose plain ``attribute`` holds them.
    """

    name: str
    attribute: str
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class UnitActivity:
    """Activity of the units (channels, or features of the last axis) after one nonlinearity.

    ``dead`` units are off (zero) in almost all of their ``samples`` values; ``saturated`` ones are
    at a flat end. The units of a softmax are its distributions.
    """

    op: str
    name: str | None
    call: int | None
    units: int
    samples: int
    dead: int = 0
    saturated: int = 0
    location: str | None = None
    #: Of a sigmoid or a tanh: the share of all values whose slope is under 6 % of the steepest.
    near: float | None = field(default=None, metadata=SPARSE)
    #: The shares of the values of all units that are off, or lie at a flat end. Not of a softmax.
    off: float | None = field(default=None, metadata=SPARSE)
    flat: float | None = field(default=None, metadata=SPARSE)
    #: Units that no input with entries like those seen, and no longer, can activate. Counted after
    #: a linear layer that was given few rows.
    asleep: int = field(default=0, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """A module for patterns; ``parameters`` has its own parameters: name, shape, requires_grad.

    A lazy module's parameters have no shape before its first call.
    """

    name: str
    type: str
    aliases: tuple[str, ...] = ()
    parameters: tuple[tuple[str, tuple[int, ...] | None, bool], ...] = ()
    total: int = 0  # parameters of it and all below
