"""Finds for each pixel of the model's input its position in the photograph, for any transform.

The transform runs on pictures whose brightness is the x or the y coordinate; its output gives the
positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradscope.images.geometry import Geometry, fit

if TYPE_CHECKING:
    _Values = NDArray[np.float32]

#: The first and last column, and the first and last row, between which a ramp rises.
Windows = tuple[tuple[float, float], tuple[float, float]]

#: Below this many pixels a side has too few steps of brightness to be read back.
_SMALLEST = 5
#: Fewer input pixels than this say too little about eight unknowns.
_FEWEST = 12
#: The brightest grey of a ramp, and how much of it comes from the other coordinate.
_TOP, _TILT = 254, 0.1
#: So much more than the model saw is measured, against its width or height.
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
        # The model saw a small part: the same again, with all greys for that part alone.
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
        # A step and a half of brightness: what is as dark as the ramp's end may lie beyond it.
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
