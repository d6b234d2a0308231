"""An exception from the user's step, named: its kind, the layer, the user's own lines, the fix.

A new kind is one more row of ``KINDS`` in _kinds.py, and a function in ``_TELLERS`` here that tells
what met what, and where else to look.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType

import torch
from torch import nn

from gradscope.capture.calls import Call
from gradscope.capture.hooks import hooked, named_parameters, watchable
from gradscope.capture.stats import resolve
from gradscope.errors import GradscopeError
from gradscope.explain import (
    _dtypes,
    _functions,
    _inplace,
    _memory,
    _python,
    _ranges,
    _refused,
    _roots,
    _shapes,
    _twice,
)
from gradscope.explain._kinds import kind_of
from gradscope.explain._meeting import Meeting, Names, meeting
from gradscope.explain._recursion import once, recursion
from gradscope.explain._told import Case, Explain, Told, told
from gradscope.explain._watching import Watch
from gradscope.explain.cuts import explain_missing
from gradscope.explain.frames import PACKAGE, raised_at, shown, user_frames
from gradscope.loading.remedies import remedy
from gradscope.records import ErrorRecord

_SHOWN = 8

#: Who tells what met what, by kind; each may have nothing to say.
_TELLERS: dict[str, Explain] = {
    "out-of-memory": _memory.explain,
    "inplace-modification": _inplace.explain,
    "backward-twice": _twice.explain,
    "non-scalar-loss": _roots.scalar,
    "target-out-of-range": _ranges.explain,
    "index-out-of-range": _ranges.explain,
    "device-mismatch": _dtypes.devices,
    "dtype-mismatch": _dtypes.explain,
    "shape-mismatch": _shapes.explain,
    "model-error": lambda case: told(case, (_functions.explain, _refused.explain, _python.explain)),
}


@dataclass(frozen=True, slots=True)
class Again:
    """How what raised is run again.

    Attributes:
        steps: the same steps; calls what it is given with the name of the step that begins.
        forward: one forward and the loss; None where backward does not start from the loss.
    """

    model: nn.Module
    steps: Callable[[Callable[[str], None]], None]
    forward: Callable[[], torch.Tensor] | None = None


def explain_error(
    failure: BaseException, phase: str, executing: list[Call], model: nn.Module | None = None
) -> ErrorRecord:
    """The record of what stopped a run, as far as the exception and its traceback tell.

    Args:
        failure: the exception, with its traceback.
        phase: construction, input, forward, loss, backward or step.
        executing: calls that had not returned, outermost first.
        model: names layers, parameters and buffers.
    """
    text = str(failure).strip() or type(failure).__name__
    kind, advice = kind_of(failure, text, phase)
    advice = advice or remedy(failure)
    frames = user_frames(failure.__traceback__)
    layer = _innermost(executing, failure.__traceback__)
    endless = recursion(failure)
    if endless is not None:  # where it began to: the line that raised is one of many
        frames = once(frames)
        first = (call for call in executing if call.module is endless.module)
        layer = next(first, layer)
    inputs = [met.measured for met in layer.inputs] if layer else []
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
        met = meeting(failure.__traceback__, Names(model))
        return _with(record, _told(Case(kind, text, failure, phase, met)))
    except Exception:
        # A model may answer every question with an error of its own: what it raised comes first.
        return record


def worth_again(record: ErrorRecord, failure: BaseException) -> bool:
    """Whether a second run can tell more, and does no harm."""
    if record.kind == "interrupted" or not isinstance(failure, Exception):
        return False
    if record.kind == "model-error":  # what a mistake of plain Python was, the traceback tells
        return _functions.concerns(record.message)
    # To fill the memory once more could end the process.
    return record.kind != "out-of-memory" or _absurd(record.message)


def explain_again(record: ErrorRecord, failure: BaseException, again: Again) -> ErrorRecord:
    """The record with what only a second run can tell: who saved, wrote, freed, and the operands.

    The run is repeated under a watch. Where it does not raise the same again, or the user stops it,
    the record stays as it is.
    """
    if not worth_again(record, failure):
        return record
    if record.kind == "no-grad-root":
        return _rootless(record, again)
    watch = Watch(again.model, _repeat.__code__)
    repeated: BaseException | None = None
    case: Case | None = None
    try:
        repeated = _repeat(watch, again)
        if repeated is None or not _same(repeated, failure):
            return record
        met = _met(repeated, watch)
        case = Case(record.kind, record.message, repeated, record.phase, met, watch)
        return _with(record, _told(case))
    finally:
        watch.close()
        # Its traceback leads to this frame: a cycle, which would keep all activations alive.
        del repeated, case


def _repeat(watch: Watch, again: Again) -> BaseException | None:
    """What the second run raised."""

    def note(step: str) -> None:
        watch.step = step

    executing = watch.executing
    with (
        hooked(watchable(again.model), executing.enter, executing.leave),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # they have been seen
        try:
            with watch:
                again.steps(note)
        except BaseException as failure:  # Ctrl-C too: the first explanation is there
            return failure
    return None


def _met(failure: BaseException, watch: Watch) -> Meeting | None:
    """The operands: of a layer or a function of PyTorch from its frame, of others as they came."""
    read = meeting(failure.__traceback__, watch.names, watch.maker)
    seen = watch.met(failure)
    if read is not None and (read.layer is not None or read.whole):
        return read
    return seen if seen is not None else read


def _same(one: BaseException, other: BaseException) -> bool:
    return type(one) is type(other) and str(one) == str(other)


def _absurd(text: str) -> bool:
    """Whether more was asked for at once than the machine has, so that nothing was filled."""
    wanted = _memory.asked(text)
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return False
    return wanted is not None and wanted > total


def _told(case: Case) -> Told | None:
    teller = _TELLERS.get(case.kind)
    return None if teller is None else teller(case)


def _with(record: ErrorRecord, told: Told | None) -> ErrorRecord:
    if told is None:
        return record
    place = told.place
    name, call, location = record.name, record.call, record.location
    if place is not None and record.phase == "backward":
        name, call = place.module, place.call
    if place is not None and place.file and location is None:
        location = f"{shown(place.file)}:{place.line}"
    return replace(
        record,
        name=name,
        call=call,
        location=location,
        advice=told.advice or record.advice,
        details=told.details,
        related=told.related,
    )


def _rootless(record: ErrorRecord, again: Again) -> ErrorRecord:
    """Why the loss has no graph: what is frozen, or where the parameters' data left it."""
    named = named_parameters(again.model)
    names = [one.name for one in named.values()]
    trainable = [one.name for p, one in named.items() if p.requires_grad]
    still = _roots.frozen(len(names), len(trainable), names)
    if still is not None or record.phase != "backward" or again.forward is None:
        return _with(record, still)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = explain_missing(again.model, again.forward, trainable)
    details, first = _roots.rootless(answers)
    if first is None:
        return record
    return replace(
        record,
        name=first.module,
        call=first.call,
        location=record.location or first.location,
        advice=first.advice or record.advice,
        details=details,
    )


def is_own_bug(failure: BaseException) -> bool:
    """Whether the exception came out of gradscope's own recording, not of the user's step."""
    if isinstance(failure, RecursionError):  # a hook is only where the user's nesting ended
        return False
    frames = traceback.extract_tb(failure.__traceback__)
    own = str(Path(PACKAGE, "capture")) + os.sep
    return bool(frames) and frames[-1].filename.startswith(own)


def _innermost(executing: list[Call], trace: TracebackType | None) -> Call | None:
    """The innermost call that the exception passed through.

    A call whose error the user's code caught may still be listed: the traceback tells.
    """
    passed: set[int] = set()
    frame: FrameType
    for frame, _ in traceback.walk_tb(trace):
        passed.add(id(frame.f_locals.get("self")))
    return next((call for call in reversed(executing) if id(call.module) in passed), None)
