"""The result of a tried script: its history, the verdict in lines, and the answers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradscope.api.run_history import read_history
from gradscope.errors import ConfigError
from gradscope.records.answers import WhyReport
from gradscope.records.errors import ErrorRecord
from gradscope.records.history import RunHistory
from gradscope.records.training import StepSample
from gradscope.reporters.training.sentences.answers import answers
from gradscope.reporters.training.sentences.summary import title
from gradscope.reporters.verdict import Verdict
from gradscope.runfile.folder import SUFFIX
from gradscope.runfile.reader import RunFile
from gradscope.training.trial import Trial, Tried
from gradscope.typeset.console import Line
from gradscope.typeset.text import plain

#: What a run is called that is not kept, in the commands of findings.
_NOT_KEPT = Path(f"run{SUFFIX}")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What became of a script, as its run's file has it.

    Attributes:
        history: all that was recorded.
        sample: one of the samples.
        ended: how the process ended.
        kept: where the run is kept; None: nowhere.
    """

    history: RunHistory
    sample: StepSample | None
    ended: Tried
    kept: Path | None

    @classmethod
    def of(cls, ended: Tried, trial: Trial, kept: Path | None) -> TrialResult | None:
        """What the run's file holds; None where there is none."""
        if not ended.run.exists():
            return None
        try:
            with RunFile.open(ended.run) as run:
                history = read_history(run, path=kept or _NOT_KEPT)
                samples = run.files[0].sample(history.sampled[-1]) if history.sampled else ()
        except ConfigError:  # killed before it had begun
            return None
        if ended.overdue:
            cut = replace(history.run, cut=f"--seconds {trial.seconds:g}")
            history = replace(history, run=cut)
        return cls(history, next(iter(samples), None), ended, kept)

    @property
    def failed(self) -> bool:
        """Whether the script did: not where it was ended."""
        ours = self.history.run.cut is not None or self.ended.interruption is not None
        return self.ended.code != 0 and not ours

    def report(self, patterns: Sequence[str], exclude: Sequence[str]) -> WhyReport:
        """The answers, as of a run that was recorded before.

        Raises:
            LayerError: a pattern that matches nothing.
        """
        report = answers(self.history, self.sample, patterns, exclude)
        if not self.failed:
            return report
        error = ErrorRecord("model-error", self._failure, "script")
        return replace(report, status="failed", error=error)

    def verdict(self) -> Iterator[Line]:
        """The verdict: steps, what failed, the worst cause, and what to do next."""
        history = self.history
        verdict = Verdict(
            history.run,
            history.findings,
            history.models,
            sum(step.sampled for step in history.steps),
            {one.model: one.steps for one in history.parameters},
            history.judgement,
        )
        yield replace(verdict.steps(), lead=f"{title(history.run)}:")
        if self.failed:
            yield Line(plain(self._failure), "the script failed:", "bad")
        yield from (Line(plain(notice)) for notice in history.run.notices)
        if not history.run.steps and (history.run.cut or "").startswith("--seconds"):
            yield Line("No step was completed in that time: allow more with `--seconds`.")
        for line in verdict.lines():
            alone = not line.lead and not line.indent
            yield replace(line, text=line.text[:1].upper() + line.text[1:]) if alone else line
        if self.kept is not None:
            yield verdict.more_about(str(self.kept))
        else:
            yield Line(self._advice())

    @property
    def _failure(self) -> str:
        code = self.history.run.exit or ""
        return code if code and not code.lstrip("-").isdigit() else self.ended.ending

    def _advice(self) -> str:
        """How to have more than the verdict."""
        run = self.history.run
        words = " ".join([shlex.quote(run.script), *map(shlex.quote, run.arguments)])
        full = f"`gradscope run {words}` records a full one"
        return plain(f"not kept: `-o {_NOT_KEPT}` keeps this run, {full}")
