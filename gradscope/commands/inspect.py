"""``gradscope inspect``: run a model forward and backward and show what flows."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._findings import RuleOptions
from gradscope.commands._interventions import InterventionOptions
from gradscope.commands._model import importing_torch, is_first_process, read_model
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    Format,
    LayerOptions,
    ModelOptions,
    Words,
    takes_groups,
)
from gradscope.commands._plots import PlotOptions
from gradscope.commands._progress import shown_progress
from gradscope.commands._tables import TableOptions
from gradscope.commands._time_limit import time_limit
from gradscope.commands._views import ReportOutput
from gradscope.commands._write import keep_stdout_clean
from gradscope.errors import Interrupted, ModelError
from gradscope.reporters.report.tables.view_checks import measured
from gradscope.rules import reaches

EXAMPLES = (
    ("gradscope inspect", "The bundled digit network, on a digit."),
    ("gradscope inspect torchvision:resnet18 --depth 1", "One row for each stage of a ResNet."),
    ("gradscope inspect ./net.py:Net input.shape=[8,3,32,32]", "Your own class, this input."),
    ("gradscope inspect model.yaml -l 'layer4.**' --columns +min,+max", "One stage, in detail."),
    ("gradscope inspect model.yaml --steps 20 optimizer=adam", "20 steps of Adam."),
    ("gradscope inspect --columns +params,+flops,+time", "What each layer costs."),
    ("gradscope inspect --bar grad_out --histogram conv1", "Sizes at a glance, and one in detail."),
    ("gradscope inspect --scale conv2=2 --clip-norm 'fc1@parameter_grad=0.1'", "What if?"),
    ("gradscope inspect ./net.py:Net --gradcheck swish", "Is your own backward right?"),
    ("gradscope inspect model.yaml -o report.json", "A report to keep: `show` displays it."),
    ("gradscope inspect model.yaml -o report.html", "A page to send: charts, findings, tables."),
    ("gradscope inspect model.yaml --plot flow.pdf", "Gradient flow over depth, for a paper."),
)


@takes_groups
def run(
    words: Words = None,
    *,
    model: ModelOptions,
    layers: LayerOptions,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Optimizer steps; the tables show the last.")
    ] = None,
    chain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER",
            help="Also show the grad_fn chain from this layer's output to the leaves. Repeatable.",
            autocompletion=completing.layers,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Run the step without hooks too, and compare the gradients bit for bit.",
        ),
    ] = False,
    tasks: Annotated[
        bool,
        typer.Option(
            "--tasks",
            help=(
                "With several losses: the gradient norm of each at the layers that they share, "
                "and the cosines between them."
            ),
        ),
    ] = False,
    histogram: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER",
            help="Also show histograms of this layer's outputs, parameters and gradients. "
            "Repeatable.",
            autocompletion=completing.layers,
        ),
    ] = None,
    gradcheck: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAYER",
            help="Also compare this layer's backward with finite differences, in float64, on its "
            "inputs of this step. Repeatable.",
            autocompletion=completing.layers,
        ),
    ] = None,
    sketch: Annotated[
        bool,
        typer.Option(
            "--sketch",
            help="Also keep a sketch of every tensor in the report, so that `diff` can compare it "
            "with a report made elsewhere.",
        ),
    ] = False,
    interventions: InterventionOptions,
    rules: RuleOptions,
    tables: TableOptions,
    format: Format = None,
    file: FileOptions,
    plots: PlotOptions,
    display: DisplayOptions,
) -> None:
    """Run a model forward and backward once, and show its activations and gradients.

    One table of calls (shapes, statistics, input and output gradients, grad_fn), one of parameters,
    totals, and findings. The exit code is 0 whatever is found, unless --fail-on is given. Without
    MODEL the bundled demo runs. Interventions change a tensor at a PLACE: grad_output (default),
    grad_input, parameter_grad or activation.
    """
    rules.check()
    output = ReportOutput.of(format, file, display, tables)
    plots.check(file)
    keys = {"layers": layers.layers, "steps": steps, **model.keys}
    keys["interventions"] = interventions.wanted()
    loaded = read_model(words, model.settings, keys)
    speaks = is_first_process(loaded)
    judging = rules.settings(loaded)
    try:
        shown = shown_progress() if speaks else nullcontext()
        with keep_stdout_clean(), shown, time_limit(model.timeout):
            with importing_torch():
                from gradscope.api import Extras, inspect_config
            extras = Extras(
                chain=chain or (),
                verify=verify,
                tasks=tasks,
                costs=measured(output.view),
                histogram=histogram or (),
                gradcheck=gradcheck or (),
                sketch=sketch,
            )
            exclude, allow = layers.exclude or (), model.allow or ()
            report = inspect_config(
                loaded, rules=judging, extras=extras, exclude=exclude, allow=allow
            )
    except (ModelError, Interrupted) as error:
        if speaks:
            output.write(error.report)
        raise
    if speaks:
        output.write(report)
        plots.write(report, file)
    if reaches(report.findings, judging.fail_on or "never"):
        raise typer.Exit(1)
