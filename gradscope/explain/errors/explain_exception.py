"""Explains an exception from the user's step: its kind, the layer, the user's lines, the fix.

Each kind has a file in ``kinds``.
"""

from __future__ import annotations

import os
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

from torch import nn

from gradscope.capture.calls import Call
from gradscope.capture.stats import resolve
from gradscope.errors import GradscopeError, message_of
from gradscope.explain.errors.explanation import (
    NOTHING,
    Again,
    Case,
    FailedOperation,
    kind_of,
    kinds,
)
from gradscope.explain.errors.read_traceback import ModelNames, failed_operation, once, recursion
from gradscope.explain.errors.step_tracer import ErrorTracer
from gradscope.explain.shared.frames import PACKAGE, raised_at, user_frames
from gradscope.explain.shared.tracing_modes import functions_traced
from gradscope.loading.imports import remedy
from gradscope.records.run import ErrorRecord
from gradscope.references import as_written

_SHOWN = 8


def explain_error(
    failure: BaseException, phase: str, executing: list[Call], model: nn.Module | None = None
) -> ErrorRecord:
    """Return the record of the exception that stopped a run, as far as its traceback shows.

    Args:
        failure: the exception, with its traceback.
        phase: construction, input, forward, loss, backward or step.
        executing: the calls that had not returned, outermost first.
        model: names layers, parameters and buffers.
    """
    text = as_written(message_of(failure).strip()) or type(failure).__name__
    kind, advice = kind_of(failure, text, phase)
    advice = advice or remedy(failure)
    frames = user_frames(failure.__traceback__)
    layer = _innermost(executing, failure.__traceback__)
    endless = recursion(failure)
    if endless is not None:  # the start of the recursion: the line that raised is one of many
        frames = once(frames)
        first = (call for call in executing if call.module is endless.module)
        layer = next(first, layer)
    inputs = [one.measured for one in layer.inputs] if layer else []
    done = resolve(inputs)
    record = ErrorRecord(
        kind=kind,
        message=text,
        phase=phase,
        name=layer.named.name if layer else None,
        call=layer.number if layer else None,
        location=raised_at(failure.__traceback__),
        advice=advice,
        exception=type(failure).__name__,
        inputs=tuple(done[id(item)] for item in inputs),
        frames=tuple(frames[-_SHOWN:]),
    )
    if endless is not None:
        return replace(record, location=endless.location, details=endless.details)
    if kind == "interrupted" or isinstance(failure, GradscopeError):
        return record
    try:
        failed = failed_operation(failure.__traceback__, ModelNames(model))
        return _explained(record, Case(kind, text, failure, phase, failed or NOTHING))
    except Exception:
        # A model may raise again on every access: its first exception comes first.
        return record


def worth_again(record: ErrorRecord, failure: BaseException) -> bool:
    """Return True if a second run can give a better explanation and does no harm."""
    kind = kinds().get(record.kind)
    if kind is None or not isinstance(failure, Exception):
        return False
    return kind.worth_repeating(record.message)


def explain_again(record: ErrorRecord, failure: BaseException, again: Again) -> ErrorRecord:
    """Add the facts that need a second run: the operands, and the operations that saved, wrote or
    freed them.

    The run is repeated under the tracer. If it does not raise an equal error, or the user stops it,
    the record stays unchanged.
    """
    if not worth_again(record, failure):
        return record
    case = Case(record.kind, record.message, failure, record.phase, again=again)
    if not kinds()[record.kind].traced:
        return _explained(record, case)
    tracer = ErrorTracer(again.model, _repeat.__code__)
    repeated: BaseException | None = None
    try:
        repeated = _repeat(tracer, again)
        if repeated is None or not _same(repeated, failure):
            return record
        failed = _operation(repeated, tracer)
        case = replace(case, failure=repeated, failed=failed, tracer=tracer)
        return _explained(record, case)
    finally:
        tracer.close()
        # Its traceback leads to this frame: a cycle, which would keep all activations alive.
        del repeated, case


def _repeat(tracer: ErrorTracer, again: Again) -> BaseException | None:
    """Run the steps again under the tracer; return the exception raised, None without one."""

    def note(step: str) -> None:
        tracer.step = step

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they have been seen
        try:
            with functions_traced(again.model, tracer.calls, tracer.run):
                again.steps(note)
        except BaseException as failure:  # Ctrl-C too: the first explanation is there
            return failure
    return None


def _operation(failure: BaseException, tracer: ErrorTracer) -> FailedOperation:
    """Return the operation with its operands: from the frame of a layer or a function of PyTorch,
    else from the trace."""
    read = failed_operation(failure.__traceback__, tracer.names, tracer.maker)
    if read is not None and (read.layer is not None or read.complete):
        return read
    return tracer.failed(failure) or read or NOTHING


def _same(one: BaseException, other: BaseException) -> bool:
    return type(one) is type(other) and str(one) == str(other)


def _explained(record: ErrorRecord, case: Case) -> ErrorRecord:
    """Add the explanation of the record's kind."""
    kind = kinds().get(case.kind)
    explanation = None if kind is None else kind.explain(case)
    if explanation is None:
        return record
    site, details = explanation.site, explanation.details
    details = (details,) if isinstance(details, str) else details
    advice = explanation.advice or record.advice
    name, call, location = record.name, record.call, record.location
    if site is not None and record.phase == "backward":
        name, call = site.module, site.call
    if site is not None and location is None:
        location = site.location
    return replace(
        record,
        name=name,
        call=call,
        location=location,
        advice=None if advice is None else as_written(advice),
        details=tuple(map(as_written, details)),
        related=explanation.related,
    )


def is_own_bug(failure: BaseException) -> bool:
    """Return True if gradscope's own recording raised, not the user's step."""
    if isinstance(failure, RecursionError):  # a hook is only where the user's nesting ended
        return False
    frames = traceback.extract_tb(failure.__traceback__)
    own = str(Path(PACKAGE, "capture")) + os.sep
    return bool(frames) and frames[-1].filename.startswith(own)


def _innermost(executing: list[Call], trace: TracebackType | None) -> Call | None:
    """Return the innermost call that the exception passed through.

    Calls whose error the user's code caught may still be listed, so the traceback decides.
    """
    passed: set[int] = set()
    frame: FrameType
    for frame, _ in traceback.walk_tb(trace):
        passed.add(id(frame.f_locals.get("self")))
    return next((call for call in reversed(executing) if id(call.module) in passed), None)
