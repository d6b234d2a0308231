"""Identifies the user's source files in a record by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path


def digests(files: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each file that can be read."""
    found = {}
    for file in dict.fromkeys(files):
        digest = _digest(file)
        if digest is not None:
            found[file] = digest
    return found


def changed(sources: Mapping[str, str]) -> list[str]:
    """Return the files whose content has changed, or that are gone."""
    return [file for file, digest in sources.items() if _digest(file) != digest]


def _digest(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None
