"""TensorBoard's event file, by its own writer: a chart for each number of each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gradscope.records.training import TrainingStep
from gradscope.runfile.exports.csv import model_names, parameter_series
from gradscope.runfile.reader import RunFile, Series

packages = ("tensorboard",)
#: What the files are called that it leaves in the folder.
folder = "events.out.tfevents.*.gradscope"

_VITAL = ("loss", "gradient_norm", "clipped_norm", "learning_rate", "loss_scale", "seconds")


def write(run: RunFile, path: Path) -> None:
    """Fill the folder."""
    from torch.utils.tensorboard import SummaryWriter

    began, steps = run.run.started, run.steps()
    times = {one.step: began + one.time for one in steps}
    with SummaryWriter(str(path), filename_suffix=".gradscope") as writer:
        for tag, step, value in (*_step_metrics(steps), *_layers(run)):
            writer.add_scalar(tag, value, step, walltime=times.get(step, began))


def _step_metrics(steps: Sequence[TrainingStep]) -> Iterator[tuple[str, int, float]]:
    several = len({one.optimizer for one in steps}) > 1
    for one in steps:
        rate = one.learning_rates[0] if one.learning_rates else None
        for name in _VITAL:
            value = rate if name == "learning_rate" else getattr(one, name)
            if value is not None:
                yield f"step/{name}/{one.optimizer}" if several else f"step/{name}", one.step, value


def _layers(run: RunFile) -> Iterator[tuple[str, int, float]]:
    names = model_names(run)
    for (model, name, call), series in run.call_series().items():
        layer = f"{name}#{call}" if call else name
        yield from _scalars(f"{names.get(model, model)}/{layer}".rstrip("/"), series)
    for (model, name), series in parameter_series(run):
        yield from _scalars(f"{names.get(model, model)}/{name}", series)


def _scalars(name: str, series: Series) -> Iterator[tuple[str, int, float]]:
    for column, numbers in series.values.items():
        if column.endswith("nonfinite") and not any(numbers):
            continue  # thousands of charts of nothing
        for step, value in zip(series.steps, numbers, strict=True):
            if value is not None:
                yield f"{column}/{name}", step, value
