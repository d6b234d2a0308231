"""The table of broken programs by rule: a case builds a model, its batch and its loss.

With ``mended`` the same program has its smallest fix, and the rule has nothing to say of its
severity. Some are modelled on a public issue, which the docstring names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

import gradscope
from gradscope.errors import ModelError
from gradscope.records.report import Finding, Report
from gradscope.rules import SEVERITIES


@dataclass(frozen=True)
class Program:
    """Arguments of ``gradscope.inspect`` and ``gradscope.check``."""

    model: nn.Module | str
    inputs: Any = None
    loss: Callable[..., torch.Tensor] | str | None = None
    target: Any = None
    #: More keywords of both: optimizer, steps, mode, overrides, …
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "loss": self.loss, "target": self.target, **self.options}

    def inspect(self) -> Report:
        """The first pass; a program that raises gives what was recorded until then."""
        try:
            return gradscope.inspect(self.model, **self.arguments())
        except ModelError as error:
            assert isinstance(error.report, Report)
            return error.report


@dataclass(frozen=True)
class Case:
    """A broken program and the finding that it must get: where, how bad, by which cause."""

    build: Callable[[bool], Program]
    code: str
    names: tuple[str, ...]
    severity: str
    cause: str | None = None

    def found_in(self, findings: tuple[Finding, ...]) -> bool:
        return any(
            f.code == self.code
            and f.severity == self.severity
            and any(fnmatchcase(f.name, name) for name in self.names)
            and self.cause in (None, f.cause)
            for f in findings
        )

    def as_bad(self, findings: tuple[Finding, ...]) -> list[Finding]:
        """Return the rule's findings of at least the broken program's severity."""
        bar = SEVERITIES.index(self.severity)
        return [f for f in findings if f.code == self.code and SEVERITIES.index(f.severity) <= bar]


CASES: dict[str, Case] = {}


def program(
    code: str, *names: str, severity: str = "error", cause: str | None = None
) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Put a program into the table under its own name; ``names`` are patterns, any of which fits.

    No name at all stands for the model itself.
    """

    def keep(build: Callable[[bool], Program]) -> Callable[[bool], Program]:
        @functools.wraps(build)
        def seeded(mended: bool) -> Program:
            torch.manual_seed(0)
            return build(mended)

        key = build.__name__
        assert key not in CASES, f"two programs are called {key}"
        CASES[key] = Case(seeded, code, names or ("",), severity, cause)
        return seeded

    return keep


def sgd(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    """Return a maker of plain SGD."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)
