"""Draws the samples in a file of tensors, if these look like images. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

#: The longest side of a picture, in pixels, and the shortest sides of what looks like an image.
_SIDE, _LEAST = 96, 4


def sample_pictures(path: Path, call: int, indices: Sequence[int], count: int) -> list[bytes]:
    """Return a PNG of the input of each sample; [] if no input of the call looks like images.

    Images are ``[N, 1 or 3, H, W]``. Each is drawn from black (its smallest value) to white (its
    largest); NaN and Inf are black.

    Args:
        path: a capsule.
        call: the number of the model's call.
        indices: the samples' positions in the batch.
        count: N.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            for name in sorted(file.keys()):
                if name.startswith((f"call{call}.args.", f"call{call}.kwargs.")):
                    rows = file.get_slice(name)
                    if _is_images(rows.get_shape(), count) and rows.get_dtype() in _DTYPES:
                        return [_png(rows[n : n + 1][0]) for n in indices]
    except (OSError, SafetensorError):
        pass  # the capsule went away: the page has its numbers
    return []


#: The dtypes of safetensors that NumPy has, too.
_DTYPES = frozenset({"F64", "F32", "F16", "U8"})


def _is_images(shape: Sequence[int], count: int) -> bool:
    return len(shape) == 4 and shape[0] == count and shape[1] in (1, 3) and min(shape[2:]) >= _LEAST


def _png(values: NDArray[Any]) -> bytes:
    """Return the PNG of one image, ``[1 or 3, H, W]``."""
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    low, high = (wide[finite].min(), wide[finite].max()) if finite.any() else (0.0, 0.0)
    scaled = np.where(finite, (wide - low) / ((high - low) or 1.0), 0.0)
    pixels = (scaled * 255).round().astype(np.uint8).transpose(1, 2, 0)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    times = max(1, _SIDE // max(image.size))
    if times > 1:  # a pixel stays a square
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    image.thumbnail((_SIDE, _SIDE))
    stream = BytesIO()
    image.save(stream, "PNG", optimize=True)
    return stream.getvalue()
