"""Observes the user's training loop, from Python."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from torch import distributed, nn
from torch.optim import Optimizer

from gradscope.api.showing import run_page
from gradscope.errors import OptionError, message_of
from gradscope.explain.shared.frames import in_library, is_hidden, shown
from gradscope.records.report import Report
from gradscope.records.training import TrainingFinding
from gradscope.rules import ReadRun, RuleSettings, reaches
from gradscope.runfile.folder import check_run_path
from gradscope.runfile.tracking import MOST_KEYS
from gradscope.training.session import RunSettings, Session
from gradscope.training.tracker_thread import TrackerSettings


@dataclass(frozen=True, slots=True, repr=False)
class WatchedRun:
    """A run, running or ended. ``print(run)`` prints the verdict of ``gradscope run``."""

    _session: Session

    def __repr__(self) -> str:
        return self._session.summary().rstrip("\n")

    @property
    def path(self) -> Path:
        """The run's file, for ``gradscope show``."""
        return self._session.path

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return self._session.steps

    @property
    def findings(self) -> tuple[TrainingFinding, ...]:
        """Findings so far, worst first."""
        found = self._session.findings
        steps = [first for one in found for first, _ in one.steps]
        reader = ReadRun(self._session.path, self._session.run, steps)
        return tuple(map(reader.named, found))

    def report(self, model: str | None = None) -> Report | None:
        """Return the last sampled step as ``gradscope.inspect`` would record it.

        Args:
            model: the name of one of several models; None: the model of the last sample.

        Returns:
            The report; None before the first step has ended.
        """
        samples = list(self._session.latest.values())
        if model is not None:
            samples = [sample for sample in samples if sample.report.run.model == model]
        return samples[-1].report if samples else None


@contextmanager
def watch(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    every: int | None = None,
    budget: float = 0.02,
    first: int = 3,
    out: str | Path | None = None,
    layers: Sequence[str] = ("**",),
    nan_detector: bool = True,
    keep: int = 512,
    select: Sequence[str] | str = (),
    ignore: Sequence[str] | str = (),
    preset: str | None = None,
    to: Sequence[str] | str = (),
    keys: int = MOST_KEYS,
    quiet: bool = False,
    logger: logging.Logger | None = None,
    sentinel: bool | None = None,
) -> Iterator[WatchedRun]:
    """Observe the training loop in the block, and record it to a file.

    The numbers of the training stay the same, bit for bit. At the end, a few lines on standard
    error report the findings, as ``gradscope run`` does; with several processes, rank 0 reports.
    Under ``gradscope run``, the block belongs to that run and makes no file.

        >>> with gradscope.watch(model, optimizer) as run:
        ...     for batch in loader:
        ...         loss = criterion(model(batch.x), batch.y)
        ...         optimizer.zero_grad()
        ...         loss.backward()
        ...         optimizer.step()
        >>> run.report()

    Args:
        model: the model to observe, or several.
        optimizer: its optimizer, or several; None: those that hold a parameter of the model.
        every: sample every Nth step; None: as often as the budget allows.
        budget: the share of the time that gradscope may take.
        first: the number of first steps that are always sampled.
        out: the run's file; None: a new file in ``gradscope-runs/``.
        layers: patterns of the modules whose calls are recorded.
        nan_detector: find the origin of a NaN or Inf in the step that produces it.
        keep: the number of sampled steps to keep; older ones are thinned out.
        select, ignore: rules to run or to leave out, by code, prefix of codes, or name.
        preset: the thresholds of another tool.
        to: the experiment trackers that get the run while it trains: "wandb", "mlflow",
            "tensorboard", "trackio", "otlp://HOST"; see `gradscope run --to`.
        keys: the largest number of charts to send.
        quiet: print nothing at the end.
        logger: logs the lines at the end, if its level allows it; None: print them.
        sentinel: the old name of ``nan_detector``.

    Yields:
        The run, with its findings so far.

    Raises:
        OptionError: a rule or tracker does not exist, the tracker's package is not installed,
            ``every`` or ``budget`` is out of range, or ``out`` has the suffix of a page or a
            picture.
    """
    if not 0 < budget <= 1:
        raise OptionError(f"`budget={budget}` is not a share", help="give a number up to 1: 0.02")
    if every is not None and every < 1:
        raise OptionError(f"`every={every}` is out of range", help="give 1 or more")
    running = Session.of_script()
    if running is not None:  # `gradscope run` records this training already
        yield WatchedRun(running)
        return
    if out is not None:
        check_run_path(Path(out), "gradscope.watch(…, out='{run}')")
    settings = RunSettings(
        out=None if out is None else Path(out),
        every=every,
        budget=budget,
        first=first,
        layers=tuple(layers),
        nan_detector=nan_detector if sentinel is None else sentinel,
        keep=keep,
        trackers=TrackerSettings.of(to, keys, run_page, quiet=quiet),
        rules=RuleSettings.of(select=select, ignore=ignore, preset=preset),
    )
    session = Session.begun(_caller(), (), settings)
    speaks = not quiet and _is_first(session)
    session.observe()
    models = [model] if isinstance(model, nn.Module) else list(model)
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
    if session.observer is not None:
        session.observer.observe_only(models, optimizers)
    ended = "0"
    try:
        yield WatchedRun(session)
    except BaseException as error:
        ended = f"{type(error).__name__}: {message_of(error)}".rstrip(": ").splitlines()[0]
        raise
    finally:
        session.finish(ended)
        if speaks:
            _say(session, logger)
        elif session.failure is not None:
            warnings.warn(f"gradscope: {session.failure}", stacklevel=3)


def _is_first(session: Session) -> bool:
    """Return True if this is the only process, or the first of several."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return session.run.rank == 0


def _say(session: Session, logger: logging.Logger | None) -> None:
    """Log the summary; if the logger would drop it, print it to standard error."""
    wrong = reaches([one.finding for one in session.findings], "warning")
    level = logging.WARNING if wrong or session.failure else logging.INFO
    if logger is not None and not session.forked and _lets_through(logger, level):
        logger.log(level, session.summary().rstrip("\n"))
    else:
        session.print_summary(Session.summary)


def _lets_through(logger: logging.Logger, level: int) -> bool:
    """Return True if a handler takes messages of this level from the logger."""
    one: logging.Logger | None = logger
    handlers: list[logging.Handler] = []
    while one is not None:
        handlers += one.handlers
        one = one.parent if one.propagate else None
    return logger.isEnabledFor(level) and any(handler.level <= level for handler in handlers)


def _caller() -> str:
    """Return the user's file that calls ``watch``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (in_library(file := frame.f_code.co_filename) or is_hidden(file)):
        frame = frame.f_back  # a file of gradscope, or of a training library
    return "python" if frame is None else shown(frame.f_code.co_filename)
