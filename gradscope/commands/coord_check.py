"""``gradscope coord-check``: which activations grow with the width?"""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.commands._findings import fail_on_option
from gradscope.commands._model import importing_torch, one_model
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    LayerOptions,
    ModelOptions,
    Words,
    format_option,
    option,
    takes_groups,
)
from gradscope.commands._running import running
from gradscope.commands._views import PlotOptions, choose_destination
from gradscope.config.width_scales import parse_scales, widths_of
from gradscope.errors import ModelError, refuse_unknown
from gradscope.rules import FAIL_ON, reaches

ROOM = "gradscope.reporters.coord_check"
EXAMPLES = (
    ("gradscope coord-check model.yaml --scale width=64,128,256,512", "Slopes of each layer."),
    (
        "gradscope coord-check model.yaml --scale width=64,128 --scale optimizer.lr=1e-3,5e-4",
        "A learning rate that depends on the width.",
    ),
    (
        "gradscope coord-check model.yaml --scale width=64,128,256 --plot coordinates.png",
        "The usual picture: RMS over width, a panel for each step.",
    ),
)


@takes_groups
def run(
    words: Words = None,
    *,
    scale: Annotated[
        list[str] | None,
        option(
            "KEY=VALUES",
            "The model's width: an argument of the model, or a dotted key of the config, with a "
            "value for each model. Repeatable for keys that change with it.",
        ),
    ] = None,
    steps: Annotated[int, option("N", "Steps of the optimizer.", min=1)] = 4,
    seeds: Annotated[int, option("N", "Initialisations at each width.", min=2)] = 3,
    model: ModelOptions,
    layers: LayerOptions,
    fail_on: Annotated[str, fail_on_option("a layer")] = "error",
    format: Annotated[str | None, format_option(ROOM)] = None,
    file: FileOptions,
    plots: PlotOptions,
    display: DisplayOptions,
) -> None:
    """Find the layers that grow or vanish with the width of a model, by the criteria of µP.

    The model is built at each width and trained for a few steps on one batch. For each layer it
    fits the slope of log RMS over log width, of the activation and of its change since the first
    step. If both slopes are 0, the best learning rate of a small width is also the best for a large
    one. Exit code
    1: a layer grows or is not finite.
    """
    refuse_unknown("severity", fail_on, FAIL_ON)
    plots.check(file)
    destination = choose_destination(format, file, display, ROOM)
    named, overrides = one_model(words)
    scales = parse_scales(scale or ())
    widths_of(scales)
    try:
        with running(model.timeout):
            with importing_torch():
                from gradscope.api.coord_checking import coord_check
            report = coord_check(
                named or "demo",
                scales,
                steps=steps,
                seeds=seeds,
                layers=layers.layers or ("**",),
                exclude=layers.exclude or (),
                overrides=[*overrides, *(model.settings or ())],
                allow=model.allow or (),
                **model.keys,
            )
    except ModelError as error:
        if error.report is not None:
            destination.show(error.report)
        raise
    destination.show(report)
    plots.write(report, file)
    if reaches(report.layers, fail_on):
        raise typer.Exit(1)
