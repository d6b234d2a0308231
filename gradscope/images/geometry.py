"""Maps positions in a photograph to positions in the model's input, and fits the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


#: A slant of so many input pixels from side to side is the rounding of greys.
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
