"""A tensor ``features`` [N, D], with the names and classes in the metadata as JSON lists."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save

from gradscope.features.vectors import FeatureArray

suffix = ".safetensors"


def write(features: FeatureArray, path: Path) -> None:
    """``features``; as metadata ``images``, ``labels``, ``layer``, ``model`` and ``pooling``."""
    metadata = {
        "images": json.dumps(features.names),
        "labels": json.dumps(features.labels),
        "layer": features.layer,
        "model": features.model,
        "pooling": features.pooling,
    }
    # Not `save_file`: what it says of a full disk is no OSError.
    path.write_bytes(save({"features": features.values}, metadata))
