"""``why SCRIPT.py``: runs the script for some steps, and prints the verdict."""

from __future__ import annotations

import os
import shlex
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from gradscope import progress
from gradscope.api.reading import read_history
from gradscope.commands._options import flag, option
from gradscope.commands._running import shown_progress
from gradscope.commands._views import Destination
from gradscope.commands._write import check_output, say
from gradscope.config.python_files import does_something, parsed, trains
from gradscope.errors import ConfigError, OptionError, visible
from gradscope.output_files import atomic_file, expanded
from gradscope.records.answers import WhyReport
from gradscope.records.run import ErrorRecord
from gradscope.records.training import RunHistory, StepSample
from gradscope.reporters.run.findings import answers
from gradscope.reporters.run.summary import title
from gradscope.reporters.verdict import Verdict
from gradscope.rules import reaches
from gradscope.runfile.database import copy
from gradscope.runfile.folder import SUFFIX
from gradscope.runfile.reader import RunFile
from gradscope.training.launch import Script
from gradscope.training.limit import Trial, Tried, tried
from gradscope.typeset.console import Line, paragraphs, printed
from gradscope.typeset.text import plain

ROOM = "gradscope.reporters.answers"
_SCRIPT = "Script"
_FAILED = 3


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """Duration of a script's run, and the destination of its output."""

    panel: ClassVar[str] = _SCRIPT

    steps: Annotated[
        int | None,
        option("N", "End the script after N steps (default: 50).", min=1),
    ] = None
    seconds: Annotated[
        float | None,
        option("T", "End it after T seconds (default: 60)."),
    ] = None
    every: Annotated[
        int | None,
        option("N", "Sample every Nth step (default: every 3rd).", min=1),
    ] = None
    show_output: Annotated[
        bool,
        flag(
            "--show-output",
            "Show the script's output on standard error. Without it, only the standard error of a "
            "script that fails is shown.",
        ),
    ] = False

    @property
    def given(self) -> str | None:
        """The first option that the user gave, or None."""
        names = [one.name for one in fields(self) if getattr(self, one.name)]
        return f"--{names[0].replace('_', '-')}" if names else None

    def trial(self, script: Script) -> Trial:
        """Return the settings of a trial run of the script.

        Raises:
            OptionError: the number is not a time.
        """
        usual = Trial(script)
        seconds = usual.seconds if self.seconds is None else self.seconds
        if not 0 < seconds < float("inf"):
            raise OptionError(f"`--seconds {seconds:g}` is not a time", help="give more than 0")
        output = sys.stderr.fileno() if self.show_output and sys.stderr is not None else None
        return Trial(script, self.steps or usual.steps, seconds, self.every, output)


def is_script(word: str) -> bool:
    """Return True if a path is a training script, or one of unknown content.

    A file with a model class counts as a script only if it trains; a notice then says how to ask
    about the model.
    """
    path = expanded(word)
    if path.suffix.lower() != ".py" or not path.is_file():
        return False
    file = parsed(path)
    if file is None:  # Python reports the mistake
        return True
    if not trains(file):
        return not file.models and does_something(file)
    if file.models:
        start = word if word.startswith((".", "/", "~")) else f"./{word}"
        say(
            f"`{word}` trains, so it runs as a script. To ask about a model in it: "
            f"`gradscope why {start}:{file.models[-1]}`"
        )
    return True


def refuse_several_processes() -> None:
    """Refuse to run under a launcher of several processes.

    Raises:
        OptionError: this process is one of several.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise OptionError(
            "`gradscope why SCRIPT.py` runs the script in one process",
            help="with several: `torchrun … -m gradscope run SCRIPT.py`, then `gradscope why RUN`",
        )


def try_script(
    trial: Trial,
    patterns: Sequence[str],
    exclude: Sequence[str],
    destination: Destination,
    *,
    keep: Path | None,
    fail_on: str,
) -> None:
    """Run the script, and write the verdict, or the findings of the selected layers.

    Args:
        keep: the file for the run; None: do not keep it.
        fail_on: the lowest severity of a finding for exit code 1.

    Raises:
        OptionError: the run cannot be recorded or kept.
        LayerError: a pattern matches nothing.
        typer.Exit: the script failed, or there are findings.
    """
    check_output(keep, force=destination.force)
    with ExitStack() as trying:
        with nullcontext() if trial.output is not None else shown_progress():
            progress.begin(f"running {trial.script.words}")
            ended = trying.enter_context(tried(trial))
        result = TrialResult.of(ended, trial, keep)
        if result is None or result.failed:
            sys.stderr.write(visible(ended.errors))
        if result is None:
            raise ended.interruption or OptionError(f"the script did not run: {ended.ending}")
        if keep is not None:
            _keep(ended.run, keep, force=destination.force)
        report = result.report(patterns, exclude)
        if destination.format == "terminal" and not (patterns or exclude):
            width, color = destination.width, destination.color
            lines = paragraphs(result.verdict(), width)
            destination.write(printed(lines, width=width, color=color))
        else:
            destination.show(report)
    if ended.interruption is not None:
        raise ended.interruption
    if result.failed:
        raise typer.Exit(_FAILED)
    if reaches(report.answers, fail_on):
        raise typer.Exit(1)


def _keep(run: Path, target: Path, *, force: bool) -> None:
    try:
        with atomic_file(target, force=force) as file:
            copy(run, file)
    except sqlite3.Error as error:
        raise OptionError(f"cannot write the run to `{target}`: {error}") from None


#: Name of a run that is not kept, in the commands of findings.
_NOT_KEPT = Path(f"run{SUFFIX}")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """Result of a script's trial, read from its run file.

    Attributes:
        history: the record of the run.
        sample: one of the samples.
        ended: the end of the process.
        kept: the run's file; None if it was not kept.
    """

    history: RunHistory
    sample: StepSample | None
    ended: Tried
    kept: Path | None

    @classmethod
    def of(cls, ended: Tried, trial: Trial, kept: Path | None) -> TrialResult | None:
        """Read the run file of a trial; None without one."""
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
        """True if the script failed, unless gradscope ended it."""
        ours = self.history.run.cut is not None or self.ended.interruption is not None
        return self.ended.code != 0 and not ours

    def report(self, patterns: Sequence[str], exclude: Sequence[str]) -> WhyReport:
        """Return the answers, as for a recorded run.

        Raises:
            LayerError: a pattern matches nothing.
        """
        report = answers(self.history, self.sample, patterns, exclude)
        if not self.failed:
            return report
        error = ErrorRecord("model-error", self._failure, "script")
        return replace(report, status="failed", error=error)

    def verdict(self) -> Iterator[Line]:
        """Yield the verdict: steps, the error, the worst cause, and the next command."""
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
        """Return the advice that leads to more than the verdict."""
        run = self.history.run
        words = " ".join([shlex.quote(run.script), *map(shlex.quote, run.arguments)])
        full = f"`gradscope run {words}` records a full one"
        return plain(f"not kept: `-o {_NOT_KEPT}` keeps this run, {full}")
