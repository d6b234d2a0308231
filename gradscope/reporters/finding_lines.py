"""Writes findings and errors as sentences: worst first, similar ones folded, each with its place.

Every format for people takes them from here; formats for machines take the severities' order, and
the identity of a finding across runs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from gradscope.records.report import Finding
from gradscope.records.run import ErrorRecord, RelatedLine, RunInfo
from gradscope.reporters.header import TONES, label
from gradscope.rules import SEVERITIES
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, number, plural, shape
from gradscope.typeset.text import plain

_FIGURE = re.compile(r"(?<![\w.])-?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


def fingerprint(finding: Finding, run: RunInfo) -> str:
    """Return an id of the finding that stays equal over time, whatever its figures."""
    model = run.model if run.file is None else PurePath(run.file).as_posix()
    cause = without_figures(finding.cause) or ""
    parts = (model, finding.code, finding.name, str(finding.call or 0), cause)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def without_figures(cause: str | None) -> str | None:
    """Return a cause with a mark in place of each number, because numbers differ between runs:
    ``log of -1e-09``."""
    return None if cause is None else _FIGURE.sub("#", cause)


#: Up to this many similar findings are each shown; of more, only the first is shown.
_EACH = 2


@dataclass(frozen=True, slots=True)
class SimilarFindings:
    """A finding, and the findings that say the same about other names."""

    first: Finding
    more: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Beside:
    """Holds a record's additions to a finding: its steps, and further lines.

    ``symptoms`` are lines on findings that follow from it, and ``names`` the rows that they
    concern.
    """

    when: str = ""
    details: tuple[Line, ...] = ()
    symptoms: tuple[Line, ...] = ()
    names: tuple[str, ...] = ()


Known = Callable[[Finding], Beside]


def nothing(finding: Finding) -> Beside:
    """Return no further facts: a report has one step."""
    return Beside()


def every_line(findings: Sequence[Finding], known: Known = nothing) -> Iterator[Line]:
    """Yield all findings, similar ones together."""
    for group in grouped(findings, known):
        yield from lines(group, known)


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Sort the worst first; equals keep their order."""
    return sorted(findings, key=lambda finding: _weight(finding.severity))


def grouped(findings: Sequence[Finding], known: Known = nothing) -> list[SimilarFindings]:
    """Return the findings in order, similar ones together: only names and figures differ.

    A finding with details or symptoms in the record stays alone.
    """
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for finding in ordered(findings):
        beside = known(finding)
        alone = id(finding) if beside.details or beside.symptoms else None
        alike.setdefault((*_kind(finding), alone), []).append(finding)
    groups = []
    for members in alike.values():
        if len(members) > _EACH:
            groups.append(SimilarFindings(members[0], tuple(members[1:])))
        else:
            groups += [SimilarFindings(member) for member in members]
    return groups


def lines(group: SimilarFindings, known: Known = nothing) -> Iterator[Line]:
    """Yield the sentence, then, one step in: place and figures, the remedy, and similar names."""
    finding = group.first
    tone = TONES.get(finding.severity, "")
    yield Line(f"{place(finding)}: {plain(finding.message)}", lead(finding, known), tone)
    figures = facts(finding)
    if figures:
        yield Line(" · ".join(figures), indent=1)
    yield from known(finding).details
    if finding.advice:
        yield Line(plain(finding.advice), "help:", indent=1)
    if group.more:
        yield Line(also(group, known), indent=1)
    yield from known(finding).symptoms


def lead(finding: Finding, known: Known = nothing) -> str:
    """Return severity, code, rule and time of a finding, before its place."""
    parts = (finding.severity, finding.code, finding.rule, known(finding).when)
    return " ".join(plain(part) for part in parts if part)


def place(finding: Finding) -> str:
    """Return the layer or parameter as a reader sees it."""
    return label(finding.name, finding.call)


def facts(finding: Finding) -> list[str]:
    """Yield the lines of the script, the measured value, and its threshold.

    A value without a threshold is in the message already.
    """
    known = places(finding)
    if finding.value is not None and finding.threshold is not None:
        held = f"measured {figure(finding.value)}, threshold {finding.threshold:.6g}"
        known.append(held + (f" ({plain(finding.source)})" if finding.source else ""))
    return known


def places(finding: Finding) -> list[str]:
    """Return the line of the fault, and the line that made its subject, if that is another."""
    found = [f"at {plain(finding.location)}"] if finding.location else []
    if finding.made and finding.made != finding.location:
        found.append(plain(made_at(finding)))
    return found


def made_at(finding: Finding) -> str:
    """Return the place in words where the layer or the parameter was made."""
    return f"`{finding.name}` is made at {finding.made}"


def also(group: SimilarFindings, known: Known = nothing) -> str:
    """Return ``and 12 more like it: …``, with every name, and its line and steps if they differ."""
    places = []
    for finding in group.more:
        line, held = finding.location or "", known(finding).when
        further = [plain(line)] if line and line != group.first.location else []
        further += [plain(held)] if held and held != known(group.first).when else []
        places.append(place(finding) + (f" ({', '.join(further)})" if further else ""))
    return f"and {count(len(places))} more like it: {', '.join(places)}"


def figure(x: float) -> str:
    """Format a measured value; small integers as integers."""
    return count(int(x)) if float(x).is_integer() and abs(x) < 1e6 else number(x)


def tally(findings: Sequence[Finding]) -> list[str]:
    """Return the number of findings by severity, without zeros: ``2 errors``, ``1 warning``."""
    many = {"error": "errors", "warning": "warnings"}
    found = [finding.severity for finding in findings]
    others = sorted({plain(severity) for severity in found} - set(SEVERITIES))
    return [
        plural(found.count(severity), severity, many.get(severity, severity))
        for severity in (*SEVERITIES, *others)
        if severity in found
    ]


def _weight(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _kind(finding: Finding) -> tuple[object, ...]:
    """Return the key that alike findings share; names and figures in the advice are left out."""
    advice = finding.advice.replace(f"`{finding.name}`", "")
    return (
        *(finding.severity, finding.code, finding.rule, without_figures(finding.cause)),
        finding.source,
        re.sub(r"\d+", "", advice),
    )


def error_lines(error: ErrorRecord | None) -> list[Line]:
    """Return all facts of an error as lines; none without an error."""
    if error is None:
        return []
    where = f" of {label(error.name, error.call)}" if error.name is not None else ""
    # A model error has no better name: the message says what happened.
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
        tensors = ", ".join(f"{shape(stats.shape)} {plain(stats.dtype)}" for stats in error.inputs)
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
    """Return a place in the user's code, and below it the line of code."""
    lines = [Line(plain(place), plain(role), indent=1)]
    return [*lines, Line(plain(code.strip()), indent=2)] if code else lines


def _whose(one: RelatedLine) -> str:
    return f" in {label(one.name, one.call)}" if one.name is not None else ""


def _messages(error: ErrorRecord) -> list[str]:
    """Return the message's lines, and the exception's lines if they say something else."""
    message, raised = error.message, error.exception
    if raised and message in raised:
        message = raised
    elif raised and raised not in message:
        named = raised.isidentifier()
        message = f"{raised}: {message}" if named else f"{message}\n{raised}"
    return [line for line in message.splitlines() if line.strip()]
