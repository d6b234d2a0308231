"""From the values of a map to places on a colour scale, and in words what the scale does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradscope.images.colors import USUAL
from gradscope.typeset.numbers import number, plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The scale ends where so many per cent of the values lie below: one hot pixel does not blank
#: the rest of the map.
PERCENTILE = 99.5
#: A spread below this share of the largest value is the rounding of a constant.
_FLAT = 1e-6


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear colour scale. ``signed``: diverging colours, ``low`` is −``high``, 0 the middle.

    ``blank`` says why there is nothing to see, and is empty where there is something. ``alpha`` is
    how much the strongest colour hides of the photograph, None the usual; ``colormap`` the colours
    of unsigned values.
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
        """Places on the scale: 0 its low end, 1 its high end; NaN stays NaN."""
        import numpy as np

        # Halved: from -3e38 to 3e38 is more than float32 can hold.
        low, high = np.float64(self.low) / 2, np.float64(self.high) / 2
        places: NDArray[np.float32] = ((values / np.float64(2) - low) / (high - low)).astype(
            np.float32
        )
        return places

    @property
    def labels(self) -> tuple[str, str]:
        """The numbers at the two ends, with a sign where values lie beyond."""
        low, high = number(self.low), number(self.high)
        return ("<" if self.below else "") + low, (">" if self.above else "") + high


def scale_of(heat: NDArray[np.float32], *, signed: bool) -> Scale:
    """The colour scale of a map ``[H, W]``, from its finite values.

    Unsigned: 0 to the 99.5th percentile. Signed: the same both ways from 0, by absolute value.
    Where all values are on one side and far from 0 against their spread (RISE: every mask leaves
    most of the score), the scale takes in the values alone, with unsigned colours, and says so.
    """
    import numpy as np

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
    """The scale, which says so where values lie beyond its ends."""
    if not (scale.below or scale.above):
        return scale
    ends = f"{number(float(values.min()))} to {number(float(values.max()))}"
    remark = f"colours end at the {PERCENTILE:g}th percentile; the values go from {ends}"
    return replace(scale, remarks=(*scale.remarks, remark))
