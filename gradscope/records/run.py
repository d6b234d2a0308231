"""The settings of a run, and its totals."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.fields import SPARSE
from gradscope.records.tensors import TensorRecord


@dataclass(frozen=True, slots=True)
class Verification:
    """Two plain steps and one observed: do the plain ones repeat, and is the observed one equal?"""

    repeatable: bool
    identical: bool
    max_difference: float | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """How the run was made. ``notices`` says what was inferred or mended on the way.

    ``steps`` 0: nothing was run, as for the graph of a tensor that was there.
    """

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
    #: Whether gradscope chose the loss, and the numbers in the output that it could not choose
    #: because they have no graph.
    loss_inferred: bool = field(default=False, metadata=SPARSE)
    without_graph: tuple[str, ...] = field(default=(), metadata=SPARSE)
    #: Whether the target was drawn at random, for none was given.
    target_drawn: bool = field(default=False, metadata=SPARSE)
    #: What names the model: a config, or the source file of a spec. None: neither, or a live model.
    file: str | None = field(default=None, metadata=SPARSE)
    #: Micro-batches of each step, whose gradients are accumulated.
    accumulate: int = field(default=1, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall-clock time of the observed run, all steps together."""

    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the full model, whatever the layer patterns select."""

    parameters: int = 0
    trainable: int = 0
    gradient_norm: float | None = None
    saved_bytes: int | None = None
    modules: int = 0
    calls: int = 0
    seconds: Seconds = Seconds()


@dataclass(frozen=True, slots=True)
class LossPart:
    """One of the losses that a run's loss is computed of."""

    name: str
    value: float | None
    nonfinite: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class StepParameter:
    """A parameter's part in one step: its gradient's norm so far and its update ratio.

    ``value_norm`` and ``update_norm`` are what the ratio is of, in steps of several processes.
    """

    name: str
    gradient_norm: float | None = None
    update_ratio: float | None = None
    value_norm: float | None = field(default=None, metadata=SPARSE)
    update_norm: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One backward of a run with several: ``backward`` counts them within ``step``, from 0.

    Gradients are those accumulated in the step so far; ``inputs`` are the model's own.
    """

    step: int
    backward: int
    loss: float | None
    loss_nonfinite: str | None = None
    gradient_norm: float | None = None
    inputs: tuple[TensorRecord, ...] = ()
    parameters: tuple[StepParameter, ...] = ()
