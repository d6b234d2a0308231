"""Formats of a training run, for a ``RunHistory`` and the ``View`` that reports take.

The document says how the run went: step metrics, findings, events, and layers over steps. CSV has a
row for each step, or for each layer and sampled step; JSON has each step's measurements in columns.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.text import Text

from gradscope.pages import Part
from gradscope.plugins import Format
from gradscope.records.answers import Explanation
from gradscope.records.data import to_data, to_line
from gradscope.records.tensors import MEASURES, NormSeries, merged_table, number_or_none, steps_lost
from gradscope.records.training import LayerSeries, RunHistory, TrainingFinding, TrainingStep
from gradscope.records.transformer import MEASURES as PARTS_MEASURES
from gradscope.records.transformer import PROBES, TransformerSeries
from gradscope.reporters.check import of_checks
from gradscope.reporters.document import Block, Document, Found, Nothing, Prose, formats, texts
from gradscope.reporters.finding_lines import ordered
from gradscope.reporters.run import findings, layers, qualified, step_metrics, steps, summary
from gradscope.reporters.run.findings import as_check
from gradscope.reporters.tables.transformer import NOTHING, PARTS
from gradscope.reporters.views import View
from gradscope.rules import explanations
from gradscope.typeset.text import Field, csv_table


def document(history: RunHistory, view: View, format: str) -> Document:
    """Return the document of a run by the view; ``view.table`` selects a single table."""
    history = qualified(history)
    return Document(
        "run",
        summary.facts(history),
        list(summary.notes(history)),
        list(_page(history, view) if format == "html" else _text(history, view, format)),
        history.run.versions,
        end=summary.end(history),
    )


def page(history: RunHistory, view: View) -> list[Text]:
    """Return the lines of the page in a terminal."""
    return texts(document(history, view, "terminal"), view.width)


def _text(history: RunHistory, view: View, format: str) -> Iterator[Block]:
    wanted = view.tables
    if not wanted:
        width = view.width if format == "terminal" else None
        yield step_metrics.table(history, width) or Nothing("no step was completed")
    if "steps" in wanted:
        yield steps.table(history, view) or Nothing("no step was completed")
    if not wanted or "findings" in wanted:
        yield from _findings(history)
    if not wanted or "events" in wanted:
        yield from _events(history, view, full=bool(wanted))
    for name in ("parameters", "updates", "calls", *PROBES):
        if name in wanted or (not wanted and name == "parameters"):
            yield from _layers(history, name, view)


def _page(history: RunHistory, view: View) -> Iterator[Block]:
    wanted = view.tables
    if not wanted or "findings" in wanted:
        yield from _findings(history)
    if not wanted:
        table = step_metrics.table(history, None)
        if table:
            yield Part("step metrics", table.caption, panels=step_metrics.panels(history))
            yield Part("step metrics in figures", table=table, remarks=table.legend)
        drawn = tuple(step_metrics.maps(history))
        if drawn:
            yield Part("layers over steps", "click a row for the layer's figures", maps=drawn)
    if "steps" in wanted:
        yield steps.table(history, view) or Nothing("no step was completed")
    if not wanted or "events" in wanted:
        yield from _events(history, view, full=True)
    for name in ("parameters", "updates", "calls", *PROBES):
        if name in wanted or (not wanted and name != "updates" and getattr(history, name)):
            yield from _layers(history, name, view)


def _findings(history: RunHistory) -> Iterator[Block]:
    found, known = findings.with_steps(history)
    yield Found(found, known)
    yield Prose(tuple(findings.verdict(history)), "findings")


def _events(history: RunHistory, view: View, *, full: bool) -> Iterator[Block]:
    if history.events:
        option = view.option("--table events")
        lines = findings.event_lines(history.events, full=full, option=option)
        yield Prose(tuple(lines), "events", titled=True, listed=True)
    elif "events" in view.tables:
        yield Nothing("no events", "events")


def _layers(history: RunHistory, name: str, view: View) -> Iterator[Block]:
    """Return a table of layers; if none were recorded and the table was requested, a sentence that
    says so."""
    table = layers.table(history, name, view)
    if table:
        yield table
    elif name in view.tables:
        reasons = tuple(summary.without_calls(history)) if name == "calls" else ()
        yield Nothing(NOTHING.get(name, f"no {name} were recorded"), reasons=reasons)


FINDING_COLUMNS = (
    *("model", "severity", "code", "rule", "name", "call", "first_step", "last_step", "steps"),
    *("message", "value", "threshold", "source", "cause", "location", "advice", "origin"),
    "explained_by",
)
_EVENTS = ("step", "time", "kind", "message")


TABLES = ("steps", "parameters", "calls", *PROBES, "findings", "events")
Table = tuple[Sequence[str], Iterable[Sequence[Field]]]


def _csv(history: RunHistory, view: View) -> str:
    """Return one table: the steps, unless the view asks for another."""
    return csv_table(*table(history, view))


def table(history: RunHistory, view: View) -> Table:
    """Return the header and the rows."""
    names = {model.id: model.name or model.type for model in history.models}
    if view.table == "findings":
        return FINDING_COLUMNS, _finding_rows(history, names)
    if view.table == "events":
        return _EVENTS, ([e.step, e.time, e.kind, e.message] for e in history.events)
    if view.table in ("parameters", "updates"):
        return _series_rows(history.parameters, ("name",), names)
    if view.table == "calls":
        return _series_rows(history.calls, ("name", "call"), names)
    if view.table in PROBES:
        return _transformer(getattr(history, view.table), view.table, names)
    return steps.records(history, view)


def _transformer(series: Sequence[TransformerSeries], kind: str, names: dict[int, str]) -> Table:
    """Return a row for each head, expert or block, and each step."""
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


def _series_rows(series: Sequence[LayerSeries], key: Sequence[str], names: dict[int, str]) -> Table:
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


def _finding_rows(history: RunHistory, names: dict[int, str]) -> Iterator[list[Field]]:
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


#: The step metrics, a column each, in the order of the steps.
METRICS = (
    *("step", "optimizer", "optimizer_step", "time", "seconds", "loss", "losses", "summed"),
    *("nonfinite", "gradient_norm", "clipped_norm", "learning_rates", "loss_scale", "sampled"),
    "update_rms",
)


def _json(history: RunHistory, view: View) -> str:
    """Return the full run, whatever the view selects."""
    run = history.run
    head = {
        "schema": run.schema,
        "status": status(history),
        "judged": list(history.judgement.judged),
        "not_judged": to_data(history.judgement.not_judged),
        "run": to_data(run),
        "ranks": to_data(history.ranks),
        "models": to_data(history.models),
        "sampled": list(history.sampled),
    }
    body = [f"{json.dumps(key)}: {to_line(value)}" for key, value in head.items()]
    body.append(_block("step_metrics", _metrics(history.steps), "{}"))
    for key, series in (("parameters", history.parameters), ("calls", history.calls)):
        body.append(_block(key, map(_series, series), "[]"))
    for key in PROBES:
        body.append(_block(key, map(_parts, getattr(history, key)), "[]"))
    explained = explanations(history.findings)
    found = (_finding(one, explained.get(id(one))) for one in history.findings)
    body.append(_block("findings", found, "[]"))
    body.append(_block("events", map(to_line, history.events), "[]"))
    return "{\n " + ",\n ".join(body) + "\n}\n"


def status(history: RunHistory) -> str:
    """Return ``failed`` if the script failed, else ``findings`` or ``ok``."""
    ended = history.run.ended is not None
    if ended and (history.run.exit or "0").strip() != "0":
        return "failed"
    return "findings" if history.findings else "ok"


def _block(key: str, lines: Iterator[str], brackets: str) -> str:
    """Return one line per item: a run has many steps, and indented JSON would have a line per
    number."""
    inner = ",\n  ".join(lines)
    items = f"{brackets[0]}\n  {inner}\n {brackets[1]}" if inner else brackets
    return f"{json.dumps(key)}: {items}"


def _metrics(steps: Sequence[TrainingStep]) -> Iterator[str]:
    for name in METRICS:
        yield f"{json.dumps(name)}: {to_line([getattr(step, name) for step in steps])}"


def _finding(found: TrainingFinding, cause: TrainingFinding | None) -> str:
    """Return a finding as in reports, the run's facts on it, and its cause."""
    origin = None if found.origin is None else to_data(found.origin)
    data = {**to_data(found.finding), "model": found.model, "steps": found.steps, "origin": origin}
    if found.parameters is not None:
        data["parameters"] = found.parameters
    if cause is not None:
        data["explained_by"] = to_data(Explanation(cause.code, cause.name))
    return to_line(data)


def _series(series: LayerSeries) -> str:
    data: dict[str, Any] = {"model": series.model, "name": series.name}
    if series.call is None:
        data["shape"] = series.shape
    else:
        data |= {"call": series.call, "type": next(iter(series.types), None)}
    data |= {"steps": series.steps, "values": series.values}
    if series.lowest:
        data |= {"lowest": series.lowest, "highest": series.highest}
    if series.norms is not None:
        data["norms"] = _norms(series.norms)
    return to_line(data)


def _parts(series: TransformerSeries) -> str:
    """Return the lists of each head or expert, over the steps."""
    data = {"model": series.model, "name": series.name, "call": series.call}
    if series.part:
        data["part"] = series.part
    return to_line({**data, "steps": series.steps, "values": series.values})


def _norms(norms: NormSeries) -> dict[str, Any]:
    """Return the norms at every step that has a finite gradient."""
    return {
        "steps": list(norms.steps),
        "grad_norm": _short(norms.gradient),
        "clipped_norm": _short(norms.clipped),
        "nonfinite": steps_lost(norms.steps, norms.gradient),
        "value_steps": list(norms.value_steps),
        "value_norm": _short(norms.value),
    }


def _short(norms: array[float]) -> list[float | None]:
    """Return the norms without digits beyond float32."""
    known = map(number_or_none, norms)
    if norms.typecode != "f":
        return list(known)
    return [None if norm is None else float(f"{norm:.9g}") for norm in known]


#: Formats for findings only treat a run as a check.
FORMATS = {
    **formats(document, "html", "markdown", "terminal"),
    **of_checks(as_check),
    "csv": Format(".csv", _csv),
    "json": Format(".json", _json),
}
