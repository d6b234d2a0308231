"""Kinds of exceptions, by what their messages say: each is a file of ``kinds``."""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from gradscope.errors import GradscopeError
from gradscope.explain.errors.explanation import Explainer
from gradscope.explain.shared.frames import in_library, is_hidden
from gradscope.plugins import load, names

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
        signs: patterns of what a message of this kind contains, each with the smallest fix.
        explain: tells which operands conflict; it may have nothing to say.
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
                    # What a loss picks by is its target.
                    of_loss = name == "index-out-of-range" and phase == "loss"
                    return "target-out-of-range" if of_loss else name, advice
    return "model-error", None


def _is_own(trace: TracebackType | None) -> bool:
    """Whether a ``raise`` or an ``assert`` in the user's own code raised: its words are no sign."""
    last = None
    while trace is not None:
        last, trace = trace, trace.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    if is_hidden(code.co_filename) or in_library(code.co_filename):
        return False
    return code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
