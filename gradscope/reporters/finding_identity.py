"""The identity of a finding across runs, independent of its figures."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePath

from gradscope.records.report import Finding
from gradscope.records.run import RunInfo

_FIGURE = re.compile(r"(?<![\w.])-?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


def fingerprint(finding: Finding, run: RunInfo) -> str:
    """The same for the same finding on another day, whatever its figures."""
    model = run.model if run.file is None else PurePath(run.file).as_posix()
    cause = without_figures(finding.cause) or ""
    parts = (model, finding.code, finding.name, str(finding.call or 0), cause)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def without_figures(cause: str | None) -> str | None:
    """A cause with a mark for each number: ``log of -1e-09`` is another number on another day."""
    return None if cause is None else _FIGURE.sub("#", cause)
