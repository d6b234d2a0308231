"""A filter's weights as a picture: three channels as colours, others as maps side by side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gradscope.images.colors import colored
from gradscope.images.lettering import PAPER

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from gradscope.images.scales import Scale


def colored_kernel(weights: NDArray[np.float32], top: float) -> Image:
    """A filter [3, h, w] as a colour picture: grey is 0, black −``top`` and white ``top``."""
    import numpy as np
    from PIL import Image

    shares = np.nan_to_num(0.5 + weights / (2 * top or 1.0), nan=0.5).clip(0, 1)
    return Image.fromarray(np.rint(shares * 255).astype(np.uint8).transpose(1, 2, 0).copy())


def mapped_kernel(weights: NDArray[np.float32], scale: Scale) -> Image:
    """A filter [channels, h, w] as maps in the scale's colours, row by row in a square."""
    import numpy as np
    from PIL import Image

    channels, height, width = weights.shape
    across = math.ceil(math.sqrt(channels * height / width))
    down = math.ceil(channels / across)
    colors = colored(scale.shares(weights), scale.signed)
    size = (down * (height + 1) - 1, across * (width + 1) - 1, 3)
    canvas = np.full(size, PAPER, dtype=np.uint8)
    for i in range(channels):
        y, x = i // across * (height + 1), i % across * (width + 1)
        canvas[y : y + height, x : x + width] = colors[i]
    return Image.fromarray(canvas)
