"""Input of the drawings: a photograph, the model's prediction, and a method's heat map."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradscope.images.colors import USUAL
from gradscope.images.geometry import Geometry
from gradscope.images.scales import Scale, scale_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

#: Smaller photographs are magnified until their longer side reaches about this.
_VISIBLE = 320


@dataclass(frozen=True, slots=True, eq=False)
class Photo:
    """A photograph as ``read_image`` gives it, and what the model made of it.

    ``geometry`` is from ``trace``; without one the model's input is taken as the full picture.
    ``pixel`` is the row and column of one in the model's input that is to be marked.
    """

    picture: Image
    name: str
    target: str
    score: float | None = None
    geometry: Geometry | None = None
    remarks: tuple[str, ...] = ()
    pixel: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """What a method answered: ``values`` ``[H, W]`` at the size of the model's input, unscaled.

    ``alpha`` and ``colormap`` are as in its ``Scale``.
    """

    method: str
    values: NDArray[np.float32]
    signed: bool = False
    remarks: tuple[str, ...] = ()
    alpha: float | None = None
    colormap: str = USUAL

    @property
    def scale(self) -> Scale:
        """Its colour scale."""
        found = scale_of(self.values, signed=self.signed)
        return replace(found, alpha=self.alpha, colormap=self.colormap)


def magnification(size: tuple[int, int]) -> int:
    """By how much a small photograph is drawn larger, so that one can see something; else 1."""
    longer, shorter = max(size), min(size)
    # A strip of a few lines is made thicker, within what a screen holds.
    return max(1, _VISIBLE // longer, min(-(-32 // shorter), 6 * _VISIBLE // longer))


def magnified(picture: Image, times: int) -> Image:
    """The photograph in RGB, each pixel as a square of ``times`` pixels a side."""
    from PIL import Image

    size = (picture.width * times, picture.height * times)
    return picture.convert("RGB").resize(size, Image.Resampling.NEAREST)


def cropped(photo: Photo) -> Photo:
    """The photograph without what the model did not see: the smallest box around what it saw."""
    geometry = photo.geometry
    if geometry is None or geometry.sees_all():
        return photo
    xs, ys = zip(*geometry.seen(), strict=True)
    width, height = photo.picture.size
    box = (
        min(max(0, math.floor(min(xs) + 0.5)), width - 1),
        min(max(0, math.floor(min(ys) + 0.5)), height - 1),
        max(1, min(width, math.ceil(max(xs) - 0.5))),
        max(1, min(height, math.ceil(max(ys) - 0.5))),
    )
    return replace(
        photo,
        picture=photo.picture.crop(box),
        geometry=geometry.cropped(box),
        remarks=("only what the model saw is drawn", *photo.remarks),
    )


def reduced(photo: Photo, longest: int) -> Photo:
    """The photograph with its geometry, its longer side at most ``longest``."""
    from PIL import Image

    size, factor = photo.picture.size, longest / max(photo.picture.size)
    if factor >= 1:
        return photo
    small = (max(1, round(size[0] * factor)), max(1, round(size[1] * factor)))
    picture = photo.picture.resize(small, Image.Resampling.LANCZOS)
    geometry = photo.geometry and photo.geometry.resized(small)
    return replace(photo, picture=picture, geometry=geometry)
