"""Records of a training loop: inputs and outputs of its models, equal units, copies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopBatches:
    """The batches of a model's calls with gradients, in the sampled steps.

    Attributes:
        model: the model's number.
        batches: the number of batches with four samples or more that were read.
        alike: the number of these whose samples are all equal.
        outputs: the number of batches with different samples whose outputs were read.
        constant: the number of the last of these with equal outputs for all samples.
        location: the line of the model's first call.
        size: the root mean square of its first input of floating numbers, in the last of them; 0
            without one.
        twins: the number of batches in which two inputs in different memory had equal numbers.
    """

    model: int
    batches: int
    alike: int = 0
    outputs: int = 0
    constant: int = 0
    location: str | None = None
    size: float = 0.0
    twins: int = 0


@dataclass(frozen=True, slots=True)
class EqualUnits:
    """A weight whose rows are all equal in all samples, although it trains, or that is zero in all
    samples.

    Attributes:
        model: the model's number.
        name: the weight's name.
        units: the number of its rows; 0 if the weight is zero.
        readings: the number of samples.
        location: the line that made all entries equal, if known.
    """

    model: int
    name: str
    units: int
    readings: int
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LoopInputs:
    """The inputs of a model in evaluations, compared with those in training.

    Attributes:
        model: the model's number.
        readings: the number of evaluations read.
        mean, deviation: of the inputs in training.
        least_shift: the smallest shift of an evaluation's mean, in these deviations.
        least_ratio: the smallest quotient of the two deviations, the larger divided by the
            smaller.
        example: mean and deviation of the last evaluation.
        location: the line of the first evaluation.
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
        pairs: the number of pairs.
        names: the names of the first pair.
        trained: the first trainable parameter of the model.
        location: the first line that freezes something, else the line that made the first pair.
    """

    model: int
    pairs: int
    names: tuple[str, str]
    trained: str
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LoopFunction:
    """A ``torch.autograd.Function`` of the script with a wrong backward.

    Attributes:
        name: the class.
        input: the number of the argument whose gradient is wrong, from 0.
        step: the step whose arguments it was checked on.
        backward: the derivative in a random direction, by backward.
        differences: the same by finite differences, in float64.
        zeros: True if backward returns only zeros.
        ignores: True if the result does not depend on the incoming gradient.
        location: the line where backward returns, if known.
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
    """A copy of a trained model that no optimizer holds.

    Attributes:
        name: the name of its variable, or its path in the model.
        of: the name of the model, or the part of it, with equal weights at the start.
        calls: the number of its calls.
        steps: the number of steps with a call.
        unchanged: True if its weights are those from before the first step.
        stale_buffers: True if its weights changed, but its buffers (such as running statistics)
            did not, while the buffers of the model ``of`` did.
        follows: True if its name or class, or those of its owner, say that it follows the
            model ``of``: "target", "ema".
        location: the line of its first call.
        made: the line that assigns it, if there is one.
        updated: the last line that loads weights into it, if there are several.
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
    updated: str | None = None
