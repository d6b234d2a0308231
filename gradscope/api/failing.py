"""Explains a failed run by its exception or by a second run, and raises the error."""

from __future__ import annotations

import traceback
from typing import NoReturn

from gradscope.errors import (
    GradscopeError,
    Interrupted,
    ModelError,
    Place,
    Problem,
    interruption,
    message_of,
)
from gradscope.explain.errors.explain_exception import (
    explain_again,
    explain_error,
    is_own_bug,
    worth_again,
)
from gradscope.explain.errors.explanation import Again
from gradscope.explain.shared.frames import (
    in_library,
    is_hidden,
    is_ours,
    raised_by_user,
    shown,
    source,
)
from gradscope.loading.imports import remedy
from gradscope.loading.workload import Workload
from gradscope.records.answers import WhyReport
from gradscope.records.coord_check import CoordCheckReport
from gradscope.records.graph import AutogradGraph
from gradscope.records.report import Report
from gradscope.records.run import ErrorRecord
from gradscope.running.rerun import StepNames, rerun
from gradscope.running.step import Observer, run_steps

#: A failed run runs again only if it took at most these seconds, because a tracer makes it slower.
PATIENCE = 30.0


def explained_failure(
    workload: Workload, stopped: Observer, *, seconds: float, from_loss: bool = True
) -> ErrorRecord | None:
    """Return the record of the error that stopped a run, or None; restore the model.

    Args:
        workload: the workload of the run.
        stopped: the observer that stopped it.
        seconds: the duration of the run until then.
        from_loss: True if backward starts from the loss.
    """
    failure, phase = stopped.failure, stopped.phase
    if failure is None:
        return None
    record = explain_error(failure, phase, stopped.executing(), workload.model)
    reached = phase in ("forward", "loss", "backward", "step") and seconds <= PATIENCE
    if workload.parallel is not None:  # with several processes, no process may run the step alone
        return record
    if not reached or isinstance(failure, GradscopeError) or is_own_bug(failure):
        return record
    if not worth_again(record, failure) or (phase == "backward" and not from_loss):
        return record
    try:
        with rerun(workload, weights=None, hooks=True) as step:
            again = Again(
                workload.model, lambda note: run_steps(workload, StepNames(begins=note)), step.loss
            )
            return explain_again(record, failure, again)
    except (Exception, KeyboardInterrupt):
        # Keep the first run's exception: an explanation must never replace it.
        return record


def fail(
    stopped: Observer,
    record: Report | AutogradGraph | WhyReport | CoordCheckReport,
    *during: str,
) -> NoReturn:
    """Raise the error that stopped a run, with the records so far; ``during`` says when it was."""
    failure, stopped.failure = stopped.failure, None
    assert failure is not None
    try:
        users = raised_by_user(failure.__traceback__)
        if isinstance(failure, KeyboardInterrupt):
            shown_so_far = "the records so far are shown"
            name = record.error.name if record.error else None
            where = f", in the forward of `{name}`" if name else ""
            reason = f"{interruption(failure)}{where}"
            raise Interrupted(reason, shown_so_far, report=record) from None
        if isinstance(failure, ModelError) and not users:  # the loss found a mistake in the output
            failure.report = record
            raise failure
        if (isinstance(failure, GradscopeError) and not users) or is_own_bug(failure):
            raise failure
        # Any other exception in a step is the user's, also `sys.exit` in a model.
        raise ModelError(problem(record.error, *during), report=record) from failure
    finally:
        # The exception's traceback refers to this frame; this cycle would keep all activations
        # alive.
        del failure


def users_problem(error: BaseException, what: str = "the run was stopped") -> Problem | None:
    """Return the problem for an exception from a line of the user's, else None.

    Used where no error is expected, such as in a module's method that PyTorch calls.
    """
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    frames = [(f, line) for f, line in frames if not is_hidden(f) and not in_library(f)]
    expected = isinstance(error, GradscopeError) and not raised_by_user(error.__traceback__)
    if expected or isinstance(error, KeyboardInterrupt):
        return None
    if not frames and not isinstance(error, RecursionError):
        return None
    place = None
    if frames:
        file, line = frames[-1]
        place = Place(shown(file), line, text=source(file, line))
    notes = tuple(f"called from {shown(file)}:{line}" for file, line in frames[-2:-5:-1])
    words = message_of(error).strip() or "without a message"
    return Problem(f"{what}: {type(error).__name__}: {words}", place, remedy(error), notes)


def is_users(failure: BaseException) -> bool:
    """Return True if the model stopped the run, rather than Ctrl-C or gradscope."""
    if isinstance(failure, KeyboardInterrupt):
        return False
    if isinstance(failure, GradscopeError):
        return isinstance(failure, ModelError)
    return not is_own_bug(failure)


def is_own(error: BaseException) -> bool:
    """Return True if gradscope itself raised, not the model that it ran."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and is_ours(frames[-1].filename)


def problem(error: ErrorRecord | None, *during: str) -> Problem:
    """Return the failure in one sentence, for output without a table; ``during`` names its
    phase.
    """
    assert error is not None
    first = error.message.splitlines()[0]
    message = first if first == error.exception else f"{error.exception}: {first}"
    where = f" in `{error.name}`" if error.name else " in the model" if error.name == "" else ""
    notes = (*during, *((f"at {error.location}",) if error.location else ()), *error.details)
    return Problem(f"{error.phase} raised{where}: {message}", None, error.advice, notes)
