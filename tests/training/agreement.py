"""Comparison of a training's run file with the tracer's record of another run of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from gradscope.records.tensors import number_or_none
from gradscope.records.training import StepSample, TrainedModel, TrainingStep
from gradscope.runfile.reader import RunFile

TOLERANCE = 1e-5


def disagreements(run: RunFile, traced: dict[str, Any]) -> list[str]:
    """Return the differences in steps 1, 2, 5 and the last."""
    expected = traced["steps"]
    steps = run.steps()
    found = [] if len(steps) == len(expected) else [f"{len(steps)} steps, not {len(expected)}"]
    skipped = sum(event.kind == "skipped-step" for event in run.events)
    if skipped != traced["skipped"]:
        found.append(f"{skipped} skipped steps, not {traced['skipped']}")
    looked_at = {1, 2, 5, len(expected)}
    models = {model.id: model for model in run.models}
    norms = _norms(run, models)
    for step, theirs in zip(steps, expected, strict=False):
        found += [f"step {step.step}: {words}" for words in _of_norms(step.step, norms, theirs)]
        if step.step in looked_at:
            found += [f"step {step.step}: {words}" for words in _of_step(step, theirs)]
            found += [
                f"step {step.step}: {words}"
                for words in _of_parameters(run.sample(step.step), models, theirs)
            ]
    return found


def _of_step(step: TrainingStep, theirs: dict[str, Any]) -> Iterable[str]:
    # Of several of one name, those after the first have a number.
    if step.optimizer.partition("#")[0] not in (theirs["optimizer"] or [""]):
        yield f"optimizer {step.optimizer!r}, not one of {theirs['optimizer']}"
    yield from _sequence("losses", step.losses, theirs["losses"])
    yield from _sequence("learning rates", step.learning_rates, theirs["learning_rates"])
    yield from _number("gradient norm", step.gradient_norm, theirs["gradient_norm"])
    if theirs["optimizer"]:
        yield from _number("clipped norm", step.clipped_norm, theirs["clipped_norm"])


def _of_parameters(
    samples: Sequence[StepSample], models: dict[int, TrainedModel], theirs: dict[str, Any]
) -> Iterable[str]:
    """Each parameter of the tracer's under one of the names that it may have."""
    ours = {}
    for sample in samples:
        for p in sample.report.parameters:
            for name in (p.name, *p.aliases):
                # Several of one name are numbered.
                model = re.sub(r"#\d+$", "", models[sample.model].name)
                ours[model, name] = (p, sample)
    for row in theirs["parameters"]:
        hits = [ours[model, name] for model, name in row["names"] if (model, name) in ours]
        if not hits:
            yield f"no parameter by one of the names {row['names']}; there are {sorted(ours)[:6]}"
            continue
        parameter, sample = hits[0]
        gradient = None if parameter.gradient is None else parameter.gradient.norm
        yield from _number(f"gradient norm of {parameter.name}", gradient, row["grad_norm"])
        if theirs["optimizer"]:
            ratio, expected = parameter.update_ratio, row["update_ratio"]
            yield from _number(f"update ratio of {parameter.name}", ratio, expected)
            clipped = sample.clipped.get(parameter.name, gradient)
            yield from _number(f"clipped norm of {parameter.name}", clipped, row["clipped_norm"])


def _norms(
    run: RunFile, models: dict[int, TrainedModel]
) -> dict[tuple[str, str], dict[str, dict[int, float | None]]]:
    """By model and parameter, what was read of it at every step."""
    found = {}
    for (model, name), one in run.norm_series().items():
        key = re.sub(r"#\d+$", "", models[model].name), name
        of = found.setdefault(key, {"grad_norm": {}, "clipped_norm": {}})
        for measure, by_step in of.items():
            by_step.update(zip(*one.of(measure), strict=True))
    return found


def _of_norms(
    step: int,
    norms: dict[tuple[str, str], dict[str, dict[int, float | None]]],
    theirs: dict[str, Any],
) -> Iterable[str]:
    """The norms of each parameter, under the first of its names that has any in this step."""
    for row in theirs["parameters"]:
        known = [norms[tuple(name)] for name in row["names"] if tuple(name) in norms]
        for measure in ("grad_norm", "clipped_norm"):
            read = [of[measure][step] for of in known if step in of[measure]]
            if measure == "grad_norm" or theirs["optimizer"]:
                ours = number_or_none(read[0]) if read else None
                yield from _number(f"{measure} that was read of {row['names']}", ours, row[measure])


def _sequence(
    what: str, ours: Sequence[float | None], theirs: Sequence[float | str | None]
) -> Iterable[str]:
    if len(ours) != len(theirs):
        yield f"{len(ours)} {what}, not {len(theirs)}: {ours}, not {theirs}"
        return
    for one, other in zip(ours, theirs, strict=True):
        yield from _number(what, one, other)


def _number(what: str, ours: float | None, theirs: float | str | None) -> Iterable[str]:
    """NaN and Inf are words to the tracer, and nothing to a run file."""
    if isinstance(theirs, float | int):
        if ours is None or not math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=1e-12):
            yield f"{what} {ours}, not {theirs}"
    elif ours is not None:
        yield f"{what} {ours}, not {theirs}"
