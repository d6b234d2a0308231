"""Where a finding stands, as machines want it: a file, a line, and what tells it from others."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from gradscope.records.findings import Finding
from gradscope.records.run import RunInfo

_AT = re.compile(r"(?P<file>.+?):(?P<line>\d+)", re.DOTALL)

_FIGURE = re.compile(r"(?<![\w.])-?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Spot:
    """A file, with forward slashes, and a line in it from 1 where one is known."""

    file: str
    line: int | None = None


def spot(location: str | None, run: RunInfo, root: Path | None) -> Spot | None:
    """The user's line; else the config or the source file that names the model.

    Args:
        location: a record's, such as ``net.py:31``.
        run: the run that it comes from.
        root: what paths are shown relative to; None: as the record has them.
    """
    match = _AT.fullmatch(location or "")
    if match is not None:
        return Spot(_path(match["file"], root), max(1, int(match["line"])))
    if location:
        return Spot(_path(location, root))
    return None if run.file is None else Spot(_path(run.file, root))


def fingerprint(finding: Finding, run: RunInfo) -> str:
    """The same for the same finding on another day, whatever its figures."""
    model = run.model if run.file is None else PurePath(run.file).as_posix()
    cause = without_figures(finding.cause) or ""
    parts = (model, finding.code, finding.name, str(finding.call or 0), cause)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def without_figures(cause: str | None) -> str | None:
    """A cause with a mark for each number: ``log of -1e-09`` is another number on another day."""
    return None if cause is None else _FIGURE.sub("#", cause)


def _path(file: str, root: Path | None) -> str:
    if root is not None:
        inside = os.path.relpath(file, root)
        file = file if inside.startswith("..") else inside
    return PurePath(file).as_posix()
