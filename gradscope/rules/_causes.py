"""Finds the causes among a run's findings, the worst first, each with the symptoms that follow from
it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradscope.records.training import RUN, TrainingFinding
from gradscope.rules._book import entries
from gradscope.rules._severity import SEVERITIES


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding that no other finding explains, and its symptoms, the worst first."""

    finding: TrainingFinding
    symptoms: tuple[TrainingFinding, ...] = ()

    @property
    def severity(self) -> str:
        """The worst severity of the finding and its symptoms: an info may explain a warning."""
        known = [one.severity for one in (self.finding, *self.symptoms)]
        return min(known, key=_rank)


def folded(findings: Iterable[TrainingFinding]) -> tuple[Cause, ...]:
    """Return the causes, the worst first, each with its symptoms; every finding is in one of them.

    A finding follows from another if the other's rule names its code (``Rule.explains``), it began
    no earlier, and it concerns the same parameters. If there are several causes, it belongs to the
    worst. An info explains no error.
    """
    ordered = sorted(findings, key=_weight)
    able = [one for one in ordered if any(_explained_codes().get(one.code, ()))]
    parents = {
        id(one): next((other for other in able if _follows(one, other)), None) for one in ordered
    }
    symptoms: dict[int, list[TrainingFinding]] = {}
    for one in ordered:
        symptoms.setdefault(id(_root(one, parents)), []).append(one)
    causes = [
        Cause(one, tuple(other for other in symptoms[id(one)] if other is not one))
        for one in ordered
        if id(one) in symptoms
    ]
    return tuple(sorted(causes, key=lambda one: _rank(one.severity)))


def explanations(findings: Iterable[TrainingFinding]) -> dict[int, TrainingFinding]:
    """Return the cause of each finding that follows from another, by identity."""
    return {id(symptom): cause.finding for cause in folded(findings) for symptom in cause.symptoms}


def is_exact(found: TrainingFinding) -> bool:
    """Return True if the finding was read at every step, so that it needs no samples."""
    return found.origin is not None or found.code in _of_every_step()


def _weight(found: TrainingFinding) -> tuple[int, bool, int, str, str]:
    """Return the sort key of causes: the worst first; then facts of every step, then by first
    step.
    """
    return _rank(found.severity), not is_exact(found), _first(found), found.code, found.name


def _rank(severity: str) -> int:
    """Return the place of a severity, the worst first; an unknown one is last."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _root(found: TrainingFinding, parents: dict[int, TrainingFinding | None]) -> TrainingFinding:
    """Return the first cause of a finding."""
    seen = {id(found)}
    while (parent := parents[id(found)]) is not None and id(parent) not in seen:
        seen.add(id(parent))
        found = parent
    return found


def _follows(symptom: TrainingFinding, cause: TrainingFinding) -> bool:
    codes, later, by_cause = _explained_codes()[cause.code]
    steps = _first(symptom) - _first(cause)
    grown = dict(by_cause).get(cause.cause or "", ())
    return (
        symptom.code != cause.code
        and (
            (symptom.code.startswith(codes) and steps >= 0)
            or (symptom.code in later and steps > 0)
            or (symptom.code in grown and steps >= 0 and _is_of(symptom, cause))
        )
        and not (cause.severity == "info" and symptom.severity == "error")
        and _same_place(symptom, cause)
    )


#: The largest of the numbers that made a NaN or Inf, from which they had grown in the run.
_GROWN = 1e6


def _is_of(symptom: TrainingFinding, cause: TrainingFinding) -> bool:
    """Return True if a finding concerns what this cause of its rule does: a NaN or Inf must come
    from numbers that had grown, and, if the cause concerns a part of the run, it says not whose.
    """
    if symptom.code != "GS301":
        return True
    inputs = () if symptom.origin is None else symptom.origin.inputs
    sizes = [abs(end) for one in inputs for end in (one.min, one.max) if end is not None]
    return cause.parameters is None and max(sizes, default=0.0) >= _GROWN


def _same_place(symptom: TrainingFinding, cause: TrainingFinding) -> bool:
    """Return True if the cause concerns every parameter or module of the symptom."""
    if None not in (symptom.model, cause.model) and symptom.model != cause.model:
        return False
    concerned = cause.parameters
    if concerned is None:
        return True
    if symptom.parameters is not None:
        return set(symptom.parameters) <= set(concerned)
    if symptom.model is None:  # of the run, or of an optimizer
        return symptom.name in ("", RUN, cause.name)
    return _holds([name for model, name in concerned if model == symptom.model], symptom.name)


def _holds(parameters: Sequence[str], name: str) -> bool:
    """Return True if a parameter or a module is in the list, or contains one of it."""
    inside = f"{name}." if name else ""
    return any(one == name or one.startswith(inside) for one in parameters)


def _first(found: TrainingFinding) -> int:
    return min((first for first, _ in found.steps), default=1)


_Explained = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]


@functools.cache
def _explained_codes() -> dict[str, _Explained]:
    """Return by code the codes, or beginnings of codes, that the rule explains, those that it
    explains at later steps, and those that it explains with a cause."""
    return {
        one.code: (one.explains, one.explains_later, one.explains_as)
        for one in (entry.rule for entry in entries())
    }


@functools.cache
def _of_every_step() -> frozenset[str]:
    """Return the codes of rules that read every step of a run: the loop, or the metrics."""
    runs = {one.rule.code: one.rule.runs for one in entries()}
    return frozenset(
        code for code, one in runs.items() if one is not None and (one.loop or one.over_steps)
    )
