"""``gradscope inspect``: run a model forward and backward and show what flows."""

from __future__ import annotations

from typing import Annotated

import typer

from gradscope.commands._findings import FailOn, Ignore, Preset, RuleOptions, Select
from gradscope.commands._model import (
    Allow,
    Debug,
    Device,
    Dtype,
    Exclude,
    Layers,
    Seed,
    Set,
    Words,
    importing_torch,
    read_model,
)
from gradscope.commands._views import (
    Color,
    Columns,
    Fold,
    Force,
    Format,
    Output,
    Sort,
    Table,
    Top,
    Width,
    plan_output,
    write_report,
)
from gradscope.commands._write import keep_stdout_clean
from gradscope.errors import Interrupted, ModelError
from gradscope.rules import reaches


def run(
    words: Words = None,
    settings: Set = None,
    layers: Layers = None,
    exclude: Exclude = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Optimizer steps; the tables show the last.")
    ] = None,
    chain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER",
            help="Also show the grad_fn chain from this layer's output to the leaves. Repeatable.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            metavar="",
            help="Run the step unobserved too, and say whether the gradients are bit-identical.",
        ),
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    preset: Preset = None,
    fail_on: FailOn = None,
    sort: Sort = None,
    top: Top = None,
    columns: Columns = None,
    table: Table = None,
    fold: Fold = False,
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = None,
    format: Format = None,
    output: Output = None,
    force: Force = False,
    color: Color = "auto",
    width: Width = None,
    allow: Allow = None,
    debug: Debug = False,
) -> None:
    """Run a model forward and backward once and show what flows.

    One table of calls (shapes, statistics, gradients in and out, grad_fn), one of parameters,
    totals, and what is wrong. Findings fail nothing unless --fail-on says so. Without MODEL the
    bundled demo runs.
    """
    chosen = RuleOptions.of(select, ignore, preset, fail_on)
    destination = plan_output(
        format=format,
        output=output,
        force=force,
        sort=sort,
        top=top,
        columns=columns,
        table=table,
        fold=fold,
        color=color,
        width=width,
    )
    options = {"layers": layers, "steps": steps, "device": device, "dtype": dtype, "seed": seed}
    loaded = read_model(words, settings, options)
    rules = chosen.settings(loaded)
    try:
        with keep_stdout_clean():
            with importing_torch():
                from gradscope.api import inspect_config
            report = inspect_config(
                loaded,
                rules=rules,
                exclude=exclude or (),
                chain=chain or (),
                verify=verify,
                allow=allow or (),
            )
    except (ModelError, Interrupted) as error:
        write_report(error.report, destination)
        raise
    write_report(report, destination)
    if reaches(report.findings, rules.fail_on or "never"):
        raise typer.Exit(1)
