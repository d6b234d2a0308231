"""Every handwritten digit that scikit-learn brings, as pictures that the bundled networks read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


def all_digits() -> tuple[list[Image], list[int]]:
    """scikit-learn's 1,797 digits, 8×8 in 0…16, scaled to 28×28 greys, and their labels.

    The scaled pixels are rounded to 8 bits, so that a digit written as PNG is the very image that
    the networks know. Every fifth one, from the first on, is held out of training.
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    scaled = [Image.fromarray(s).resize((28, 28), Image.Resampling.BILINEAR) for s in small]
    return scaled, [int(label) for label in digits.target]
