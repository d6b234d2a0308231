"""One's own training loop under observation, from Python."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from torch import nn
from torch.optim import Optimizer

from gradscope.errors import OptionError
from gradscope.explain.shared.frames import in_library, is_hidden, shown
from gradscope.records.report import Report
from gradscope.records.training import TrainingFinding
from gradscope.rules import RuleSettings
from gradscope.training.session import RunSettings, Session


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run that goes on, or has ended."""

    _session: Session

    @property
    def path(self) -> Path:
        """The run's file, for ``gradscope show``."""
        return self._session.path

    @property
    def steps(self) -> int:
        """How many steps were made so far."""
        return self._session.steps

    @property
    def findings(self) -> tuple[TrainingFinding, ...]:
        """What the rules have found so far, the worst first."""
        return self._session.findings

    def report(self, model: str | None = None) -> Report | None:
        """Of the last step that was looked at, what ``gradscope.inspect`` records.

        Args:
            model: its name, where several are trained; None is the one that was looked at last.

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
    sentinel: bool = True,
    keep: int = 512,
    select: Sequence[str] | str = (),
    ignore: Sequence[str] | str = (),
    preset: str | None = None,
) -> Iterator[WatchedRun]:
    """Watch the training that runs in the block, and record it to a file.

    Nothing of the training changes: numbers are the same to the last bit.

        >>> with gradscope.watch(model, optimizer) as run:
        ...     for batch in loader:
        ...         loss = criterion(model(batch.x), batch.y)
        ...         optimizer.zero_grad()
        ...         loss.backward()
        ...         optimizer.step()
        >>> run.report()

    Args:
        model: what is trained, or several.
        optimizer: what makes the steps, or several; None finds those that hold a parameter of it.
        every: look at every so many steps; None keeps to the budget.
        budget: the share of the time that looking may take.
        first: so many steps are looked at in any case.
        out: the run's file; None makes one in ``gradscope-runs/``.
        layers: patterns of the modules whose calls are recorded.
        sentinel: locate NaN and infinities in the step that makes them.
        keep: how many looked-at steps are kept; older ones are thinned out.
        select, ignore: the rules that look, by code, beginning of codes, or name.
        preset: thresholds of another tool.

    Yields:
        The run, with its findings so far.

    Raises:
        OptionError: a rule that there is not, an interval or a budget that is none.
    """
    if not 0 < budget <= 1:
        raise OptionError(f"`budget={budget}` is no share", help="give a number up to 1: 0.02")
    if every is not None and every < 1:
        raise OptionError(f"`every={every}` is no interval", help="give 1 or more")
    settings = RunSettings(
        out=None if out is None else Path(out),
        every=every,
        budget=budget,
        first=first,
        layers=tuple(layers),
        sentinel=sentinel,
        keep=keep,
        rules=RuleSettings.of(select=select, ignore=ignore, preset=preset),
    )
    session = Session.begun(_caller(), (), settings)
    session.observe()
    models = [model] if isinstance(model, nn.Module) else list(model)
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
    if session.observer is not None:
        session.observer.watch(models, optimizers)
    ended = "0"
    try:
        yield WatchedRun(session)
    except BaseException as error:
        ended = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
        raise
    finally:
        session.finish(ended)
        if session.failure is not None:
            warnings.warn(f"gradscope: {session.failure}", stacklevel=3)


def _caller() -> str:
    """The user's file that the call of ``watch`` comes from."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (in_library(file := frame.f_code.co_filename) or is_hidden(file)):
        frame = frame.f_back  # of gradscope, or of a library that trains for the user
    return "python" if frame is None else shown(frame.f_code.co_filename)
