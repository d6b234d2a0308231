"""The records that full samples add to a report."""

from __future__ import annotations

from dataclasses import dataclass

from gradscope.records.tensors import TensorStats


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """The gradient check of one input, or one parameter, in one call of a layer.

    ``input`` is a path in the arguments, or the parameter's name in the layer. ``verdict`` is
    right, wrong, kink (right near these inputs, but not at them), non-deterministic, or unchecked.
    ``backward`` and ``differences`` are the derivative in a random direction, by the layer's
    backward and by finite differences; None if unknown.
    """

    name: str
    type: str
    call: int
    input: str
    verdict: str
    backward: float | None = None
    differences: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of elements by sign and power of two.

    Bin ``i`` holds the elements with ``2**(first + i) <= |x| < 2**(first + i + 1)``; ``negative``
    and ``positive`` have one count per bin, from the lowest bin with an element to the highest.
    Zeros, NaN and Inf are in no bin. ``kind`` is "activation" or "gradient" of a call's output at
    ``path``; or "value" or "gradient" of the parameter ``path``, and then ``call`` is None.
    """

    name: str
    kind: str
    path: str
    numel: int
    call: int | None = None
    first: int = 0
    negative: tuple[int, ...] = ()
    positive: tuple[int, ...] = ()
    zeros: int = 0
    nan: int = 0
    inf: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor that an intervention changed, or should have changed.

    ``name`` is a module with its ``call``, or a parameter, which has none. ``at`` is activation,
    grad_output, grad_input or parameter_grad; ``do`` is the action and ``value`` its number.
    ``before`` and ``after`` are None if nothing arrived; ``note`` gives the reason. Gradients of
    several backwards are added up, as in ``.grad``.
    """

    name: str
    at: str
    do: str
    value: float | None = None
    call: int | None = None
    path: str = ""
    before: TensorStats | None = None
    after: TensorStats | None = None
    #: The norm after, divided by the norm before; None if that was 0 or is unknown.
    factor: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class SharedLayer:
    """The parameters of one module that several losses reach, as one vector.

    ``name`` None stands for all shared parameters of the model. ``parameters`` counts their
    elements. ``norms`` has the gradient norm of each loss, ``cosines`` the cosine for each pair of
    losses; None if a loss does not reach the layer, or if its gradient is zero or not finite.
    """

    name: str | None
    parameters: int
    norms: tuple[float | None, ...]
    cosines: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class TaskGradients:
    """The gradients of several losses.

    ``pairs`` has the indices of two losses in ``tasks``, in the order of a layer's cosines.
    ``alone`` has the modules that only one loss reaches, with that loss.
    """

    tasks: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    total: SharedLayer
    layers: tuple[SharedLayer, ...] = ()
    alone: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SampleGradient:
    """One sample's part of the batch's gradient.

    Attributes:
        index: its position in the batch, from 0.
        loss: its loss; None if it cannot be separated from the batch's.
        norm: the norm of its part of the gradient.
        share: its share of the batch's gradient, measured along that gradient. All shares add
            up to 1; a negative share pulls against the batch.
        cosine: the cosine of its part and the sum of all other parts.
        layers: the modules with the largest parts of its gradient, each with its share of the
            squared norm.
    """

    index: int
    loss: float | None
    norm: float | None
    share: float | None
    cosine: float | None
    layers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """The noise scale tr(Σ) / |G|² of the gradient, in samples (McCandlish et al. 2018).

    ``name`` is the module, None for all parameters. ``low`` and ``high`` are its 95 % interval.
    ``value`` is None if the gradient is not larger than its noise; ``high`` is None if the interval
    has no upper end.
    """

    name: str | None
    value: float | None
    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class PerSample:
    """The batch's gradient, split by sample.

    Attributes:
        samples: Gradient of each sample, in the order of the batch.
        norm: Norm of the batch's gradient.
        rest: Norm of the part that comes from no sample, such as a penalty on the weights.
        noise: Gradient noise of all parameters, then of each module.
        mixing: Modules that make the output of each sample depend on the others, as BatchNorm does.
    """

    samples: tuple[SampleGradient, ...]
    norm: float | None
    rest: float | None = None
    noise: tuple[GradientNoise, ...] = ()
    mixing: tuple[str, ...] = ()


#: Number of values in a sketch.
SKETCH_WIDTH = 128
#: By how many last bits each number of a run is moved for the noise. More than one: a ReLU or a max
#: pool that is on the brink falls to one side or the other with another order of sums, too.
SKETCH_BITS = 8


@dataclass(frozen=True, slots=True)
class Sketch:
    """A random projection: the distance of two sketches is about that of the tensors.

    Each element is added to one of ``SKETCH_WIDTH`` numbers, or subtracted from it. A hash of its
    position chooses the number and the sign, so sketches are equal on all machines. NaN and Inf
    count as 0. The squared distance is unbiased, with a relative standard deviation of at most √(2
    / SKETCH_WIDTH) (Charikar, Chen and Farach-Colton 2002).

    ``kind`` is "input", "output", "grad_input" or "grad_output" of a call, at ``path``; or "value"
    or "gradient" of the parameter ``path``, where ``call`` is None. ``numbers`` are little-endian
    float32 or float64 in base64. ``norm`` is the tensor's norm. ``noise`` is the tensor's relative
    change if the ``SKETCH_BITS`` last bits of each number in the run change; None: unknown.
    """

    name: str
    kind: str
    path: str
    norm: float
    numbers: str
    call: int | None = None
    noise: float | None = None
    nonfinite: int = 0


@dataclass(frozen=True, slots=True)
class AccumulatedLayer:
    """The parameters of one module, taken as one vector.

    ``error`` is the norm of the difference divided by the norm of the full batch's gradient.
    ``causes`` has the kinds of causes without which it would not differ.
    """

    name: str
    parameters: int
    error: float
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccumulationCause:
    """One reason why micro-batches do not equal the batch.

    ``kind`` is batch-statistics, random-numbers, loss or unknown; ``names`` has modules. For a
    loss, ``weights`` has the weight of each micro-batch in the full batch.
    """

    kind: str
    message: str
    advice: str
    names: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The verdict on accumulation, and the error of every layer, in the order of the model.

    ``sizes`` has the number of samples of each micro-batch. ``dtype`` is the dtype of the
    computation: float64 on a copy of the model if that runs, else the run's dtype. An error above
    ``tolerance`` is more than rounding.
    """

    equal: bool
    sizes: tuple[int, ...]
    dtype: str
    tolerance: float
    error: float
    layers: tuple[AccumulatedLayer, ...] = ()
    causes: tuple[AccumulationCause, ...] = ()
