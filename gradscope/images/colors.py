"""Two colour maps with equal visual steps: one for unsigned values, one for signed with 0 amid.

The anchors are published maps; between them colours run straight in OKLab, and they are spaced
anew so that equal steps in value are equal distances in OKLab. Lightness alone tells the order,
so both maps hold for every kind of colour blindness and in grey print.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Maps of unsigned values in ninths, by N. Smith and S. van der Walt,
#: https://bids.github.io/colormap/ (CC0).
COLORMAPS = {
    "inferno": "000004 1b0c41 4a0c6b 781c6d a52c60 cf4446 ed6925 fb9b06 f7d13d fcffa4",
    "magma": "000004 180f3d 440f76 721f81 9e2f7f cd4071 f1605d fd9668 feca8d fcfdbf",
    "viridis": "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725",
}
USUAL = "inferno"
#: RdBu from its blue end, by C. Brewer, https://colorbrewer2.org (colour-blind safe).
_BLUE_RED = "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f"
#: Odd, so that the middle of the signed map is one colour: that of zero.
STEPS = 255

#: B. Ottosson 2020, https://bottosson.github.io/posts/oklab/: linear sRGB → cone → OKLab.
_TO_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_TO_LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


@lru_cache(maxsize=8)
def table(signed: bool, colormap: str = USUAL) -> NDArray[np.uint8]:
    """The colours ``[255, 3]`` of a map, from its low end to its high end.

    ``colormap`` is that of unsigned values; signed ones have one of their own.
    """
    if not signed:
        return _spaced(COLORMAPS[colormap].split(), STEPS)
    import numpy as np

    # Each side alone: zero stays in the middle even where one side is a longer way.
    anchors = _BLUE_RED.split()
    middle, half = len(anchors) // 2, STEPS // 2 + 1
    below, above = _spaced(anchors[: middle + 1], half), _spaced(anchors[middle:], half)
    return np.concatenate([below, above[1:]])


def colored(shares: NDArray[np.float32], signed: bool) -> NDArray[np.uint8]:
    """RGB ``[..., 3]`` for places on the scale: 0 is its low end, 1 its high end.

    What lies beyond an end has the end's colour; NaN has that of the low end.
    """
    import numpy as np

    places = np.nan_to_num(shares, nan=0.0, posinf=1.0, neginf=0.0)
    index = np.rint(places.clip(0, 1) * (STEPS - 1)).astype(np.intp)
    result: NDArray[np.uint8] = table(signed)[index]
    return result


def oklab(rgb: NDArray[np.uint8]) -> NDArray[np.float64]:
    """sRGB ``[..., 3]`` in OKLab, where distance is how different two colours look."""
    import numpy as np

    share = np.asarray(rgb, dtype=np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    lab: NDArray[np.float64] = np.cbrt(linear @ np.array(_TO_CONES).T) @ np.array(_TO_LAB).T
    return lab


def _srgb(lab: NDArray[np.float64]) -> NDArray[np.uint8]:
    import numpy as np

    cones = (lab @ np.linalg.inv(np.array(_TO_LAB)).T) ** 3
    linear = (cones @ np.linalg.inv(np.array(_TO_CONES)).T).clip(0, 1)
    share = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    rgb: NDArray[np.uint8] = np.rint(share * 255).astype(np.uint8)
    return rgb


def _spaced(anchors: list[str], count: int) -> NDArray[np.uint8]:
    """``count`` colours on the way through the anchors, equally different in OKLab."""
    import numpy as np

    points = oklab(np.array([list(bytes.fromhex(anchor)) for anchor in anchors], dtype=np.uint8))
    lengths = np.linalg.norm(np.diff(points, axis=0), axis=1)
    way = np.concatenate([[0.0], lengths.cumsum()])
    stops = np.linspace(0.0, way[-1], count)
    return _srgb(np.stack([np.interp(stops, way, points[:, i]) for i in range(3)], axis=1))
