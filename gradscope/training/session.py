"""A run from start to end: the file, the observer, and the lines at the end.

Imports no torch, because the script may set something before it imports torch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import random
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscope.errors import GradscopeError, message_of
from gradscope.output_files import atomic_file
from gradscope.records.answers import Judgement, NonFiniteOrigin
from gradscope.records.leaks import AxisResult
from gradscope.records.loop import LoopRecord
from gradscope.records.spike import Capsule
from gradscope.records.tensors import NormNames, ParameterNorms
from gradscope.records.training import (
    StepSample,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRecord,
    TrainingRun,
    TrainingStep,
)
from gradscope.records.transformer import PROBES
from gradscope.reporters.verdict import Verdict, summary
from gradscope.rules import (
    ReadRun,
    RuleSettings,
    Seen,
    judgement,
    mention,
    reaches,
    structures,
)
from gradscope.runfile.capsules import capsule_path, metadata
from gradscope.runfile.folder import FOLDER
from gradscope.runfile.writer import RunWriter
from gradscope.training.findings import RunFindings
from gradscope.training.limit import Limit
from gradscope.training.sample_schedule import Schedule
from gradscope.training.tracker_thread import TrackerSettings, TrackerThread
from gradscope.training.unobserved import (
    NO_MODEL,
    ONE_OF_SEVERAL,
    OtherProcesses,
    attached_late,
    raised_early,
    why_no_step,
)
from gradscope.typeset.numbers import plural
from gradscope.version import __version__

if TYPE_CHECKING:
    import torch

    from gradscope.training.models import Models
    from gradscope.training.nan_detector.detector import NanDetector
    from gradscope.training.observer import Observer
    from gradscope.training.spikes.spikes import Spikes


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The options of ``gradscope run``."""

    out: Path | None = None
    every: int | None = None
    budget: float = 0.02
    first: int = 3
    layers: tuple[str, ...] = ("**",)
    probes: tuple[str, ...] = PROBES
    deep: tuple[int, int] | None = None
    nan_detector: bool = True
    stop_on: str = "never"
    keep: int = 512
    ranks: tuple[int, ...] | None = None
    steps: int | None = None
    seconds: float | None = None
    leaks: bool = False
    spikes: bool = True
    capsules: tuple[int, ...] = ()
    capsule_size: int = 256
    capsule_weights: bool = False
    keep_batches: int = 1
    trackers: TrackerSettings = field(default_factory=TrackerSettings)
    compiled: bool = False
    rules: RuleSettings = field(default_factory=RuleSettings)

    @property
    def records_here(self) -> bool:
        """True if this process records."""
        return self.ranks is None or _rank()[0] in self.ranks

    @property
    def is_limited(self) -> bool:
        """True if gradscope may end the script early."""
        return (self.steps, self.seconds) != (None, None)

    def plain(self) -> dict[str, Any]:
        """Return the settings in the run file's form."""
        return {
            "every": self.every,
            "budget": None if self.every is not None else self.budget,
            "first": self.first,
            "layers": list(self.layers),
            "deep": None if self.deep is None else list(self.deep),
            "nan_detector": self.nan_detector,
            "stop_on": self.stop_on,
            "keep": self.keep,
            "ranks": None if self.ranks is None else list(self.ranks),
            "steps": self.steps,
            "seconds": self.seconds,
            **({} if self.probes == PROBES else {"probe": list(self.probes)}),
            **({"leaks": True} if self.leaks else {}),
            **({"compiled": True} if self.compiled else {}),
            **({} if self.spikes else {"explain_spikes": False}),
            **({"capsule": list(self.capsules)} if self.capsules else {}),
            **({} if self.keep_batches == 1 else {"keep_batches": self.keep_batches}),
            **({"to": [one.name for one in self.trackers.to]} if self.trackers.to else {}),
            "rules": {
                "select": list(self.rules.select),
                "ignore": list(self.rules.ignore),
                "preset": self.rules.preset,
            },
        }


@dataclass(slots=True)
class Session:
    """Records an observer's facts. An error here never reaches the script."""

    run: TrainingRun
    settings: RunSettings
    path: Path
    observer: Observer | None = None
    failure: str | None = None
    latest: dict[int, StepSample] = field(default_factory=dict)  # of each model
    models: dict[int, TrainedModel] = field(default_factory=dict)
    #: The steps of the samples of each model.
    samples: dict[int, array[int]] = field(default_factory=dict)
    others: OtherProcesses | None = None
    #: Sentences on parts of the script that were not observed, with advice, and on the judgement of
    #: `--leaks`.
    unobserved: list[str] = field(default_factory=list)
    limit: Limit = field(init=False)
    #: The capsules by step, each with the text that mentions it.
    capsules: dict[int, tuple[Path, str]] = field(default_factory=dict)
    _writer: RunWriter | None = None
    _process: int = field(default_factory=os.getpid)
    _began: float = field(default_factory=time.perf_counter)
    _finished: bool = False
    #: All, and those that wait for the script to open a run in them.
    _trackers: list[TrackerThread] = field(default_factory=list)
    _unjoined: list[TrackerThread] = field(default_factory=list)
    _findings: RunFindings = field(init=False)
    _seen: Seen = field(init=False)
    _raised: str | None = None

    def __post_init__(self) -> None:
        self._findings = RunFindings(self.settings.rules)
        self._seen = Seen(self.settings.rules, probed=self.settings.compiled)
        self.limit = Limit(self.settings.steps, self.settings.seconds)

    @classmethod
    def begun(cls, script: str, arguments: tuple[str, ...], settings: RunSettings) -> Session:
        """Begin a run, with its file."""
        rank, world = _rank()
        run = TrainingRun(
            script=script,
            started=time.time(),
            arguments=arguments,
            directory=str(Path.cwd()),
            options=settings.plain(),
            versions={"gradscope": __version__, "python": platform.python_version()},
            rank=rank,
            world_size=world,
        )
        session = cls(run, settings, Path())
        session._open(script)
        if session._writer is not None and rank == min(settings.ranks or (0,)):
            session._add_trackers(session._writer)
        return session

    def _add_trackers(self, writer: RunWriter) -> None:
        # The script may go to another folder.
        path = Path(self.run.directory) / self.path
        self._trackers = [
            TrackerThread(
                destination,
                path if self.run.world_size == 1 else path.parent,
                self.settings.trackers,
                self.settings.layers,
                flush=functools.partial(self._write_all, writer),
                report=self._tracker_failed,
            )
            for destination in self.settings.trackers.to
        ]
        self._unjoined = [*self._trackers]

    def _tracker_failed(self, message: str) -> None:
        if self._writer is not None and not self.forked:
            now = time.time() - self.run.started
            self._writer.add(TrainingEvent(self.steps, now, "not-sent", message))

    def _open(self, script: str) -> None:
        for path in _paths(self.settings.out, script, self.run):
            self.path = path
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = RunWriter(path, self.run, keep=self.settings.keep)
                self.failure = None
                return
            except (GradscopeError, OSError) as error:
                self.failure = f"nothing was recorded: {message_of(error)}"
                if not path.exists():
                    return
                # The name is taken, perhaps just now by another run: try the next name.

    @classmethod
    def of_script(cls) -> Session | None:
        """Begin a session that observes all training of this process, as ``gradscope run`` does."""
        for session in _observing:
            observer, gone = session.observer, session.failure is not None or session.forked
            if observer is not None and not gone and not observer.models.are_given:
                return session
        return None

    def observe(self, late: bool = False) -> None:
        """Observe PyTorch, which is already imported, from now on.

        Args:
            late: True if the script may have used it before.
        """
        state = random.getstate()  # some libraries draw numbers as they are imported
        try:
            import torch

            from gradscope.training.observer import Observer

            versions = {**self.run.versions, "torch": str(torch.__version__)}
            self.run = replace(self.run, versions=versions)
            self.observer = Observer(
                self.record,
                self.add_origins,
                self.judge_loop,
                Schedule(
                    *(self.settings.first, self.settings.every, self.settings.budget),
                    processes=self.run.world_size,
                ),
                layers=self.settings.layers,
                probes=self.settings.probes,
                deep=self.settings.deep,
                nan_detector=self.settings.nan_detector,
                processes=self.run.world_size,
                stop_on_nan=self.settings.stop_on in ("nan", "error"),
                limit=self.limit if self.settings.is_limited else None,
                leaks=self.add_leaks if self.settings.leaks else None,
                spikes=self._spikes if self._keeps_steps else None,
                compiled=self.settings.compiled,
                began=self._began,
                failed=self._failed,
            )
            self._findings.made_at = self.observer.made_at
            self._findings.called_at = self.observer.called_at
            self._findings.optimizer_at = self.observer.optimizer_at
            self._findings.attribute_at = self.observer.attribute_at
            self.observer.start()
            _observing.append(self)
            steps = self.observer.adopt() if late else None
            if steps is not None:
                self.unobserved.append(attached_late(time.time() - self.run.started, steps))
        except Exception as error:
            self._failed(error)
        finally:
            random.setstate(state)

    def call_each(self, seconds: float, check: Callable[[], bool]) -> None:
        """Call ``check`` from another thread every ``seconds``, until it returns True."""
        if self._writer is not None:
            self._writer.call_each(seconds, check)

    def record(self, *records: TrainingRecord) -> None:
        """Write records, and the rules' findings on them."""
        if self.forked:  # a forked worker has its own life
            return
        found: list[TrainingRecord] = []
        for one in records:
            if isinstance(one, TrainingStep):
                self._seen.add_step(one)
                found += self._findings.step(one)
            elif isinstance(one, NormNames | ParameterNorms):
                self._findings.norms(one)
            elif isinstance(one, TrainingEvent) and one.kind == "skipped-step":
                found += self._findings.skipped(_skipped(one))
            elif isinstance(one, StepSample):
                self._seen.add_sample(one.step, one.model, one.optimizer, structures(one.report))
                found += self._findings.sample(one)
                self.samples.setdefault(one.model, array("q")).append(one.step)
                self.latest.pop(one.model, None)  # the one that comes is the last
                self.latest[one.model] = one
            elif isinstance(one, TrainedModel):
                self._seen.add_model(one)
                self.models[one.id] = one
        if self._writer is not None:
            self._writer.add(*records, *found)
        if self._unjoined and any(isinstance(one, TrainingStep) for one in records):
            self._unjoined = [one for one in self._unjoined if not one.join()]
        if self.settings.stop_on == "error" and self.observer is not None:
            findings = [one.finding for one in found if isinstance(one, TrainingFinding)]
            if reaches(findings, "error"):
                self.observer.end_script()

    def add_origins(self, step: int, origins: tuple[NonFiniteOrigin, ...]) -> None:
        """Record the origin of a NaN or Inf of the current step."""
        found = self._findings.add_origins(step, origins)
        if self._writer is not None:
            self._writer.add(*found)

    def add_leaks(self, step: int, model: int, axes: Sequence[AxisResult]) -> None:
        """Record the forbidden dependencies of a model's outputs."""
        found = self._findings.leaks(step, model, axes)
        if self._writer is not None:
            self._writer.add(*found)
        held = [one.finding for one in found]
        if self.settings.stop_on == "error" and self.observer and reaches(held, "error"):
            self.observer.end_script()

    @property
    def _keeps_steps(self) -> bool:
        """True if steps that stand out are kept, or the user chose some."""
        return self.recorded and (self.settings.spikes or bool(self.settings.capsules))

    def _spikes(self, detector: NanDetector, models: Models, schedule: Schedule) -> Spikes:
        from gradscope.training.spikes.spikes import Spikes, SpikeSettings

        settings = self.settings
        return Spikes(
            SpikeSettings(
                explain=settings.spikes,
                asked=settings.capsules,
                megabytes=settings.capsule_size,
                weights=settings.capsule_weights,
                batches=settings.keep_batches,
            ),
            settings.rules,
            detector=detector,
            models=models,
            schedule=schedule,
            keep=self.add_capsule,
            drop=self.drop_capsule,
        )

    def add_capsule(
        self, capsule: Capsule, cause: str, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Write the capsule of a step, with its cause, beside the run."""
        if self.forked or self._writer is None:
            return
        import safetensors.torch

        if self.run.world_size > 1:
            capsule = replace(capsule, rank=self.run.rank)

        # The script may have gone to another folder.
        path = capsule_path(Path(self.run.directory) / self.path, capsule.step)
        try:
            with atomic_file(path, force=True) as temporary:
                safetensors.torch.save_file(dict(tensors), temporary, metadata(capsule))
        except (GradscopeError, safetensors.SafetensorError) as error:  # the disk is full
            message, details = f"{capsule.reason}; no capsule: {message_of(error)}", {}
        else:
            text = mention(capsule, cause)
            self.capsules[capsule.step] = path, text
            if not text:
                return
            message, details = f"{capsule.reason}; kept in {path.name}", {"cause": cause}
        now = time.time() - self.run.started
        self._writer.add(TrainingEvent(capsule.step, now, "capsule", message, details))

    def drop_capsule(self, step: int) -> None:
        """Drop a capsule in favour of a larger spike."""
        path, text = self.capsules.pop(step, (None, ""))
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()
            now = time.time() - self.run.started
            message = f"{path.name} was removed: a later spike is larger"
            if text and self._writer is not None:
                self._writer.add(TrainingEvent(step, now, "capsule-removed", message))

    def judge_loop(self, loop: LoopRecord) -> None:
        """Return the findings of the loop rules so far."""
        if self.forked:
            return
        found = self._findings.loop(loop)
        if self._writer is not None:
            self._writer.add(*found)
        held = [one.finding for one in found if one.steps]
        if self.settings.stop_on == "error" and self.observer and reaches(held, "error"):
            self.observer.end_script()

    @property
    def forked(self) -> bool:
        """True in a forked process, which must not report."""
        return os.getpid() != self._process

    @property
    def steps(self) -> int:
        """Number of steps so far, recorded or not."""
        return 0 if self.observer is None else self.observer.step

    @property
    def recorded(self) -> bool:
        """True if there is a run file."""
        return self._writer is not None

    @property
    def findings(self) -> tuple[TrainingFinding, ...]:
        """All findings of the rules so far, the worst first."""
        return self._findings.all()

    @property
    def judgement(self) -> Judgement:
        """Return the rules that had enough samples so far."""
        return judgement(self._seen)

    def _failed(self, error: BaseException) -> None:
        """Stop observing after gradscope's own error; the script goes on."""
        step = self.steps + 1
        self.failure = (
            f"internal error in gradscope at step {step}: it stopped observing, your script goes "
            f"on: {type(error).__name__}: {message_of(error)}"
        )
        if os.environ.get("GRADSCOPE_DEBUG"):
            import traceback

            self.failure += "\n" + "".join(traceback.format_exception(error)).rstrip()
        event = TrainingEvent(step, time.time() - self.run.started, "failed", self.failure)
        self.record(event)

    def script_failed(self, error: BaseException) -> None:
        """Record the facts on an exception of the script that are known only now."""
        self._raised = raised_early(error)
        if self.observer is not None and not self.forked:
            self.observer.script_failed(error)

    def finish(self, exit: str) -> None:
        """Complete the file at the script's end."""
        if self._finished or self.forked:
            return
        self._finished = True
        _observing[:] = [one for one in _observing if one is not self]
        observer, run = self.observer, self.run
        if not self.steps and self.failure is None and not self.unobserved:
            raised = None if observer is not None and observer.backwards else self._raised
            self.unobserved += why_no_step(run.script, observer, self.others, raised)
        if observer is not None and observer.one_of_several and run.world_size == 1:
            self.unobserved.append(ONE_OF_SEVERAL)
        if observer is not None and (leaks := observer.leaks()) is not None:
            self.unobserved.append(leaks)
        if observer is not None and self.steps:
            self.unobserved += observer.compiled_lines()
            if not observer.models.ever:
                self.unobserved.append(NO_MODEL)
        notices = tuple(self.unobserved)
        run = replace(run, ended=time.time(), exit=exit, notices=notices)
        if observer is not None:
            try:
                self.judge_loop(observer.loop())
                observer.stop()
                self._record_last(observer)
            except Exception as error:
                self._failed(error)
            schedule = observer.schedule
            run = replace(
                run,
                steps=self.steps,
                device=observer.device,
                every=self.settings.every or schedule.latest,
                plain=schedule.plain,
                sampled_seconds=schedule.sampled,
                cost=schedule.cost,
                cost_seconds=schedule.cost_seconds,
                cut=self._cut(observer),
                notices=(*notices, *self._notices(observer)),
            )
        self._seen.cut = run.cut is not None
        if self._writer is None:
            self.run = run
            return
        self._writer.add(*self.findings)
        try:
            self._end_trackers(self._writer, run)
        finally:  # Ctrl-C ends the wait, and the record is complete
            self.run = self._with_unsent(run)
            self._writer.finish(self.run)
            self.failure = self.failure or self._writer.failure

    def _record_last(self, observer: Observer) -> None:
        """Record the last step, if it was not."""
        make = observer.metrics.unrecorded
        if make is not None:
            observer.metrics.unrecorded = None
            self.record(make())

    def _write_all(self, writer: RunWriter) -> None:
        """Write the steps so far to the file, for example when the script ends its run in a
        tracker."""
        if self.observer is not None and not self._finished:
            try:
                self._record_last(self.observer)
            except Exception as error:
                self._failed(error)
        writer.flush()

    def _end_trackers(self, writer: RunWriter, run: TrainingRun) -> None:
        """Send the rest to the trackers."""
        if self.run.world_size == 1 and not self.steps:
            self._trackers.clear()
        if self._trackers:
            writer.flush()
        for one in self._trackers:
            one.begin_end(run)
        for one in self._trackers:
            one.wait()

    def _with_unsent(self, run: TrainingRun) -> TrainingRun:
        """Return the run with a notice for each tracker that did not get all of it."""
        notices = [notice for one in self._trackers if (notice := one.unsent) is not None]
        self.unobserved += notices
        return replace(run, notices=(*run.notices, *notices))

    def _cut(self, observer: Observer) -> str | None:
        """Return the option that ended the script."""
        if self.limit.reached is not None:
            return self.limit.reached
        return f"--stop-on {self.settings.stop_on}" if observer.cut else None

    def _notices(self, observer: Observer) -> tuple[str, ...]:
        """Return notices about parts that were not recorded, with the reason."""
        records, readings = observer.metrics.records.every, observer.metrics.readings.every
        share = f"{self.settings.budget * 100:g} % budget"
        notices = []
        if records > 1:
            checked = "; every step was checked for NaN" if self.settings.nan_detector else ""
            notices.append(
                f"Metrics kept for 1 step in {records} ({share}){checked}. For all: --every N"
            )
        if readings > records:
            checked = (
                "; in every step, the gradients of biases and norm layers were checked for NaN"
                if self.settings.nan_detector
                else ""
            )
            notices.append(
                f"Gradient norms kept for 1 step in {readings} ({share}){checked}. "
                "For all: --every N"
            )
        if observer.elsewhere:
            others = plural(observer.elsewhere, "step")
            notices.append(
                f"several threads train: {others} of the other threads were not observed"
            )
        return tuple(notices)

    def summary(self) -> str:
        """Return the result of the run in a few lines; for a run that goes on, the result so
        far."""
        path = self.path if self.steps and self.recorded else None
        if path is not None and self.run.world_size > 1:  # the files of all ranks are one run
            path = path.parent
        run = self.run if self._finished else replace(self.run, steps=self.steps)
        sampled = {step for steps in self.samples.values() for step in steps}
        reader = ReadRun(path or self.path, run, sampled)
        verdict = Verdict(
            run,
            tuple(map(reader.named, self.findings)),
            tuple(self.models.values()),
            len(sampled),
            self.samples,
            self.judgement,
            self._mentioned("spike"),
            self._mentioned("sample"),
        )
        return summary(
            verdict,
            None if path is None else str(path),
            failure=self.failure,
            unobserved=self.unobserved,
        )

    def _mentioned(self, what: str) -> tuple[int, ...]:
        """Return the steps of the capsules that the summary mentions."""
        return tuple(sorted(step for step, (_, text) in self.capsules.items() if text == what))

    def fault(self) -> str:
        """Report internal errors of gradscope only."""
        return "" if self.failure is None else f"gradscope: error: {self.failure}\n"

    def print_summary(self, summary: Callable[[Session], str], *, flush: bool = True) -> None:
        """Print the result of the run to standard error; if that is closed, do nothing.

        Args:
            flush: True if the script's buffered output is written first; False where Python would
                not write it.
        """
        if self.forked or sys.stderr is None:
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if flush:
                sys.stdout.flush()  # the script's output comes before the lines on it
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(summary(self))
            sys.stderr.flush()


#: The sessions that observe, in the order in which they began.
_observing: list[Session] = []


def _skipped(event: TrainingEvent) -> TrainingStep:
    """Return the record of a step that its gradient scaler skipped."""
    return TrainingStep(
        step=event.step,
        optimizer=event.details["optimizer"],
        optimizer_step=0,
        time=event.time,
        seconds=0.0,
        loss_scale=event.details["loss_scale"],
    )


def _rank() -> tuple[int, int]:
    """Return this process's rank and the world size, from the launcher's environment."""
    try:
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    except ValueError:
        return 0, 1


def _paths(out: Path | None, script: str, run: TrainingRun) -> Iterator[Path]:
    """Yield paths for the run file; the first free one is used."""
    if run.world_size > 1:
        # All processes of a launcher have one parent, and one folder.
        folder = out or FOLDER / f"{_stem(script)}-{os.getppid()}"
        yield folder / f"rank-{run.rank}.db"
        return
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(run.started))
    path = out or FOLDER / f"{_stem(script)}-{when}.db"
    path = path if path.suffix else path.with_suffix(".db")
    yield path
    yield from (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))


def _stem(script: str) -> str:
    module = script.removeprefix("-m ")
    return Path(script).stem if module == script else module.rpartition(".")[2]
