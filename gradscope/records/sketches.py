"""A tensor in a few numbers, by which two separate runs can be compared."""

from __future__ import annotations

from dataclasses import dataclass

#: How many numbers a sketch has.
SKETCH_WIDTH = 128
#: By how many last bits each number of a run is moved for the noise. More than one: a ReLU or a max
#: pool that is on the brink falls to one side or the other with another order of sums, too.
SKETCH_BITS = 8


@dataclass(frozen=True, slots=True)
class Sketch:
    """A random projection: the distance of two sketches is about that of the tensors.

    Each element is added, or subtracted, to one of ``SKETCH_WIDTH`` numbers; which one, and with
    which sign, a hash of its place in the tensor says, so that it is the same everywhere. NaN and
    Inf count as 0. The square of the distance has the right mean and a standard deviation of at
    most √(2 / SKETCH_WIDTH) of itself (Charikar, Chen and Farach-Colton 2002).

    ``kind`` is "input", "output", "grad_input" or "grad_output" of a call, at ``path``; or "value"
    or "gradient" of the parameter ``path``, where ``call`` is None. ``numbers`` are little-endian
    float32 or float64 in base64. ``norm`` is the tensor's, and ``noise`` the share of it by which
    the tensor moves where each number of the run is moved by ``SKETCH_BITS`` last bits; None:
    unknown.
    """

    name: str
    kind: str
    path: str
    norm: float
    numbers: str
    call: int | None = None
    noise: float | None = None
    nonfinite: int = 0
