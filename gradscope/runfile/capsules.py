"""Capsules: the unusual steps of a run, each in a safetensors file beside the run.

The record is the file's metadata, so it can be read without torch and without the tensors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gradscope.errors import ConfigError
from gradscope.records.data import from_data, to_line
from gradscope.records.spike import Capsule

if TYPE_CHECKING:
    import torch
import hashlib
from collections.abc import Iterable, Mapping

SCHEMA = "gradscope.capsule/1"
#: The key of the record in the metadata, whose values are texts.
RECORD = "gradscope"
_NAME = re.compile(r"\.step-(\d+)\.capsule\.safetensors$")
#: The longest header that safetensors accepts, in bytes.
_LONGEST = 100_000_000


def capsule_path(run: Path, step: int) -> Path:
    """Return the path of a step's capsule."""
    return run.with_name(f"{run.stem}.step-{step}.capsule.safetensors")


def metadata(capsule: Capsule) -> dict[str, str]:
    """Return the record as the metadata of its file."""
    return {"format": "pt", RECORD: to_line(capsule)}


def capsules_of(run: Path) -> dict[int, Path]:
    """Return the capsules beside a run or in its folder, by step; if several ranks have one, only
    one."""
    return dict(every_capsule(run))


def every_capsule(run: Path) -> list[tuple[int, Path]]:
    """Return the capsules beside a run, or of all ranks in its folder, each with its step."""
    if run.is_dir():
        folder, pattern = run, "rank-*.step-*.capsule.safetensors"
    else:
        folder, pattern = run.parent, "*.capsule.safetensors"
    found = []
    for path in sorted(folder.glob(pattern)):
        match = _NAME.search(path.name)
        if match and (run.is_dir() or path.name == capsule_path(run, int(match[1])).name):
            found.append((int(match[1]), path))
    return sorted(found)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in a capsule.

    Raises:
        ConfigError: the file cannot be read, or is damaged.
    """
    import safetensors.torch

    try:
        return safetensors.torch.load_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror or error}") from None
    except safetensors.SafetensorError:
        raise ConfigError(f"the tensors in `{path}` cannot be read: the file is damaged") from None


def read_capsule(path: Path) -> Capsule:
    """Return the record in a capsule.

    Raises:
        ConfigError: the file cannot be read, is no capsule, or is of another version.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(size) if size <= _LONGEST else b""
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror or error}") from None
    try:
        data = json.loads(json.loads(header)["__metadata__"][RECORD])
        schema = data["schema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"`{path}` is not a capsule of gradscope, or is damaged") from None
    if schema != SCHEMA:
        raise ConfigError(
            f"`{path}` is a capsule of another version: `{schema}`; this gradscope reads "
            f"`{SCHEMA}`",
            help="read it with the gradscope that recorded it",
        )
    return from_data(Capsule, data, file=str(path))


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
