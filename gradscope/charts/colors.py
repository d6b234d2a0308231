"""Viridis: lightness alone tells the order, for every kind of colour vision and in grey print."""

from __future__ import annotations

#: In equal steps, https://bids.github.io/colormap/ (CC0), from small to large.
_STEPS = (
    (0x44, 0x01, 0x54),
    (0x47, 0x2D, 0x7B),
    (0x3B, 0x52, 0x8B),
    (0x2C, 0x72, 0x8E),
    (0x21, 0x91, 0x8C),
    (0x28, 0xAE, 0x80),
    (0x5E, 0xC9, 0x62),
    (0xAD, 0xDC, 0x30),
    (0xFD, 0xE7, 0x25),
)


def viridis(share: float) -> tuple[float, float, float]:
    """Red, green and blue, 0 to 255, at ``share`` of the way from the least to the largest."""
    place = min(max(share, 0.0), 1.0) * (len(_STEPS) - 1)
    low = min(int(place), len(_STEPS) - 2)
    rest = place - low
    red, green, blue = (
        a + (b - a) * rest for a, b in zip(_STEPS[low], _STEPS[low + 1], strict=True)
    )
    return red, green, blue
