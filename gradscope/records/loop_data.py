"""Inputs and outputs of a training loop's models, and units that are all equal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopBatches:
    """The batches of a model's calls with gradients, in the sampled steps.

    Attributes:
        model: the model's number.
        batches: how many of four samples or more were read.
        alike: in how many of them all samples were the same.
        outputs: of how many batches of different samples the outputs were read.
        constant: for how many of the last of these the output was the same for all samples.
        location: where the model was called first.
    """

    model: int
    batches: int
    alike: int = 0
    outputs: int = 0
    constant: int = 0
    location: str | None = None


@dataclass(frozen=True, slots=True)
class EqualUnits:
    """A weight whose rows are all equal, in all samples, though it moves.

    Attributes:
        model: the model's number.
        name: the weight's.
        units: how many rows it has.
        readings: in how many samples.
        location: the line that made all entries the same, where it is known.
    """

    model: int
    name: str
    units: int
    readings: int
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LoopInputs:
    """The numbers that a model is given in evaluations, beside those of the training.

    Attributes:
        model: the model's number.
        readings: how many evaluations were read.
        mean, deviation: of the training's inputs.
        least_shift: by how many of these deviations the mean of an evaluation's inputs was another,
            at least.
        least_ratio: the least quotient of the two deviations, the larger over the smaller.
        example: mean and deviation of the last evaluation's.
        location: where the first evaluation is.
    """

    model: int
    readings: int
    mean: float
    deviation: float
    least_shift: float
    least_ratio: float
    example: tuple[float, float]
    location: str | None = None


@dataclass(frozen=True, slots=True)
class FrozenAdapters:
    """Pairs of frozen weights of low rank, the second of which is zero.

    Attributes:
        model: the model's number.
        pairs: how many there are.
        names: of the first pair.
        trained: the first parameter of the model that trains.
        location: the first line that freezes something, else that which made the first pair.
    """

    model: int
    pairs: int
    names: tuple[str, str]
    trained: str
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LoopFunction:
    """A ``torch.autograd.Function`` of the script's whose backward is not its derivative.

    Attributes:
        name: the class.
        input: the number of the argument whose gradient is wrong, from 0.
        step: the step whose arguments it was checked on.
        backward: the derivative in a random direction, as backward gives it.
        differences: the same by finite differences, in float64.
        zeros: whether backward gives zeros alone.
        ignores: whether it gives the same whatever gradient comes in.
        location: the line where backward returns, where it is known.
    """

    name: str
    input: int
    step: int
    backward: float
    differences: float
    zeros: bool
    ignores: bool
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LoopCopy:
    """A copy of a model that trains, which no optimizer holds.

    Attributes:
        name: its variable's, or its path in the model.
        of: that of the model, or the part of it, with the same weights at the start.
        calls: how often it was called.
        steps: in how many steps.
        unchanged: whether it has the weights that it had before the first step.
        stale_buffers: whether its weights have changed, and its buffers, as running statistics,
            have not, while those of the other have.
        follows: whether its name, its class, or those of the object that has it say that it follows
            the other: "target", "ema".
        location: where it was called first.
        made: the line that assigns it, where one is written.
    """

    name: str
    of: str
    calls: int
    steps: int
    unchanged: bool
    stale_buffers: bool
    follows: bool
    location: str | None = None
    made: str | None = None
