"""Formats of saved features: an entry for each, whose ``render(features, path)`` writes a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from gradscope.features.vectors import FeatureArray
from gradscope.plugins import Format


def _csv(features: FeatureArray, path: Path) -> None:
    """Write a row for each picture in full precision: columns ``image``, ``class``, ``0``,
    ``1``, …
    """
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "class", *range(features.values.shape[1])])
        rows = zip(features.names, features.labels, features.values, strict=True)
        for name, label, values in rows:
            writer.writerow([name, label or "", *(f"{x:.9g}" for x in values.tolist())])


def _npz(features: FeatureArray, path: Path) -> None:
    """Write NumPy's arrays by name, which `numpy.load` reads without pickle.

    ``features`` [N, D], ``images`` and ``labels`` [N]; ``layer``, ``model`` and ``pooling``.
    """
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


def _safetensors(features: FeatureArray, path: Path) -> None:
    """Write a tensor ``features`` [N, D]; names and classes are JSON lists in the metadata."""
    metadata = {
        "images": json.dumps(features.names),
        "labels": json.dumps(features.labels),
        "layer": features.layer,
        "model": features.model,
        "pooling": features.pooling,
    }
    # Not `save_file`: its error on a full disk is no OSError.
    path.write_bytes(save({"features": features.values}, metadata))


FORMATS = {
    "csv": Format(".csv", _csv),
    "npz": Format(".npz", _npz),
    "safetensors": Format(".safetensors", _safetensors),
}
