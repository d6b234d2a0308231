"""Document of ``why``: each cause once, with the parameters that it concerns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradscope.records.answers import Answer, Explanation, Judgement, WhyReport
from gradscope.reporters.document import Block, Document, Entries, Entry, Prose, formats
from gradscope.reporters.finding_lines import without_figures
from gradscope.reporters.header import (
    TONES,
    loss_facts,
    notes,
    precision,
    run_facts,
    some_names,
    stretches,
)
from gradscope.reporters.verdict import NOTHING_RECORDED, no_problem, not_enough
from gradscope.reporters.views import TextView
from gradscope.rules import severity
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain

#: Number of names shown for an answer's parameters, and of places shown for similar answers.
_NAMES = 4


@dataclass(frozen=True, slots=True)
class Alike:
    """Answers with one cause, at one line of code that several modules run.

    For a finding of a training run, ``symptoms`` are the findings that follow from it.
    """

    answers: tuple[Answer, ...]
    symptoms: tuple[Alike, ...] = ()

    @property
    def first(self) -> Answer:
        """The answer that is shown in full."""
        return self.answers[0]


def facts(report: WhyReport) -> list[str]:
    """Return the facts of the run: model, device, dtype."""
    if report.scope:
        run = report.run
        known = (fact for fact in (run.device, precision(run)) if fact != "unknown")
        return [plain(run.model), *map(plain, known)]
    return run_facts(report.run) + loss_facts(report.run)


def alike(report: WhyReport) -> list[Alike]:
    """Return the answers with problems; answers that differ only in their module are one.

    An answer that follows from another is listed with that one, unless the user asked for its name.
    """
    if report.named:
        return _grouped(report.answers)
    causes = [one for one in report.answers if one.explained_by is None]
    return [replace(group, symptoms=_symptoms(group, report)) for group in _grouped(causes)]


def _symptoms(group: Alike, report: WhyReport) -> tuple[Alike, ...]:
    causes = {Explanation(one.code, one.name) for one in group.answers if one.code}
    return tuple(_grouped([one for one in report.answers if one.explained_by in causes]))


def _grouped(answers: Sequence[Answer]) -> list[Alike]:
    groups: dict[object, list[Answer]] = {}
    for answer in answers:
        key: object = (answer.state, answer.cause, answer.location, answer.recovers)
        if answer.steps:
            cause = without_figures(answer.cause)
            key = (answer.state, cause, answer.location, answer.steps, answer.advice)
        elif answer.location is None or answer.cause is None or is_well(answer):
            key = id(answer)
        groups.setdefault(key, []).append(answer)
    return [Alike(tuple(answers)) for answers in groups.values()]


def answer_lines(group: Alike) -> Iterator[Line]:
    """Yield one cause: its names, its kind, its place, its fix."""
    answer = group.first
    names = answer.upstream or (answer.name,)
    if is_well(answer) and answer.cause is None:
        name = plain(answer.name) or "the model"
        healthy = answer.state == "healthy"
        lead = f"{name}: healthy," if healthy else f"{name}:"
        yield Line(plain(answer.message), lead, "good" if healthy else "")
        return
    yield Line(some_names(names, _NAMES), _lead(answer), TONES.get(severity(answer) or "", ""))
    yield Line(plain(answer.message), indent=1)
    yield from _where(group, names)
    if answer.explained_by is not None:
        cause = answer.explained_by
        yield Line(f"{plain(cause.code)} {plain(cause.name)}".rstrip(), "follows from", indent=1)
    if answer.advice:
        yield Line(plain(answer.advice), "help:", indent=1)
    for symptom in group.symptoms:
        first = symptom.first
        whom = some_names((one.name for one in symptom.answers), _NAMES)
        text = f"{whom}: {plain(first.message)}" if whom else plain(first.message)
        yield Line(text, f"symptom: {_lead(first)}", indent=1)


def _lead(answer: Answer) -> str:
    """Return the start of an answer's line: state, cause, and steps."""
    lead = f"{answer.state}, {answer.cause}:" if answer.cause else f"{answer.state}:"
    if answer.cause in ("frozen", "misspelt"):
        lead = "frozen:" if answer.state == "missing" else "not frozen:"
    if answer.steps:
        lead = f"{lead[:-1]}, {stretches(answer.steps)}:"
    return plain(lead)


def _where(group: Alike, names: Sequence[str]) -> Iterator[Line]:
    answer = group.first
    where = []
    if answer.module is not None:
        call = f", call {answer.call}" if answer.call else ""
        where.append(f"in {plain(answer.module) or 'the model'}{call}")
    if answer.location and answer.location not in answer.message:
        where.append(f"at {plain(answer.location)}")
    alone = (
        bool(answer.steps)
        or answer.kind != "parameter"
        or (answer.cause in (None, "frozen", "misspelt") and len(names) == 1)
    )
    upstream = [] if alone else [f"{plural(len(names), 'parameter')} upstream"]
    if where or upstream:
        yield Line("; ".join(where + upstream), "where:" if where else "", indent=1)
    others = group.answers[1:]
    if others:
        if answer.steps:
            yield Line(some_names((one.name for one in others), _NAMES), "the same of", indent=1)
            return
        places = some_names((one.module or "the model" for one in others), _NAMES)
        more = sum(len(other.upstream or (other.name,)) for other in others)
        yield Line(f"{places}; {plural(more, 'parameter')} more", "the same in", indent=1)


def conclusion(report: WhyReport) -> Iterator[Line]:
    """Yield the number of checked parameters, and the outcome."""
    if report.scope:
        yield from _over_steps(report)
        return
    if report.error is not None and not report.checked:
        return
    frozen = f"; {plural(report.frozen, 'parameter')} frozen" if report.frozen else ""
    bad = {
        name
        for answer in report.answers
        if severity(answer) and not is_well(answer) and answer.kind == "parameter"
        for name in answer.upstream or (answer.name,)
    }
    if not report.checked:
        yield Line(f"no trainable parameter{frozen}", "nothing to check:")
    elif not any(severity(answer) for answer in report.answers):
        every = f"{report.checked} trainable parameters"
        whom = "the trainable parameter gets" if report.checked == 1 else f"all {every} get"
        if any(map(is_well, report.answers)):
            yield Line(f"{plural(report.checked, 'trainable parameter')} checked{frozen}")
            return
        checked = "none is missing, all zeros, NaN or Inf"
        if report.run.device == "meta":
            checked = "none is missing; on `meta` there are only shapes"
        # A gradient from this loss does not prove one from the loss of training.
        stand_in = report.run.loss_inferred and report.run.loss == "sum"
        start = "the sum of the output (a stand-in for the loss)" if stand_in else "the loss"
        yield Line(
            f"{whom} a gradient from {start}; {checked}{frozen}",
            "healthy:",
            "good",
        )
    else:
        yield Line(
            f"{plural(report.checked, 'trainable parameter')} checked, {len(bad)} of them without "
            f"a useful gradient{frozen}"
        )


def _over_steps(report: WhyReport) -> Iterator[Line]:
    """Yield lines on a training run: its findings, and the rules that could not judge."""
    whom = plural(report.checked, "parameter")
    bad = [answer for answer in report.answers if severity(answer) is not None]
    found, symptoms = len(bad), sum(one.explained_by is not None for one in bad)
    judged = Judgement(report.judged or (), report.not_judged)
    scope = plain(report.scope or "")
    if not report.run.steps:
        yield NOTHING_RECORDED
        return
    if found:
        causes = f" of {plural(found - symptoms, 'cause')}" if symptoms else ""
        yield Line(f"{plural(found, 'finding')}{causes} in {whom} {scope}")
    else:
        yield from no_problem(judged, f"in {whom} {scope}" if report.checked else scope)
    yield from not_enough(judged)


def is_well(answer: Answer) -> bool:
    """Return True for an answer without a problem, by all rules or by those that could judge."""
    return answer.state in ("healthy", "not-judged")


def document(report: WhyReport, view: TextView, format: str) -> Document:
    """Return the document: the error, if there was one, and the answers."""
    entries = [
        Entry(
            tuple(answer_lines(group)),
            group.first.location,
            brief=is_well(group.first) and group.first.cause is None,
        )
        for group in alike(report)
    ]
    blocks: list[Block] = [
        *filter(None, [report.error]),
        Entries(entries, "answers"),
        Prose(tuple(conclusion(report)), "answers"),
    ]
    name = facts(report)
    heading = f"why: {name[0]}"
    return Document(
        "why", [name], notes(report.run.notices), blocks, report.versions, heading=heading
    )


FORMATS = formats(document)
