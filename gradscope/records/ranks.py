"""Comparison of the processes of one run: facts of each, and their differences.

A rank writes fingerprints: texts that are equal if all bits are. They are compared when the ranks'
files are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gradscope.records.training import TrainedModel, TrainingEvent, TrainingRun

#: Kinds of tensors with fingerprints.
PARAMETER, GRADIENT, BUFFER, INPUT = "parameter", "gradient", "buffer", "input"
#: The event that says which parameters got no gradient in a step that DDP gave up.
UNUSED = "unused-parameters"


@dataclass(frozen=True, slots=True)
class Difference:
    """Tensors of one kind whose copies on several ranks differ.

    Attributes:
        model: its id.
        kind: "parameter", "gradient" (as the optimizer got it) or "buffer".
        steps: the first and the last sampled step in which they differ.
        before: the last step before these in which they were the same; None where none was.
        names: those that differ in the first, in the order of the model.
        total: of how many.
        ranks: those that hold something else than most of the ranks, or than the lowest.
        compared: how many ranks.
    """

    model: int
    kind: str
    steps: tuple[int, int]
    before: int | None
    names: tuple[str, ...]
    total: int
    ranks: tuple[int, ...]
    compared: int


@dataclass(frozen=True, slots=True)
class SameInputs:
    """Ranks that a model was called on each with data of its own, and got the same, bit for bit.

    ``count`` of ``sampled`` steps, from ``steps[0]`` to ``steps[1]``.
    """

    model: int
    ranks: tuple[int, ...]
    steps: tuple[int, int]
    count: int
    sampled: int


@dataclass(frozen=True, slots=True)
class UnevenBatch:
    """Steps in which ranks had batches of different sizes.

    Attributes:
        steps: the first and the last of them.
        count: how many there are.
        sizes: of the first, by rank: samples of all calls in it.
        usual: the size that most steps of each rank have.
        share: the least share of a rank's steps that have its usual size.
        kinds: how many sizes the batches of one rank have, at the most.
    """

    steps: tuple[int, int]
    count: int
    sizes: Mapping[int, int]
    usual: Mapping[int, int]
    share: float
    kinds: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations of a rank's steps that were not sampled.

    Attributes:
        step: the median of their seconds.
        own: the median of the seconds before their first backward begins.
        least: of these, what three of four steps take at the least.
    """

    step: float
    own: float
    least: float


@dataclass(frozen=True, slots=True)
class RanksRecord:
    """The files of a run's ranks, compared with each other.

    ``runs`` are by rank, ``models`` those of the lowest; ``events`` are of all ranks, each with
    its ``rank`` in the details. ``paces`` are by rank.
    """

    runs: tuple[TrainingRun, ...] = ()
    models: tuple[TrainedModel, ...] = ()
    differences: tuple[Difference, ...] = ()
    same_inputs: tuple[SameInputs, ...] = ()
    uneven: UnevenBatch | None = None
    paces: Mapping[int, Pace] = field(default_factory=dict)
    events: tuple[TrainingEvent, ...] = field(default=())
