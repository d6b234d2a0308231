"""Maps positions in a photograph to positions in the model's input, and fits the matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    _Values = NDArray[np.float32]

#: One row after the other of a 3 × 3 matrix.
Matrix = tuple[float, float, float, float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The mapping of a photograph to the model's input.

    Sizes are (width, height). ``matrix`` maps homogeneous (x, y, 1) of the photograph to the input;
    coordinates count pixels from the upper left corner, so the centre of the first pixel is (0.5,
    0.5).
    """

    photo: tuple[int, int]
    input: tuple[int, int]
    matrix: Matrix

    @classmethod
    def full(cls, photo: tuple[int, int], input: tuple[int, int]) -> Geometry:
        """Return the geometry of a full photograph, stretched to the input's size."""
        x, y = input[0] / photo[0], input[1] / photo[1]
        return cls(photo, input, (x, 0.0, 0.0, 0.0, y, 0.0, 0.0, 0.0, 1.0))

    def to_input(self, x: float, y: float) -> tuple[float, float]:
        """Map a position in the photograph to the input."""
        return _moved(self.matrix, x, y)

    def to_photo(self, x: float, y: float) -> tuple[float, float]:
        """Map a position in the input to the photograph."""
        back = np.linalg.inv(np.array(self.matrix).reshape(3, 3))
        return _moved(as_matrix(back), x, y)

    def seen(self) -> tuple[tuple[float, float], ...]:
        """Return the corners of the model's view in the photograph, in order around the input. They
        may be outside of the photograph, if the transform padded it.
        """
        width, height = self.input
        return tuple(
            self.to_photo(x, y) for x, y in ((0, 0), (width, 0), (width, height), (0, height))
        )

    def resized(self, photo: tuple[int, int]) -> Geometry:
        """Return the geometry of the same photograph at another size."""
        x, y = self.photo[0] / photo[0], self.photo[1] / photo[1]
        a, b, c, d, e, f, g, h, i = self.matrix
        return Geometry(photo, self.input, (a * x, b * y, c, d * x, e * y, f, g * x, h * y, i))

    def cropped(self, box: tuple[int, int, int, int]) -> Geometry:
        """Return the geometry of a part of the photograph: left, top, right, bottom."""
        left, top, right, bottom = box
        a, b, c, d, e, f, g, h, i = self.matrix
        moved = (a * left + b * top + c, d * left + e * top + f, g * left + h * top + i)
        matrix = (a, b, moved[0], d, e, moved[1], g, h, moved[2])
        return Geometry((right - left, bottom - top), self.input, matrix)

    def sees_all(self) -> bool:
        """True if no part of the photograph (of a pixel or more) was cut off."""
        width, height = self.photo
        edge_x, edge_y = (side / 100 + 0.5 for side in self.input)
        places = [self.to_input(x, y) for x in (0, width) for y in (0, height)]
        return all(
            -edge_x <= x <= self.input[0] + edge_x and -edge_y <= y <= self.input[1] + edge_y
            for x, y in places
        )


def _moved(matrix: Matrix, x: float, y: float) -> tuple[float, float]:
    a, b, c, d, e, f, g, h, i = matrix
    depth = g * x + h * y + i
    return (a * x + b * y + c) / depth, (d * x + e * y + f) / depth


def as_matrix(values: NDArray[np.float64]) -> Matrix:
    """Return the numbers of a ``Geometry``, from a 3 × 3 array whose last entry is 1."""
    a, b, c, d, e, f, g, h, i = (float(v) for v in (values / values[2, 2]).ravel())
    return a, b, c, d, e, f, g, h, i


#: A slant of this many input pixels from side to side is the rounding of greys.
_STRAIGHT = 0.5


def fit(
    pixels: Sequence[NDArray[np.floating[Any]]],
    places: Sequence[NDArray[np.float64]],
    input: tuple[int, int],
    photo: tuple[int, int],
) -> Matrix | None:
    """Fit the matrix from photograph to input: affine if that explains the positions, else
    projective.

    ``pixels`` are x and y in the input, ``places`` x and y in the photograph; None if neither fits.
    Sizes are (width, height).
    """
    width, height = input
    # From -1 to 1 on all sides, so that the equations are well scaled.
    i, j = (2 * p / side - 1 for p, side in zip(pixels, input, strict=True))
    u, v = (2 * p / side - 1 for p, side in zip(places, photo, strict=True))
    one, zero = np.ones_like(i), np.zeros_like(i)
    plane = np.stack([i, j, one], axis=1)
    lines = [np.linalg.lstsq(plane, target, rcond=None)[0] for target in (u, v)]
    back = np.array([*lines, [0.0, 0.0, 1.0]])
    if abs(back[0, 1] * width) < _STRAIGHT * abs(back[0, 0]) and (
        abs(back[1, 0] * height) < _STRAIGHT * abs(back[1, 1])
    ):
        (a, c), (e, f) = (_line(i, u), _line(j, v))
        back = np.array([[a, 0.0, c], [0.0, e, f], [0.0, 0.0, 1.0]])
    if not _explains(back, plane, u, v):
        left = [[i, j, one, zero, zero, zero, -i * u, -j * u]]
        left += [[zero, zero, zero, i, j, one, -i * v, -j * v]]
        system = np.concatenate([np.stack(row, axis=1) for row in left])
        values = np.linalg.lstsq(system, np.concatenate([u, v]), rcond=None)[0]
        back = np.append(values, 1.0).reshape(3, 3)
        if not _explains(back, plane, u, v):
            return None
    if not abs(np.linalg.det(back)) > 1e-12:
        return None
    forth = _to_pixels(input) @ np.linalg.inv(back) @ np.linalg.inv(_to_pixels(photo))
    return as_matrix(forth) if forth[2, 2] else None


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return the slope, and the value at 0, of the straight line through the points."""
    slope = float(np.mean((x - x.mean()) * (y - y.mean())) / max(float(x.var()), 1e-12))
    return slope, float(y.mean() - slope * x.mean())


def _to_pixels(size: tuple[int, int]) -> NDArray[np.float64]:
    """Return the matrix from -1 … 1 to pixels."""
    x, y = size[0] / 2, size[1] / 2
    return np.array([[x, 0.0, x], [0.0, y, y], [0.0, 0.0, 1.0]])


def _explains(
    back: NDArray[np.float64],
    plane: NDArray[np.float64],
    u: NDArray[np.float64],
    v: NDArray[np.float64],
) -> bool:
    """Return True if the matrix maps the places to within 1.5 steps of brightness."""
    x, y, depth = back @ plane.T
    if not depth.min() > 0:
        return False
    errors = (float(np.sqrt(np.mean((a / depth - b) ** 2))) for a, b in ((x, u), (y, v)))
    return max(errors) < 3 / 255


#: The first and last column, and the first and last row, between which a ramp rises.
Windows = tuple[tuple[float, float], tuple[float, float]]

#: Below this many pixels a side has too few steps of brightness to be read back.
_SMALLEST = 5
#: Fewer input pixels than this say too little about eight unknowns.
_FEWEST = 12
#: The brightest grey of a ramp, and how much of it comes from the other coordinate.
_TOP, _TILT = 254, 0.1
#: The measured margin around the model's input, as a share of its width or height.
_MARGIN = 0.1
#: Number of pixels a side that suffices.
_ENOUGH = 128


def trace(
    transform: Callable[[Image.Image], Any], size: tuple[int, int], mode: str = "RGB"
) -> Geometry | None:
    """Trace how ``transform`` maps a photograph of that size (width, height) and mode.

    The transform takes a PIL picture (``L`` or ``RGB``) and returns ``[C, H, W]``, ``[1, C, H, W]``
    or ``[H, W]``. It may resize, crop, pad, flip, rotate or shift perspective, and scale values. It
    runs five times; seven times if it crops a small part. Return None if the positions cannot be
    found: for a random or nonlinear transform, for one that standardises each picture separately,
    or for a photograph of under five pixels a side.
    """
    if min(size) < _SMALLEST:
        return None
    black, white = (_run(transform, _flat(size, mode, value)) for value in (0, 255))
    ramps = _Ramps(size, mode, ((0.0, size[0] - 1.0), (0.0, size[1] - 1.0)))
    found = _located(transform, ramps, black, white)
    if found is None or not found.across.equals(_run(transform, ramps.draw(0))):
        return None
    narrow = found.windows()
    if any(b - a < side / 2 for (a, b), side in zip(narrow, size, strict=True)):
        # The model saw a small part: this measures again, with all greys in that part.
        finer = _located(transform, _Ramps(size, mode, narrow), black, white)
        found = finer or found
    (height, width), every = black.size, _every(black.size)
    rows, columns = found.known.nonzero()
    pixels = [every * columns + 0.5, every * rows + 0.5]
    matrix = fit(pixels, [p[found.known] for p in found.places], (width, height), size)
    return None if matrix is None else Geometry(size, (width, height), matrix)


@dataclass(frozen=True, slots=True, eq=False)
class _Output:
    """The size (height, width) of a transform's output, and enough of its pixels."""

    size: tuple[int, int]
    values: _Values

    def equals(self, other: _Output) -> bool:
        """Return True if both have the same size and content."""
        return self.size == other.size and np.array_equal(self.values, other.values)


@dataclass(frozen=True, slots=True, eq=False)
class _Located:
    """Positions x and y for the ``known`` pixels of the input."""

    across: _Output
    places: list[NDArray[np.float64]]
    known: NDArray[np.bool_]

    def windows(self) -> Windows:
        """Return the part of the photograph with all positions, and a margin."""
        first, second = (
            (float(p[self.known].min()), float(p[self.known].max())) for p in self.places
        )
        (a, b), (c, d) = (
            (low - _MARGIN * (high - low) - 1, high + _MARGIN * (high - low))
            for low, high in (first, second)
        )
        return (a, b), (c, d)


@dataclass(frozen=True, slots=True)
class _Ramps:
    """Pictures whose brightness encodes the place within a window of columns and one of rows."""

    size: tuple[int, int]
    mode: str
    windows: Windows

    def draw(self, axis: int) -> Image.Image:
        """Draw brightness that rises along x (axis 0) or y (axis 1), and slightly along the other.

        256 greys are few for 4000 columns. The tilt and the dither make neighbouring lines round at
        different positions; resizing and the fit take the mean.
        """
        along, across = (
            ((np.arange(self.size[i]) - low) / (high - low)).clip(0, 1) * _TOP * 256
            for i, (low, high) in ((i, self.windows[i]) for i in (axis, 1 - axis))
        )
        # Multiples of the golden ratio are spread evenly, however many lines are taken together.
        dither = np.arange(len(across)) * 0.6180339887498949 % 1 * 255
        along, across = along * (1 - _TILT), across * _TILT + dither
        columns, rows = (along, across) if axis == 0 else (across, along)
        greys = rows.astype(np.uint16)[:, None] + columns.astype(np.uint16)
        return Image.fromarray((greys >> 8).astype(np.uint8)).convert(self.mode)


def _located(
    transform: Callable[[Image.Image], Any], ramps: _Ramps, black: _Output, white: _Output
) -> _Located | None:
    across, down = (_run(transform, ramps.draw(axis)) for axis in (0, 1))
    if not (black.size == white.size == across.size == down.size):
        return None
    if not (black.values.shape == across.values.shape == down.values.shape):
        return None
    one, other = (_read(run.values, black.values, white.values) for run in (across, down))
    shares = (
        ((1 - _TILT) * a - _TILT * b) / (1 - 2 * _TILT) for a, b in ((one, other), (other, one))
    )
    # A ramp's ends are the centres of pixels.
    places = [
        low + share * (high - low) + 0.5
        for share, (low, high) in zip(shares, ramps.windows, strict=True)
    ]
    known = _known(black.values, white.values, places, ramps)
    return _Located(across, places, known) if known.sum() >= _FEWEST else None


def _flat(size: tuple[int, int], mode: str, value: int) -> Image.Image:
    return Image.new("L", size, value).convert(mode)


def _run(transform: Callable[[Image.Image], Any], picture: Image.Image) -> _Output:
    # A copy: a transform may work in place.
    values = np.asarray(transform(picture.copy()))
    values = values[0] if values.ndim == 4 else values
    values = values[None] if values.ndim == 2 else values
    height, width = values.shape[-2:]
    every = _every((height, width))
    return _Output((height, width), np.array(values[:, ::every, ::every], dtype=np.float32))


def _every(sides: Sequence[int]) -> int:
    """Return the stride over the input's pixels: a large input has more than the fit needs."""
    return max(1, min(sides) // _ENOUGH)


def _read(values: _Values, black: _Values, white: _Values) -> NDArray[np.float64]:
    """Return brightness, 0 to 1, by the transform's output for 0 and 255."""
    span = np.asarray(white - black, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(span != 0, (values - black) / span, np.nan)
    bright: NDArray[np.float64] = shares.mean(axis=0) * 255 / _TOP
    return bright


def _known(
    black: _Values,
    white: _Values,
    places: list[NDArray[np.float64]],
    ramps: _Ramps,
) -> NDArray[np.bool_]:
    """Return the input pixels that show the photograph, without padding and without its rim: at the
    rim, filters lack neighbours, which bends the ramp.
    """
    span = np.abs(white - black).min(axis=0)
    inside: NDArray[np.bool_] = span > 0.99 * span.max(initial=0.0)
    for place, side, (low, high) in zip(places, ramps.size, ramps.windows, strict=True):
        # Pixels within 1.5 steps of brightness of the ramp's end are left out: they may lie beyond
        # it.
        rim = max(min(1.0, side / 8), 1.5 * (high - low) / _TOP)
        inside &= np.isfinite(place) & (place > low + rim) & (place < high + 1 - rim)
    if min(inside.shape) > 8:
        inner = np.zeros_like(inside)
        inner[1:-1, 1:-1] = inside[1:-1, 1:-1]
        for axis in (0, 1):
            for step in (-1, 1):
                inner &= np.roll(inside, step, axis)
        inside = inner
    return inside
