"""A row for each picture: its name, its class, and its features in full precision."""

from __future__ import annotations

import csv
from pathlib import Path

from gradscope.features.vectors import FeatureArray

suffix = ".csv"


def write(features: FeatureArray, path: Path) -> None:
    """Columns ``image``, ``class``, ``0``, ``1``, …"""
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "class", *range(features.values.shape[1])])
        rows = zip(features.names, features.labels, features.values, strict=True)
        for name, label, values in rows:
            writer.writerow([name, label or "", *(f"{x:.9g}" for x in values.tolist())])
