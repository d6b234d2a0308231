"""NumPy's: arrays by name, which `numpy.load` reads without pickle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradscope.features.vectors import FeatureArray

suffix = ".npz"


def write(features: FeatureArray, path: Path) -> None:
    """``features`` [N, D], ``images`` and ``labels`` [N]; ``layer``, ``model`` and ``pooling``."""
    with path.open("wb") as file:
        np.savez(
            file,
            features=features.values,
            images=np.array(features.names, dtype=np.str_),
            labels=np.array([label or "" for label in features.labels], dtype=np.str_),
            layer=features.layer,
            model=features.model,
            pooling=features.pooling,
        )
