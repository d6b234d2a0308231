"""From places in a photograph to places in the model's input, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: One row after the other of a 3 × 3 matrix.
Matrix = tuple[float, float, float, float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a photograph became the model's input. Sizes are (width, height).

    ``matrix`` takes homogeneous (x, y, 1) of the photograph to the input; coordinates count
    pixels from the upper left corner, so the centre of the first pixel is (0.5, 0.5).
    """

    photo: tuple[int, int]
    input: tuple[int, int]
    matrix: Matrix

    @classmethod
    def full(cls, photo: tuple[int, int], input: tuple[int, int]) -> Geometry:
        """The full photograph stretched to the input's size."""
        x, y = input[0] / photo[0], input[1] / photo[1]
        return cls(photo, input, (x, 0.0, 0.0, 0.0, y, 0.0, 0.0, 0.0, 1.0))

    def to_input(self, x: float, y: float) -> tuple[float, float]:
        """The place in the input of a place in the photograph."""
        return _moved(self.matrix, x, y)

    def to_photo(self, x: float, y: float) -> tuple[float, float]:
        """The place in the photograph of a place in the input."""
        import numpy as np

        back = np.linalg.inv(np.array(self.matrix).reshape(3, 3))
        return _moved(as_matrix(back), x, y)

    def seen(self) -> tuple[tuple[float, float], ...]:
        """The corners in the photograph of what the model saw, in the order round the input.

        They may lie outside the photograph, where the transform padded it.
        """
        width, height = self.input
        return tuple(
            self.to_photo(x, y) for x, y in ((0, 0), (width, 0), (width, height), (0, height))
        )

    def resized(self, photo: tuple[int, int]) -> Geometry:
        """The geometry of the same photograph at another size."""
        x, y = self.photo[0] / photo[0], self.photo[1] / photo[1]
        a, b, c, d, e, f, g, h, i = self.matrix
        return Geometry(photo, self.input, (a * x, b * y, c, d * x, e * y, f, g * x, h * y, i))

    def cropped(self, box: tuple[int, int, int, int]) -> Geometry:
        """The geometry of a part of the photograph: left, top, right, bottom."""
        left, top, right, bottom = box
        a, b, c, d, e, f, g, h, i = self.matrix
        moved = (a * left + b * top + c, d * left + e * top + f, g * left + h * top + i)
        matrix = (a, b, moved[0], d, e, moved[1], g, h, moved[2])
        return Geometry((right - left, bottom - top), self.input, matrix)

    def sees_all(self) -> bool:
        """Whether no part of the photograph (of a pixel or more) was cut off."""
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
    """A 3 × 3 array with a 1 in its last corner, as the numbers of a ``Geometry``."""
    a, b, c, d, e, f, g, h, i = (float(v) for v in (values / values[2, 2]).ravel())
    return a, b, c, d, e, f, g, h, i
