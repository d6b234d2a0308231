"""Records of a run's settings, totals, error, processes, and the placement of its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.data import SPARSE, renamed
from gradscope.records.tensors import TensorRecord, TensorStats


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's own code that was executing."""

    file: str
    line: int
    function: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class RelatedLine:
    """Another line that an error involves: it made a tensor, saved it, wrote to it or freed it."""

    role: str  # saved | mutated | freed | carried | made
    file: str
    line: int
    code: str | None = None
    name: str | None = None
    call: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """Error of a run: ``phase`` is config, construction, input, forward, loss, backward or step.

    For a full training script, it is "script".

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


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of two plain steps with an observed one: whether the plain ones repeat, and
    whether the observed one is equal."""

    repeatable: bool
    identical: bool
    max_difference: float | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Settings of the run. ``notices`` lists inferred or adjusted settings. ``steps`` 0: nothing
    ran, as for the graph of an existing tensor."""

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
    #: The file that names the model: a config, or the source file of a spec. None: neither, or a
    #: live model.
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
    """Totals of the full model, independent of layer patterns."""

    parameters: int = 0
    trainable: int = 0
    gradient_norm: float | None = None
    saved_bytes: int | None = None
    modules: int = 0
    calls: int = 0
    seconds: Seconds = Seconds()


@dataclass(frozen=True, slots=True)
class LossPart:
    """One of the losses from which a run's loss is computed."""

    name: str
    value: float | None
    nonfinite: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class StepParameter:
    """A parameter's part in one step: its gradient's norm so far and its update ratio.

    With several processes, ``value_norm`` and ``update_norm`` are the two norms of the ratio.
    """

    name: str
    gradient_norm: float | None = None
    update_ratio: float | None = None
    value_norm: float | None = field(default=None, metadata=SPARSE)
    update_norm: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One backward of a run: ``backward`` is its number within ``step``, from 0. Gradients are
    accumulated over the step so far; ``inputs`` has the gradients of the model's inputs."""

    step: int
    backward: int
    loss: float | None
    loss_nonfinite: str | None = None
    gradient_norm: float | None = None
    inputs: tuple[TensorRecord, ...] = ()
    parameters: tuple[StepParameter, ...] = ()


#: A group of ``ParameterPlacement``, with the norm of its gradients here as backward left them, and
#: as the optimizer got them.
GroupNorm = tuple[int, float | None, float | None]


@dataclass(frozen=True, slots=True)
class DeviceMesh:
    """The processes that share tensors, as a grid.

    Attributes:
        id: its number in the file of one process.
        names: the names of its dimensions; empty if the script gave none.
        shape: the number of processes along each.
        ranks: the ranks of the processes, row by row.
        coordinate: the position of this process.
    """

    id: int
    names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    coordinate: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParameterPlacement:
    """The placement of a parameter in one process of several.

    Attributes:
        model: the id of its model.
        name: its name.
        shape: the shape of the full tensor.
        local_shape: the shape of this process's part.
        mesh: the id of its ``DeviceMesh``; None for a plain tensor, which is not sharded.
        placements: for each dimension of the mesh "S(d)", sharded along dimension d of the
            tensor, "R", replicated, or "P", a partial sum. "F" alone is a flat shard of
            FullyShardedDataParallel.
        gradient_placements: the same for its gradient.
        norm_group: the group of an optimizer's parameters with equal placement; the step
            metrics have one norm per group. None if no optimizer holds it.
    """

    model: int
    name: str
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    mesh: int | None = None
    placements: tuple[str, ...] = ()
    gradient_placements: tuple[str, ...] = ()
    norm_group: int | None = None


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """The processes of a run, and each one's part of the model.

    Attributes:
        kind: ddp, fsdp, tp, or "fsdp x tp".
        processes: the number of processes.
        axes: the dimensions of the mesh, each with its number of processes.
        parts: the number of parts of each batch.
        rank: the process whose calls are recorded.
        meshes, placements: those of the parameters in that process.
        not_reduced: parameters without a global norm: replicas differ, or hold partial sums.
    """

    kind: str
    processes: int
    axes: dict[str, int]
    parts: int
    rank: int = 0
    meshes: tuple[DeviceMesh, ...] = ()
    placements: tuple[ParameterPlacement, ...] = ()
    not_reduced: tuple[str, ...] = field(default=(), metadata=renamed("untold", sparse=True))
