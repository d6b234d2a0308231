"""Records of the comparison of a run's processes: facts of each, and their differences.

Each rank writes fingerprints, which are equal if all bits are equal. They are compared when the
ranks' files are read.
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
        before: the last step before these in which they were equal; None without one.
        names: the tensors that differ in the first step, in the order of the model.
        total: the number of tensors.
        ranks: the ranks that differ from most ranks, or from the lowest.
        compared: the number of compared ranks.
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
    """Ranks that should have different inputs, but got equal ones, bit for bit: in ``count`` of
    ``sampled`` steps, from ``steps[0]`` to ``steps[1]``."""

    model: int
    ranks: tuple[int, ...]
    steps: tuple[int, int]
    count: int
    sampled: int


@dataclass(frozen=True, slots=True)
class UnevenBatch:
    """Steps in which ranks had batches of different sizes.

    Attributes:
        steps: the first and the last of these steps.
        count: the number of these steps.
        sizes: the number of samples by rank, in the first step.
        usual: the most common size of each rank.
        share: the smallest share of a rank's steps with its usual size.
        kinds: the largest number of different sizes in one rank.
    """

    steps: tuple[int, int]
    count: int
    sizes: Mapping[int, int]
    usual: Mapping[int, int]
    share: float
    kinds: int


@dataclass(frozen=True, slots=True)
class Pace:
    """The durations of a rank's unsampled steps.

    Attributes:
        step: the median seconds of a step.
        own: the median seconds before the first backward.
        least: the lower quartile of these seconds.
    """

    step: float
    own: float
    least: float


@dataclass(frozen=True, slots=True)
class RanksRecord:
    """The files of a run's ranks, compared with each other.

    ``runs`` and ``paces`` are by rank; ``models`` are those of the lowest rank; ``events`` has the
    events of all ranks, each with its ``rank`` in the details.
    """

    runs: tuple[TrainingRun, ...] = ()
    models: tuple[TrainedModel, ...] = ()
    differences: tuple[Difference, ...] = ()
    same_inputs: tuple[SameInputs, ...] = ()
    uneven: UnevenBatch | None = None
    paces: Mapping[int, Pace] = field(default_factory=dict)
    events: tuple[TrainingEvent, ...] = field(default=())
