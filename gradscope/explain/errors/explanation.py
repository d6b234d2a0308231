"""The parts of an explanation, and the text for tensors and lines in it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from gradscope.explain.errors.failed_operation import NOTHING, FailedOperation, Operand
from gradscope.explain.shared.call_site import CallSite
from gradscope.explain.shared.frames import shown, source
from gradscope.records.run import RelatedLine

if TYPE_CHECKING:
    from gradscope.explain.errors.step_tracer import ErrorTracer


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
    """Which operands conflict, in one sentence or several, the fix, and lines that belong to it.

    ``site`` is where the fix belongs, if not at the error.
    """

    details: str | tuple[str, ...]
    advice: str | None = None
    related: tuple[RelatedLine, ...] = ()
    site: CallSite | None = None


Explainer = Callable[[Case], Explanation | None]


def first_explanation(case: Case, explainers: Sequence[Explainer]) -> Explanation | None:
    """That of the first of some explainers that has one."""
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
    """``the input `x` [2, 3]``: by what the user wrote, if it is one thing."""
    word = failed.argument
    return f"the input{f' `{word}`' if word else ''} {list(given.shape)}"
