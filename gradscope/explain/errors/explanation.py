"""The parts of an explanation, its texts for tensors and lines, and the kinds of errors."""

from __future__ import annotations

import ast
import dis
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import nn

from gradscope.errors import GradscopeError
from gradscope.explain.errors.failed_operation import NOTHING, FailedOperation, Operand
from gradscope.explain.shared.frames import CallSite, in_library, is_hidden, shown, source
from gradscope.plugins import load, names
from gradscope.records.run import RelatedLine

if TYPE_CHECKING:
    from gradscope.explain.errors.step_tracer import ErrorTracer


@dataclass(frozen=True, slots=True)
class Again:
    """Functions that run a failed step again.

    Attributes:
        steps: the same steps; calls its argument with the name of the step that begins.
        forward: runs one forward and the loss; None if backward does not start from the loss.
    """

    model: nn.Module
    steps: Callable[[Callable[[str], None]], None]
    forward: Callable[[], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """An exception to explain.

    Attributes:
        operation: the operation that raised; without a name if no tensor took part.
        again: runs the step again; None if that is not allowed.
        tracer: the tracer of the second run; None without one.
    """

    kind: str
    text: str
    failure: BaseException
    phase: str
    failed: FailedOperation = NOTHING
    again: Again | None = None
    tracer: ErrorTracer | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of an error: the conflicting operands in one or more sentences, the fix, and
    lines that belong to it. ``site`` is the place of the fix, if it differs from the error's place.
    """

    details: str | tuple[str, ...]
    advice: str | None = None
    related: tuple[RelatedLine, ...] = ()
    site: CallSite | None = None


Explainer = Callable[[Case], Explanation | None]


def first_explanation(case: Case, explainers: Sequence[Explainer]) -> Explanation | None:
    """Return the explanation of the first explainer that has one."""
    for explainer in explainers:
        explanation = explainer(case)
        if explanation is not None:
            return explanation
    return None


def line(role: str, site: CallSite) -> tuple[RelatedLine, ...]:
    """Return the call site as a related line; None without a line."""
    if not site.file or not site.line:
        return ()
    file, text = shown(site.file), source(site.file, site.line)
    return (RelatedLine(role, file, site.line, text, site.module, site.call),)


def listed(operands: Sequence[Operand]) -> str:
    """List operands: ``a [2, 3], b [2, 4] and [5]``."""
    words = [one.label for one in operands]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def factors(shape: Sequence[int]) -> str:
    """Join sizes: ``16 · 14 · 14``."""
    return " · ".join(str(n) for n in shape)


def method(text: str, call: str) -> str:
    """Return a method call on the user's expression: ``x.float()``; with parentheses unless it is a
    name."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return f"x.{call}"
    single = isinstance(body, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return f"{text}.{call}" if single else f"({text}).{call}"


def given_as(failed: FailedOperation, given: Operand) -> str:
    """Return the input in words: ``the input `x` [2, 3]``, with the user's expression if it is a
    simple one."""
    word = failed.argument
    return f"the input{f' `{word}`' if word else ''} {list(given.shape)}"


_FOLDER = "gradscope.explain.errors.kinds"
_RECURSION = (
    "add a base case to the recursion, or write a loop; raise the limit for deep nesting with"
    " `sys.setrecursionlimit`"
)


def _always(message: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of exception; its name is the name of its file.

    Attributes:
        signs: patterns in messages of this kind, each with the smallest fix.
        explain: returns the conflicting operands; None if unknown.
        worth_repeating: returns True for a message if a second run is harmless and may show more.
        traced: True if the second run repeats the steps under the tracer.
    """

    signs: Mapping[str, str]
    explain: Explainer
    worth_repeating: Callable[[str], bool] = _always
    traced: bool = True


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return every kind by its name; the first kind whose pattern matches a message is its kind."""
    return {name: load(_FOLDER, name).KIND for name in names(_FOLDER)}


def kind_of(failure: BaseException, text: str, phase: str) -> tuple[str, str | None]:
    """Return the kind of an exception, and the smallest fix for that kind."""
    if isinstance(failure, KeyboardInterrupt):
        return "interrupted", None
    if isinstance(failure, GradscopeError):  # found before PyTorch could raise
        return getattr(failure, "kind", "model-error"), failure.problems[0].help
    if isinstance(failure, RecursionError):
        return "model-error", _RECURSION
    if isinstance(failure, MemoryError):
        return "out-of-memory", next(iter(kinds()["out-of-memory"].signs.values()))
    known = RuntimeError | IndexError | ValueError | TypeError | AssertionError
    if isinstance(failure, known) and not _is_own(failure.__traceback__):
        for name, kind in kinds().items():
            for sign, advice in kind.signs.items():
                if re.search(sign, text, re.IGNORECASE | re.DOTALL):
                    # An index that a loss reads is its target.
                    of_loss = name == "index-out-of-range" and phase == "loss"
                    return "target-out-of-range" if of_loss else name, advice
    return "model-error", None


def _is_own(trace: TracebackType | None) -> bool:
    """Return True if the user's own ``raise`` or ``assert`` raised: its message shows no kind."""
    last = None
    while trace is not None:
        last, trace = trace, trace.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    if is_hidden(code.co_filename) or in_library(code.co_filename):
        return False
    return code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
