"""The autograd graph, of the loss or of one output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.answers import Answer
from gradscope.records.errors import ErrorRecord
from gradscope.records.fields import SPARSE
from gradscope.records.run import RunInfo
from gradscope.records.showing import Shown


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """What a node keeps for backward: the attribute's name without ``_saved_``.

    Tensors with one ``storage`` share memory; ``bytes`` is the full storage's. 0 bytes: a
    parameter's own memory, which costs nothing more. A buffer's counts, as it does for autograd.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    storage: int


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of the autograd graph; ``to`` follows ``next_functions``: (id, input number).

    ``grad_norm`` is that of the gradient that reached the node in backward, over its finite
    elements; None where none did. ``saved_bytes`` is None where what it saved could not be read.
    ``inner`` has the outputs of the graph that a reentrant checkpoint built in backward.
    """

    id: int
    op: str
    kind: str  # function | parameter | input
    name: str | None = None
    module: str | None = None
    call: int | None = None
    shape: tuple[int, ...] | None = None
    to: tuple[tuple[int, int] | None, ...] = ()
    saved_bytes: int | None = None
    grad_norm: float | None = None
    grad_nonfinite: int = field(default=0, metadata=SPARSE)
    saved: tuple[SavedTensor, ...] = field(default=(), metadata=SPARSE)
    inner: tuple[tuple[int, int], ...] = field(default=(), metadata=SPARSE)
    #: The user's file and line that made it, where they were asked for.
    location: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A module's call that the graph's nodes point to; ``parent`` is the index of the one around.

    -1 is outside every call.
    """

    name: str
    call: int
    type: str
    parent: int = -1


@dataclass(frozen=True, slots=True, repr=False)
class AutogradGraph(Shown):
    """The autograd graph upstream of the loss, or of another output, as one backward found it.

    ``nodes`` come in topological order: each before those that it leads to; ``root`` is the first
    one's id, None where there is no graph. ``answers`` say why parameters that could have a
    gradient got none from it.

    ``part`` says which paths were kept of a larger graph. Edges to what was left out are None then,
    ``names``, ``frozen`` and ``answers`` speak only of what is in the part or was asked for.
    """

    run: RunInfo
    root: int | None = None
    nodes: tuple[GraphNode, ...] = ()
    start: str = "loss"
    schema: str = "gradscope.graph/2"
    status: str = "ok"  # ok | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    loss: float | None = None
    loss_nonfinite: str | None = None
    saved_bytes: int | None = None  # of the full graph, each storage once
    calls: tuple[GraphCall, ...] = ()
    names: tuple[str, ...] = ()  # of every parameter of the model, in the graph or not
    frozen: tuple[str, ...] = ()  # of those, which require no gradient
    answers: tuple[Answer, ...] = ()
    error: ErrorRecord | None = None
    part: str | None = field(default=None, metadata=SPARSE)

    @property
    def complete(self) -> bool:
        """Whether the run came to its end, so that what is not here is not there.

        A loss without a graph is an answer too.
        """
        if self.error is None:
            return self.status == "ok"
        return self.error.kind == "no-grad-root" and self.error.phase == "backward"


@dataclass(frozen=True, slots=True)
class Chain:
    """The autograd graph from one output of one call back to its leaves; the root comes first."""

    name: str
    call: int
    path: str
    nodes: tuple[GraphNode, ...] = ()
