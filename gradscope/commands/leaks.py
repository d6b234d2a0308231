"""``gradscope leaks``: forbidden dependencies of outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gradscope import plugins
from gradscope.charts import figure
from gradscope.commands import _completing as completing
from gradscope.commands._findings import fail_on_option
from gradscope.commands._model import importing_torch, read_model
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    ModelOptions,
    Words,
    flag,
    format_option,
    option,
    takes_groups,
)
from gradscope.commands._running import running
from gradscope.commands._views import choose_destination
from gradscope.commands._write import STDOUT, check_output, say, write_output
from gradscope.errors import ModelError, OptionError, did_you_mean, refuse_unknown
from gradscope.records.leaks import AXES, LeaksReport
from gradscope.reporters.leaks import maps
from gradscope.reporters.views import TextView
from gradscope.rules import FAIL_ON, reaches

ROOM = "gradscope.reporters.leaks"
EXAMPLES = (
    ("gradscope leaks ./net.py:Decoder --causal", "Does a position see later ones? Which line?"),
    ("gradscope leaks hf:gpt2", "A causal language model: time, batch, padding, mask."),
    ("gradscope leaks ./net.py:Conv --causal --axis time=2", "Time is the last of [N, C, T]."),
    (
        "gradscope leaks model.yaml --only batch -f json",
        "One axis, for CI: exit code 1 if it leaks.",
    ),
)


@takes_groups
def run(
    words: Words = None,
    *,
    model: ModelOptions,
    causal: Annotated[
        bool | None,
        flag(
            "--causal/--no-causal",
            "Allow output t to depend on inputs up to t only (default: by the model's config).",
            show_default=False,
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        option(
            "NAME=DIM",
            "Dimension of the inputs for time, batch, or the elements of a set (order). "
            "Repeatable.",
        ),
    ] = None,
    padding: Annotated[
        float | None,
        option("VALUE", "The token or number of padding."),
    ] = None,
    only: Annotated[
        list[str] | None,
        option(
            "AXIS",
            f"Judge these axes only: {', '.join(AXES)}. Repeatable.",
            complete=completing.one_of(AXES),
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        option(
            "FILE",
            "Also draw which input each output depends on, to a .png, .svg, .pdf or .html; `-` "
            "shows it in the terminal.",
            "--map",
        ),
    ] = None,
    fail_on: Annotated[str, fail_on_option("a finding")] = "error",
    format: Annotated[str | None, format_option(ROOM)] = None,
    file: FileOptions,
    display: DisplayOptions,
) -> None:
    """Find forbidden dependencies of outputs: on later inputs, other samples, padding.

    It compares forward passes whose inputs differ in one place: the other outputs must agree bit by
    bit. Gradients are a second test. For a leak it names the first call that leaks, and its line.
    The model runs in eval mode. Exit code 1: an axis leaks.
    """
    refuse_unknown("severity", fail_on, FAIL_ON)
    dims = _dims(axis or [])
    for name in only or ():
        _check_axis(name)
    destination = choose_destination(format, file, display, ROOM)
    drawn = picture is not None and picture != STDOUT
    if drawn and picture is not None:
        if picture.suffix.lower() != ".html":
            from gradscope.api.showing import check_picture

            check_picture(picture)
        check_output(picture, force=file.force)
    loaded = read_model(words, model, mode="eval")
    try:
        with running(model.timeout):
            with importing_torch():
                from gradscope.api.leaking import leaks
            report = leaks(
                loaded,
                causal=causal,
                axes=dims,
                padding=padding,
                only=only or (),
                maps=picture is not None,
                allow=model.allow or (),
            )
    except ModelError as error:
        if error.report is not None:
            destination.show(error.report)
        raise
    if drawn and picture is not None:
        _draw(report, picture, force=file.force)
        if destination.format != "json":
            report = replace(report, maps=())
    destination.show(report)
    if reaches(report.axes, fail_on):
        raise typer.Exit(1)


def _draw(report: LeaksReport, path: Path, *, force: bool) -> None:
    """Draw the dependency maps as a picture, or as a page with the verdicts."""
    if path.suffix.lower() == ".html":
        view = TextView(width=None, color=False)
        write_output(plugins.load(ROOM, "html").render(report, view), path, force=force)
        return
    charts = maps(report)
    if not charts:
        say(f"there is no dependency map to draw: no `{path}`")
        return
    write_output(figure.drawn(report.run.model, charts, path.suffix.lower()), path, force=force)


def _dims(words: list[str]) -> dict[str, int]:
    found = {}
    for word in words:
        name, sign, dim = word.partition("=")
        _check_axis(name)
        try:
            found[name] = int(dim)
        except ValueError:
            raise OptionError(
                f"`--axis {word}` names no dimension" if sign else f"`--axis {word}` has no `=`",
                help=f"count from 0: `--axis {name}=1`",
            ) from None
    return found


def _check_axis(name: str) -> None:
    if name not in AXES:
        raise OptionError(
            f"there is no axis `{name}`",
            help=did_you_mean(name, AXES) or f"one of {', '.join(AXES)}",
        )
