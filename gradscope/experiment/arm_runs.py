"""Runs the arms, each in its own process and scratch copy, and reads their results."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradscope import progress
from gradscope.errors import ConfigError
from gradscope.experiment.arm_process import ArmProcess
from gradscope.experiment.arms import AS_IT_IS, Arm
from gradscope.experiment.scratch import Scratch
from gradscope.experiment.script_facts import Facts
from gradscope.records.experiment import DATA
from gradscope.records.training import RunHistory
from gradscope.runfile.reader import RunFile
from gradscope.training.launch import Script
from gradscope.training.limit import Trial, Tried, tried

#: Arms whose findings are read; the others sample no step.
_SAMPLED = (AS_IT_IS.name, "one-batch")
#: How faults begin and end, in words.
_FAILED, _OUTSIDE = "the script failed", "writes outside of the scratch copy"
#: The exception of reading from an empty standard input, and its meaning.
_NO_INPUT, _READS = "EOFError: EOF when reading a line", " (it reads standard input)"
#: The reason to leave out the late arms.
_LEARNED = "another cause is found, or the script learns"
#: Rules that *one batch* breaks by design.
_IGNORED = "GS814"


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One arm as it ended.

    Attributes:
        history: the record of its run; None without a run.
        notes: the notes from its process.
        fault: the reason why it has no loss; None if it has one.
        advice: the way to give it one; None if unknown.
        seconds: its duration.
    """

    arm: Arm
    history: RunHistory | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    fault: str | None = None
    seconds: float | None = None
    advice: str | None = None


@dataclass(slots=True)
class ArmRuns:
    """Runs arms of a script.

    Attributes:
        script: the script.
        steps, seconds: the limits of an arm.
        jobs: the number of arms that run at a time.
        scratch: the contents of the copy of the working folder.
        read: reads a run's history from its file.
        unlearned: returns True if these arms show that the script gains nothing from its inputs;
            then the late arms run.
        interruption: the reason why the arms ended early: Ctrl-C, or a signal.
    """

    script: Script
    steps: int
    seconds: float
    jobs: int
    scratch: Scratch
    read: Callable[[RunFile], RunHistory]
    unlearned: Callable[[dict[Arm, ArmRun]], bool]
    interruption: KeyboardInterrupt | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self, arms: Sequence[Arm]) -> dict[Arm, ArmRun]:
        """Run *as it is* first; it shows which of the other arms apply to the script."""
        done: dict[Arm, ArmRun] = {}
        try:
            progress.begin(f"arm 1 of {len(arms)}: {AS_IT_IS.name}")
            self._together([AS_IT_IS], done, len(arms))
            plain = done[AS_IT_IS]
            if plain.fault is None and plain.history is not None:
                facts = Facts.of(plain.history, plain.notes)
                reasons = {arm: _no_use(arm, facts) for arm in arms if arm is not AS_IT_IS}
                left_out = {arm: why for arm, why in reasons.items() if why is not None}
                done.update({arm: ArmRun(arm, fault=why) for arm, why in left_out.items()})
                useful = [arm for arm in reasons if arm not in left_out]
                self._together([arm for arm in useful if not arm.late], done, len(arms))
                late = [arm for arm in useful if arm.late]
                if late and self.unlearned(done):
                    self._together(late, done, len(arms))
                else:
                    done.update({arm: ArmRun(arm, fault=_LEARNED) for arm in late})
        except KeyboardInterrupt as error:
            self.interruption = error
        return done

    def _together(self, arms: Sequence[Arm], done: dict[Arm, ArmRun], total: int) -> None:
        """Run these arms, a number at a time; an interruption ends their processes."""
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._one, arm) for arm in arms]
            try:
                for future in as_completed(futures):
                    found = future.result()
                    done[found.arm] = found
                    progress.begin(f"{len(done)} of {total} arms: {found.arm.name} ended")
            except BaseException:
                self._ended.set()
                for future in futures:
                    future.cancel()
                raise

    def _one(self, arm: Arm) -> ArmRun:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gradscope-", ignore_cleanup_errors=True) as root:
            folder = self.scratch.make(Path(root) / "copy")
            notes = Path(root) / "notes.json"
            option = ArmProcess.option(arm, notes, folder, self.scratch.source)
            sampled = arm.name in _SAMPLED
            options = {"--arm": option, "--first": "3" if sampled else "0"}
            if arm.name == "one-batch":
                options["--ignore"] = _IGNORED
            trial = Trial(
                self.script,
                self.steps,
                self.seconds,
                None if sampled else 10 * self.steps,
                options=options,
                folder=folder,
                environment={"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
                reads=False,
                ended=self._ended.is_set,
            )
            with tried(trial) as ended:
                history = self._history(ended)
            noted = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
        took = time.monotonic() - began
        fault = _fault(arm, ended, history, noted)
        return ArmRun(arm, history, noted, fault, took, _advice(fault, self.script))

    def _history(self, ended: Tried) -> RunHistory | None:
        if not ended.run.exists():
            return None
        try:
            with RunFile.open(ended.run) as run:
                return self.read(run)
        except ConfigError:  # killed before it had begun
            return None


def _no_use(arm: Arm, facts: Facts) -> str | None:
    """Return the reason to leave an arm out for this script; None if it applies."""
    if arm.needs is not None and not getattr(facts, arm.needs):
        return arm.lacking
    if (arm.name in DATA or arm.late) and len(facts.losses) > 1:
        return f"{' and '.join(facts.losses)} have a loss each"
    if (arm.name in DATA or arm.late) and facts.draws:
        return "the script draws from a distribution: its data depend on the model"
    return None


def _fault(arm: Arm, ended: Tried, history: RunHistory | None, notes: dict[str, Any]) -> str | None:
    """Return the reason why an arm's result is unusable; None if it is usable."""
    if notes.get("refused"):
        return f"{_OUTSIDE}: {notes['refused'][0]}"
    run = None if history is None else history.run
    failed = ended.code != 0 and (run is None or run.cut is None) and not ended.overdue
    if failed:
        exit = "" if run is None else (run.exit or "")
        how = ending(exit, ended)
        return f"{_FAILED}: {how}{_READS if _NO_INPUT in how else ''}"
    if history is None or not any(step.losses for step in history.steps):
        if ended.overdue or (run is not None and run.cut is not None):
            return "no step with a loss in its time: `--seconds` allows more"
        notices = () if run is None else run.notices
        return "; ".join(notices) or "no step with a loss"
    if not notes:
        return "it did not end in its time"
    return _unchanged(arm, notes)


def _advice(fault: str | None, script: Script) -> str | None:
    """Return the next step for an arm without a usable result."""
    if fault is None:
        return None
    if fault.startswith(_OUTSIDE):
        return "let it write below the working folder, or in the temporary folder"
    if fault.endswith(_READS):
        return "an arm's standard input is empty: take the answers from arguments or a file"
    if fault.startswith(_FAILED):
        words = " ".join([script.words, *map(shlex.quote, script.arguments)])
        return f"`gradscope run {words}` shows where"
    return None


def ending(exit: str, ended: Tried) -> str:
    """Return the exception, or the exit code, or the last line on standard error."""
    if exit and not exit.lstrip("-").isdigit():
        return exit
    lines = [line for line in ended.errors.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ended.ending


def _unchanged(arm: Arm, notes: dict[str, Any]) -> str | None:
    """Return the reason why an arm's change had no effect; None if it had one."""
    if arm.late:
        if notes.get("given"):
            return "the shifted targets are the inputs"
        return None if notes.get("shifted") else "no loss function gets a target of each position"
    if arm.name not in DATA:
        return None
    if arm.name == "one-batch":
        repeated = any(notes.get(key) for key in ("loaded", "targets", "labels", "own_loss"))
        repeated = repeated or bool(notes.get("drawn") and not notes.get("other"))
        if notes.get("changed") and not repeated:
            return "no batch to repeat: no DataLoader, and the targets are not known"
        return None
    if not notes.get("calls"):
        return "no call of the model was seen"
    if notes.get("own_loss"):
        return "the model returns a scalar, as a loss is, and no argument is named as its labels"
    if not notes.get("changed"):
        return "a batch of one" if arm.name == "mismatched" else "the model gets no data"
    return None
