"""A training run as strict JSON: the records, and each step's measurements in columns."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from gradscope.records.answers import Explanation
from gradscope.records.data import to_data, to_line
from gradscope.records.tensors import NormSeries, number_or_none, steps_lost
from gradscope.records.training import LayerSeries, RunHistory, TrainingFinding, TrainingStep
from gradscope.records.transformer import PROBES, TransformerSeries
from gradscope.reporters.views import View
from gradscope.rules import explanations

suffix = ".json"

#: The step metrics, a column each, in the order of the steps.
METRICS = (
    *("step", "optimizer", "optimizer_step", "time", "seconds", "loss", "losses", "summed"),
    *("nonfinite", "gradient_norm", "clipped_norm", "learning_rates", "loss_scale", "sampled"),
    "update_rms",
)


def render(history: RunHistory, view: View) -> str:
    """The full run, whatever the view selects."""
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
    """``failed`` where the script was, else ``findings`` or ``ok``."""
    ended = history.run.ended is not None
    if ended and (history.run.exit or "0").strip() != "0":
        return "failed"
    return "findings" if history.findings else "ok"


def _block(key: str, lines: Iterator[str], brackets: str) -> str:
    """A line for each item: a run has many steps, and an indented list a line for each of them."""
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
    """The norms at every step that has a finite gradient."""
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
