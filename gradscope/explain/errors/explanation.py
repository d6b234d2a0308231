"""The parts of an explanation, the text for tensors and lines in it, and the kinds: a file each."""

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
    """The means to run a failed step again.

    Attributes:
        steps: the same steps; calls its argument with the name of the step that begins.
        forward: one forward and the loss; None where backward does not start from the loss.
    """

    model: nn.Module
    steps: Callable[[Callable[[str], None]], None]
    forward: Callable[[], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """An exception to explain.

    Attributes:
        operation: where it began; without a name where no tensor took part.
        again: there where it may be run again.
        tracer: there where it was, under this watch.
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
    lines that belong to it. ``site`` is the place of the fix where that is not the error's.
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
    """The call site as a related line, where it has one."""
    if not site.file or not site.line:
        return ()
    file, text = shown(site.file), source(site.file, site.line)
    return (RelatedLine(role, file, site.line, text, site.module, site.call),)


def listed(operands: Sequence[Operand]) -> str:
    """``a [2, 3], b [2, 4] and [5]``."""
    words = [one.label for one in operands]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def factors(shape: Sequence[int]) -> str:
    """``16 · 14 · 14``."""
    return " · ".join(str(n) for n in shape)


def method(text: str, call: str) -> str:
    """``x.float()`` of what the user wrote as ``x``; in parentheses where it is no single thing."""
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError:
        return f"x.{call}"
    single = isinstance(body, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return f"{text}.{call}" if single else f"({text}).{call}"


def given_as(failed: FailedOperation, given: Operand) -> str:
    """``the input `x` [2, 3]``: by the user's expression, if it is a single one."""
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
    """One kind of exception, which bears the name of its file.

    Attributes:
        signs: patterns in messages of this kind, each with the smallest fix.
        explain: returns the conflicting operands; None if unknown.
        worth_repeating: of a message, whether a second run can tell more and does no harm.
        traced: whether the second run is that of the steps under a watch.
    """

    signs: Mapping[str, str]
    explain: Explainer
    worth_repeating: Callable[[str], bool] = _always
    traced: bool = True


@functools.cache
def kinds() -> dict[str, Kind]:
    """Every kind by its name; a message is of the first that it has a sign of."""
    return {name: load(_FOLDER, name).KIND for name in names(_FOLDER)}


def kind_of(failure: BaseException, text: str, phase: str) -> tuple[str, str | None]:
    """The kind of an exception, and the smallest fix for any of that kind."""
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
    """Return True if the user's own ``raise`` or ``assert`` raised: its words are no sign of a
    kind.
    """
    last = None
    while trace is not None:
        last, trace = trace, trace.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    if is_hidden(code.co_filename) or in_library(code.co_filename):
        return False
    return code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
