"""The bundled networks, their trained weights and a few real handwritten digits.

This file has paths and labels only, and needs no torch. networks.py has the networks; train.py made
the weights and digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_HERE = Path(__file__).parent

#: One real digit of each class that no network saw in training, with its label. The image is
#: 28×28, white on black. The networks were trained on ``pixel / 255``. The first one is the
#: demo's input: ``demo`` knows it well, and for ``demo:lecture`` all ten logits are clipped.
DIGITS: tuple[tuple[Path, int], ...] = tuple(
    (_HERE / "digits" / f"digit-{label}.png", label) for label in (8, 0, 1, 2, 3, 4, 5, 6, 7, 9)
)

#: The trained weights of each spec: ``demo`` is SimpleNet, ``demo:lecture`` is LectureNet,
#: ``demo:scouter`` is ScouterNet and ``demo:scouter-negative`` is NegativeScouterNet.
WEIGHTS: dict[str, Path] = {
    "demo": _HERE / "simple.safetensors",
    "demo:lecture": _HERE / "lecture.safetensors",
    "demo:scouter": _HERE / "scouter.safetensors",
    "demo:scouter-negative": _HERE / "scouter-negative.safetensors",
}


def all_digits() -> tuple[list[Image], list[int]]:
    """Return scikit-learn's 1,797 digits, 8×8 in 0…16, scaled to 28×28 greys, and their labels.

    The pixels are rounded to 8 bits, so that a digit saved as PNG stays exactly the same image.
    Every fifth digit, from the first on, is held out of training.
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    scaled = [Image.fromarray(s).resize((28, 28), Image.Resampling.BILINEAR) for s in small]
    return scaled, [int(label) for label in digits.target]
