"""Writes the commands in a finding's advice: on the model, or on the run.

A rule does not know the run's file. It writes ``RUN``, ``STEP`` and ``SCRIPT``, and the reader of
the run replaces them.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from gradscope.records.report import Report
from gradscope.records.training import TrainingFinding, TrainingRun

#: The calls of one step of a run.
CALLS = "gradscope show RUN --step STEP --table calls"


def why(report: Report, name: str) -> str:
    """Return the command, or the Python call, that gives the cause."""
    model = _model(report)
    if model is None:
        return f"gradscope.why(model, inputs, names=[{name!r}])"
    words = ["gradscope why", model, shlex.quote(name) if name else ""]
    alone = "parallel=null" if report.parallel is not None else ""  # `why` takes one process
    return " ".join(filter(None, (*words, alone)))


def _model(report: Report) -> str | None:
    """Return the model's name on the command line; None for a live one."""
    file, spec = report.run.file, report.config.get("model")
    if file is not None and not file.endswith(".py"):
        return shlex.quote(file)
    if isinstance(spec, str):
        return shlex.quote(spec) if ":" in spec or spec == "demo" else None
    return "MODEL" if spec else None


@dataclass(frozen=True, slots=True)
class ReadRun:
    """A run whose findings are shown: its path, and its sampled steps."""

    path: Path
    run: TrainingRun
    sampled: Collection[int]

    def named(self, found: TrainingFinding) -> TrainingFinding:
        """Return the finding with this run's path, step and script in the commands of its
        advice."""
        finding, origin = found.finding, found.origin
        if origin is not None and origin.advice is not None:
            origin = replace(origin, advice=self._filled(origin.advice, found))
        finding = replace(finding, advice=self._filled(finding.advice, found))
        return replace(found, finding=finding, origin=origin)

    def _filled(self, advice: str, found: TrainingFinding) -> str:
        first = found.steps[0][0] if found.steps else 1
        held = [n for n in self.sampled if any(a <= n <= b for a, b in found.steps)]
        script = " ".join([self.run.script, *map(shlex.quote, self.run.arguments)])
        for placeholder, words in (
            (" --step STEP", f" --step {held[0]}" if held else ""),
            ("--deep STEP SCRIPT", f"--deep {max(1, first - 1)}:{first} {script}"),
            ("gradscope show RUN", f"gradscope show {shlex.quote(str(self.path))}"),
        ):
            advice = advice.replace(placeholder, words)
        return advice
