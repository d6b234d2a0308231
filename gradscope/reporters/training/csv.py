"""A training run as RFC 4180: a row for each step; or for each layer and sampled step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gradscope.records.tensors import MEASURES, merged_table
from gradscope.records.training import LayerSeries, RunHistory
from gradscope.records.transformer import MEASURES as PARTS_MEASURES
from gradscope.records.transformer import PROBES, TransformerSeries
from gradscope.reporters.finding_lines import ordered
from gradscope.reporters.run import steps
from gradscope.reporters.tables.transformer import PARTS
from gradscope.reporters.views import View
from gradscope.rules import explanations
from gradscope.typeset.text import Field, csv_table

suffix = ".csv"

FINDINGS = (
    *("model", "severity", "code", "rule", "name", "call", "first_step", "last_step", "steps"),
    *("message", "value", "threshold", "source", "cause", "location", "advice", "origin"),
    "explained_by",
)
EVENTS = ("step", "time", "kind", "message")


TABLES = ("steps", "parameters", "calls", *PROBES, "findings", "events")
Table = tuple[Sequence[str], Iterable[Sequence[Field]]]


def render(history: RunHistory, view: View) -> str:
    """One table: the steps, unless the view asks for another."""
    return csv_table(*table(history, view))


def table(history: RunHistory, view: View) -> Table:
    """Return the header and the rows."""
    names = {model.id: model.name or model.type for model in history.models}
    if view.table == "findings":
        return FINDINGS, _findings(history, names)
    if view.table == "events":
        return EVENTS, ([e.step, e.time, e.kind, e.message] for e in history.events)
    if view.table in ("parameters", "updates"):
        return _layers(history.parameters, ("name",), names)
    if view.table == "calls":
        return _layers(history.calls, ("name", "call"), names)
    if view.table in PROBES:
        return _transformer(getattr(history, view.table), view.table, names)
    return steps.records(history, view)


def _transformer(series: Sequence[TransformerSeries], kind: str, names: dict[int, str]) -> Table:
    """A row for each head, expert or block, and each step."""
    part = PARTS.get(kind)

    def rows() -> Iterator[list[Field]]:
        for one in series:
            lead: list[Field] = [names.get(one.model, ""), one.name, one.call, one.part]
            for step, *figures in zip(one.steps, *one.values.values(), strict=True):
                count = max((len(x) for x in figures if isinstance(x, tuple)), default=1)
                for i in range(count):
                    own = [x[i] if isinstance(x, tuple) else x for x in figures]
                    yield [*lead, *([i] if part else []), step, *own]

    head = ("model", "name", "call", "part", *([part] if part else []), "step")
    return (*head, *PARTS_MEASURES[kind]), rows()


def _layers(series: Sequence[LayerSeries], key: Sequence[str], names: dict[int, str]) -> Table:
    read = MEASURES if any(one.norms is not None for one in series) else ()
    measures = list(dict.fromkeys((*(m for one in series for m in one.values), *read)))

    def rows() -> Iterator[list[Field]]:
        for one in series:
            numbers, values = merged_table(one.steps, one.values, one.norms)
            own: list[Field] = [names.get(one.model, ""), *(getattr(one, k) for k in key)]
            columns = [values.get(measure, (None,) * len(numbers)) for measure in measures]
            for step, *figures in zip(numbers, *columns, strict=True):
                yield [*own, step, *figures]

    return ("model", *key, "step", *measures), rows()


def _findings(history: RunHistory, names: dict[int, str]) -> Iterator[list[Field]]:
    by_finding = {id(found.finding): found for found in history.findings}
    explained = explanations(history.findings)
    for finding in ordered([found.finding for found in history.findings]):
        found = by_finding[id(finding)]
        cause = explained.get(id(found))
        ranges = " ".join(f"{a}-{b}" if a != b else str(a) for a, b in found.steps)
        ends = (found.steps[0][0], found.steps[-1][1]) if found.steps else (None, None)
        yield [
            "" if found.model is None else names.get(found.model, ""),
            *(finding.severity, finding.code, finding.rule, finding.name, finding.call),
            *(*ends, ranges, finding.message, finding.value, finding.threshold),
            *(finding.source, finding.cause, finding.location, finding.advice),
            found.origin.message if found.origin else None,
            f"{cause.code} {cause.name}".rstrip() if cause else None,
        ]
