"""The place of a finding for machines: a file and a line."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from gradscope.records.run import RunInfo

_AT = re.compile(r"(?P<file>.+?):(?P<line>\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A file, with forward slashes, and a line in it from 1 where one is known."""

    file: str
    line: int | None = None


def source_line(location: str | None, run: RunInfo, root: Path | None) -> SourceLine | None:
    """The user's line; else the config or the source file that names the model.

    Args:
        location: a record's, such as ``net.py:31``.
        run: the run that it comes from.
        root: what paths are shown relative to; None: as the record has them.
    """
    match = _AT.fullmatch(location or "")
    if match is not None:
        return SourceLine(_path(match["file"], root), max(1, int(match["line"])))
    if location:
        return SourceLine(_path(location, root))
    return None if run.file is None else SourceLine(_path(run.file, root))


def _path(file: str, root: Path | None) -> str:
    if root is not None:
        inside = os.path.relpath(file, root)
        file = file if inside.startswith("..") else inside
    return PurePath(file).as_posix()
