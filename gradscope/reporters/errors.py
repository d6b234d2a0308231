"""Why a run failed, in sentences: what, where, with which shapes, in which of the user's lines."""

from __future__ import annotations

from gradscope.records.run import ErrorRecord, RelatedLine
from gradscope.records.tensors import TensorStats
from gradscope.reporters.labels import label
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import shape
from gradscope.typeset.text import plain


def error_lines(error: ErrorRecord | None) -> list[Line]:
    """Everything that is known of an error; nothing without one."""
    if error is None:
        return []
    where = f" of {label(error.name, error.call)}" if error.name is not None else ""
    # Any error that has no name of its own: what it was follows in the message.
    kind = "raised" if error.kind == "model-error" else f"{plain(error.kind)},"
    what = f"{kind} in the {plain(error.phase)}{where}"
    if error.phase == "config":  # which the kind says too
        what = plain(error.kind)
    lines = [Line(what, "error:", "bad")]
    lines += [Line(plain(text), indent=1) for text in _messages(error)]
    lines += [Line(plain(sentence), "why:", indent=1) for sentence in error.details]
    for one in error.related:
        lines += _code(f"{one.file}:{one.line}{_whose(one)}", one.role, one.code)
    if error.inputs:
        tensors = ", ".join(_tensor(stats) for stats in error.inputs)
        lines.append(Line(tensors, "inputs:", indent=1))
    for frame in error.frames:
        lines += _code(f"{frame.file}:{frame.line} in {frame.function}", "at", frame.code)
    shown = {f"{one.file}:{one.line}" for one in error.related}
    if not error.frames and error.location and error.location not in shown:
        lines += _code(error.location, "at", None)
    if error.advice:
        lines.append(Line(plain(error.advice), "help:", indent=1))
    return lines


def _code(place: str, role: str, code: str | None) -> list[Line]:
    """A place in the user's code, and below it the line that is there."""
    lines = [Line(plain(place), plain(role), indent=1)]
    return [*lines, Line(plain(code.strip()), indent=2)] if code else lines


def _whose(one: RelatedLine) -> str:
    return f" in {label(one.name, one.call)}" if one.name is not None else ""


def _messages(error: ErrorRecord) -> list[str]:
    """The message's lines, and the exception's where it says something else."""
    message, raised = error.message, error.exception
    if raised and message in raised:
        message = raised
    elif raised and raised not in message:
        named = raised.isidentifier()
        message = f"{raised}: {message}" if named else f"{message}\n{raised}"
    return [line for line in message.splitlines() if line.strip()]


def _tensor(stats: TensorStats) -> str:
    return f"{shape(stats.shape)} {plain(stats.dtype)}"
