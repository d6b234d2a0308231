"""What is drawn: a photograph with what the model made of it, and a method's heat map."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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

    ``geometry`` is from ``trace``; without one the model's input is taken as the whole picture.
    """

    picture: Image
    name: str
    target: str
    score: float | None = None
    geometry: Geometry | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """What a method answered: ``values`` ``[H, W]`` at the size of the model's input, unscaled."""

    method: str
    values: NDArray[np.float32]
    signed: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def scale(self) -> Scale:
        """Its colour scale."""
        return scale_of(self.values, signed=self.signed)


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
