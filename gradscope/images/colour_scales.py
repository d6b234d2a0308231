"""Maps values to colours, and describes the scale.

There are two colour maps with perceptually equal steps: one for unsigned values, one for signed
values with 0 in the middle. The anchors are published maps. Colours between them are interpolated
linearly in OKLab, with equal distances for equal steps in value. Lightness alone gives the order,
so both maps work for every kind of colour blindness and in grey print.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gradscope.charts.scales import COLORMAPS
from gradscope.images.files import USUAL
from gradscope.typeset.numbers import number, plural

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
    """Return the colours ``[255, 3]`` of a map, from its low end to its high end.

    ``colormap`` is for unsigned values; signed values have a separate map.
    """
    if not signed:
        return _spaced(COLORMAPS[colormap].split(), STEPS)
    # Each side is spaced separately, so that zero stays in the middle even if one side is longer.
    anchors = _BLUE_RED.split()
    middle, half = len(anchors) // 2, STEPS // 2 + 1
    below, above = _spaced(anchors[: middle + 1], half), _spaced(anchors[middle:], half)
    return np.concatenate([below, above[1:]])


def colored(shares: NDArray[np.float32], signed: bool) -> NDArray[np.uint8]:
    """Return RGB ``[..., 3]`` for positions on the scale: 0 is its low end, 1 its high end.

    Values beyond an end have the colour of that end; NaN has the colour of the low end.
    """
    places = np.nan_to_num(shares, nan=0.0, posinf=1.0, neginf=0.0)
    index = np.rint(places.clip(0, 1) * (STEPS - 1)).astype(np.intp)
    result: NDArray[np.uint8] = table(signed)[index]
    return result


def oklab(rgb: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Convert sRGB ``[..., 3]`` to OKLab, in which distances are perceived differences."""
    share = np.asarray(rgb, dtype=np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    lab: NDArray[np.float64] = np.cbrt(linear @ np.array(_TO_CONES).T) @ np.array(_TO_LAB).T
    return lab


def _srgb(lab: NDArray[np.float64]) -> NDArray[np.uint8]:
    cones = (lab @ np.linalg.inv(np.array(_TO_LAB)).T) ** 3
    linear = (cones @ np.linalg.inv(np.array(_TO_CONES)).T).clip(0, 1)
    share = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    rgb: NDArray[np.uint8] = np.rint(share * 255).astype(np.uint8)
    return rgb


def _spaced(anchors: list[str], count: int) -> NDArray[np.uint8]:
    """Return ``count`` colours along the anchors, with equal distances in OKLab."""
    points = oklab(np.array([list(bytes.fromhex(anchor)) for anchor in anchors], dtype=np.uint8))
    lengths = np.linalg.norm(np.diff(points, axis=0), axis=1)
    way = np.concatenate([[0.0], lengths.cumsum()])
    stops = np.linspace(0.0, way[-1], count)
    return _srgb(np.stack([np.interp(stops, way, points[:, i]) for i in range(3)], axis=1))


#: The scale ends where this many per cent of the values lie below: one hot pixel does not blank
#: the rest of the map.
PERCENTILE = 99.5
#: A spread below this share of the largest value is the rounding of a constant.
_FLAT = 1e-6


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear colour scale. ``signed``: diverging colours, ``low`` is −``high``, 0 the middle.

    ``blank`` is the reason why there is nothing to see, or empty. ``alpha`` is the opacity of the
    strongest colour over the photograph (None: the default); ``colormap`` has the colours of
    unsigned values.
    """

    low: float
    high: float
    signed: bool
    below: bool = False
    above: bool = False
    blank: str = ""
    remarks: tuple[str, ...] = ()
    alpha: float | None = None
    colormap: str = USUAL

    def shares(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return positions on the scale: 0 its low end, 1 its high end; NaN stays NaN."""
        # Halved: from -3e38 to 3e38 is more than float32 can hold.
        low, high = np.float64(self.low) / 2, np.float64(self.high) / 2
        places: NDArray[np.float32] = ((values / np.float64(2) - low) / (high - low)).astype(
            np.float32
        )
        return places

    @property
    def labels(self) -> tuple[str, str]:
        """Return the numbers at the two ends, with < or > if values are beyond."""
        low, high = number(self.low), number(self.high)
        return ("<" if self.below else "") + low, (">" if self.above else "") + high


def scale_of(heat: NDArray[np.float32], *, signed: bool) -> Scale:
    """Make the colour scale of a map ``[H, W]``, from its finite values.

    Unsigned: 0 to the 99.5th percentile. Signed: symmetric around 0, by absolute value. If all
    values are on one side of 0, and far from it compared with their spread (as in RISE, where every
    mask leaves most of the score), the scale covers only the values, with unsigned colours and a
    remark.
    """
    values = np.asarray(heat, dtype=np.float64).ravel()
    finite = values[np.isfinite(values)]
    remarks: tuple[str, ...] = ()
    if finite.size < values.size:
        lost = values.size - finite.size
        remarks = (f"{lost:,} of {plural(values.size, 'value')} NaN or Inf: hatched",)
    if blank := _blank(finite, values.size):
        return Scale(0.0, 0.0, signed, blank=blank, remarks=remarks)
    low, high = float(finite.min()), float(finite.max())
    start, end = (float(np.percentile(finite, share)) for share in (100 - PERCENTILE, PERCENTILE))
    far = max(-end, start)
    if far > end - start and (signed or low > 0) and end > start:
        remarks += ("every value is on one side of 0: the scale does not begin at 0",)
        return _with_ends(Scale(start, end, False, low < start, high > end, "", remarks), finite)
    if signed:
        top = float(np.percentile(np.abs(finite), PERCENTILE)) or max(-low, high)
        return _with_ends(Scale(-top, top, True, low < -top, high > top, "", remarks), finite)
    start, end = min(start, 0.0), end if end > 0 else high
    if end <= start:
        start, end = low, high
    return _with_ends(Scale(start, end, False, low < start, high > end, "", remarks), finite)


def _blank(finite: NDArray[np.float64], count: int) -> str:
    if not count:
        return "empty map: it has no values"
    if not finite.size:
        return "blank map: no value is finite"
    low, high = float(finite.min()), float(finite.max())
    if low == high == 0:
        return "blank map: every value is 0"
    # Halved: the difference of the two largest numbers is no number.
    if high / 2 - low / 2 <= _FLAT * max(abs(low), abs(high)) / 2:
        return f"constant map: every value is {number(low)}"
    return ""


def _with_ends(scale: Scale, values: NDArray[np.float64]) -> Scale:
    """Describe the scale, and values beyond its ends."""
    if not (scale.below or scale.above):
        return scale
    ends = f"{number(float(values.min()))} to {number(float(values.max()))}"
    remark = f"colours end at the {PERCENTILE:g}th percentile; the values go from {ends}"
    return replace(scale, remarks=(*scale.remarks, remark))
