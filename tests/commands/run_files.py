"""Run files for the commands that read them: a run of two models, written as a run writes one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reporters.run_samples import step
from runfile.made import FINDINGS, MODELS, RUN, report

from gradscope.records.training import StepSample, TrainingEvent, TrainingFinding, TrainingRun
from gradscope.runfile.writer import RunWriter

STEPS, SAMPLED = 40, (1, 2, 3, 10, 20, 30)
ENDED = replace(
    RUN,
    ended=RUN.started + 8,
    exit="0",
    steps=STEPS,
    every=10,
    plain=0.01,
    sampled_seconds=0.02,
    cost=0.02,
)


def started(path: Path, run: TrainingRun = RUN) -> RunWriter:
    """A run that has begun, with its models."""
    writer = RunWriter(path, run)
    writer.add(*MODELS)
    return writer


def add_step(writer: RunWriter, number: int) -> None:
    """A step, and its samples where it is one of those that are looked at."""
    looked = number in SAMPLED
    samples = [
        StepSample(number, model, report(2, 3, seed=number + model)) for model in (0, 1) if looked
    ]
    writer.add(step(number, STEPS, sampled=looked, clipped_norm=None), *samples)


def written(path: Path, run: TrainingRun = ENDED, *findings: TrainingFinding) -> Path:
    """A run that has ended."""
    writer = started(path, replace(run, ended=None, exit=None))
    for number in range(1, STEPS + 1):
        add_step(writer, number)
    writer.add(
        TrainingEvent(7, 1.0, "skipped-step", "the gradient scaler skipped a step"), *findings
    )
    writer.finish(run)
    assert writer.failure is None
    return path


def with_findings(path: Path) -> Path:
    """A run that has ended, and in which something was found."""
    name = "layer1.conv"
    first, second = FINDINGS
    return written(
        path,
        ENDED,
        replace(first, finding=replace(first.finding, name=name)),
        replace(second, steps=((20, 40),)),
    )
