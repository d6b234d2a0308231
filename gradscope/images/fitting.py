"""The straight-line geometry that explains where input pixels came from, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradscope.images.geometry import Matrix, as_matrix

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: A slant of so many input pixels from side to side is the rounding of greys.
_STRAIGHT = 0.5


def fit(
    pixels: Sequence[NDArray[np.floating[Any]]],
    places: Sequence[NDArray[np.float64]],
    input: tuple[int, int],
    photo: tuple[int, int],
) -> Matrix | None:
    """The matrix from photograph to input: affine if that explains the places, else projective.

    ``pixels`` are x and y in the input, ``places`` x and y in the photograph; None where neither
    matrix explains them. Sizes are (width, height).
    """
    import numpy as np

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
    """Slope and height at 0 of the straight line through the points."""
    import numpy as np

    slope = float(np.mean((x - x.mean()) * (y - y.mean())) / max(float(x.var()), 1e-12))
    return slope, float(y.mean() - slope * x.mean())


def _to_pixels(size: tuple[int, int]) -> NDArray[np.float64]:
    """From -1 … 1 to pixels."""
    import numpy as np

    x, y = size[0] / 2, size[1] / 2
    return np.array([[x, 0.0, x], [0.0, y, y], [0.0, 0.0, 1.0]])


def _explains(
    back: NDArray[np.float64],
    plane: NDArray[np.float64],
    u: NDArray[np.float64],
    v: NDArray[np.float64],
) -> bool:
    """Whether the matrix puts the places to within a step and a half of brightness."""
    import numpy as np

    x, y, depth = back @ plane.T
    if not depth.min() > 0:
        return False
    errors = (float(np.sqrt(np.mean((a / depth - b) ** 2))) for a, b in ((x, u), (y, v)))
    return max(errors) < 3 / 255
