"""``gradscope inspect``, and an option for each intervention: ``--clip-norm 'layer1.*=1'``."""

from __future__ import annotations

from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gradscope.actions import ACTIONS, PLACES, action
from gradscope.commands import _completing as completing
from gradscope.commands._findings import RuleOptions
from gradscope.commands._model import importing_torch, is_first_process, read_model
from gradscope.commands._options import (
    INTERVENTIONS,
    DisplayOptions,
    FileOptions,
    Format,
    LayerOptions,
    ModelOptions,
    TableOptions,
    Words,
    flag,
    option,
    takes_groups,
)
from gradscope.commands._running import running
from gradscope.commands._views import PlotOptions, ReportOutput
from gradscope.errors import Interrupted, ModelError, OptionError, did_you_mean
from gradscope.reporters.tables.report_tables import measured
from gradscope.rules import reaches


class _Given:
    """Interventions on the data flow, by action: patterns, each with a place and a value."""

    panel: ClassVar[str] = INTERVENTIONS

    def wanted(self) -> list[dict[str, Any]]:
        """Return the interventions in a config's form.

        Raises:
            OptionError: an action does not take the place or the value.
        """
        given: dict[str, list[str] | None] = asdict(self)  # type: ignore[call-overload]
        return [parsed(do, text) for do, texts in given.items() for text in texts or ()]


if TYPE_CHECKING:  # made below, an option for each of `ACTIONS`

    class InterventionOptions(_Given):
        """Interventions on the data flow."""


def parsed(do: str, text: str) -> dict[str, Any]:
    """Return an option's text, PATTERN[@PLACE][=VALUE], in a config's form.

    Raises:
        OptionError: the action does not take the place or the value.
    """
    known, option = action(do), f"--{do.replace('_', '-')}"
    form = f"{option} 'LAYER{'=VALUE' if known.takes else ''}'"
    pattern, equals, word = text.rpartition("=") if known.takes else (text, "", "")
    if known.takes and not (equals and word):
        raise OptionError(
            f"`{option} {text}` has no value", help=f"write `{form}`: VALUE is {known.takes}"
        )
    pattern, at, place = pattern.rpartition("@") if "@" in pattern else (pattern, "", "")
    if at and place not in known.places:
        close = did_you_mean(place.replace("-", "_"), known.places)
        raise OptionError(
            f"`{option} {text}`: `{place}` is not a valid place",
            help=close or f"one of {', '.join(p for p in PLACES if p in known.places)}",
        )
    if not pattern:
        raise OptionError(f"`{option} {text}` names no layer", help=f"write `{form}`")
    found: dict[str, Any] = {"layers": [pattern], "do": do}
    if at:
        found["at"] = place
    if known.takes:
        found["value"] = _value(do, word, f"{option} {text}")
    return found


def _value(do: str, word: str, argument: str) -> Any:
    known = action(do)
    try:
        value: Any = float(word)
    except ValueError:
        # The path is relative to the working directory, not to the config.
        value = {"file": str(Path(word).absolute())} if Path(word).suffix else word
    if known.accepts(value):
        return value
    raise OptionError(f"`{argument}`: `{word}` is not {known.takes}", help="write it after the `=`")


def _option(do: str) -> Any:
    known = action(do)
    return option(
        "LAYER[@PLACE]" + "=VALUE" * bool(known.takes),
        known.help,
        f"--{do.replace('_', '-')}",
        complete=completing.layers,
    )


if not TYPE_CHECKING:
    InterventionOptions = make_dataclass(
        "InterventionOptions",
        [(do, Annotated[list[str] | None, _option(do)], None) for do in ACTIONS],
        bases=(_Given,),
        frozen=True,
    )
    InterventionOptions.__doc__ = _Given.__doc__


EXAMPLES = (
    ("gradscope inspect", "The bundled digit network, on a digit."),
    ("gradscope inspect torchvision:resnet18 --depth 1", "One row for each stage of a ResNet."),
    ("gradscope inspect ./net.py:Net input.shape=[8,3,32,32]", "Your own class, this input."),
    ("gradscope inspect model.yaml -l 'layer4.**' --columns +min,+max", "One stage, in detail."),
    ("gradscope inspect model.yaml --steps 20 optimizer=adam", "20 steps of Adam."),
    ("gradscope inspect --columns +params,+flops,+time", "Cost of each layer."),
    ("gradscope inspect --bar grad_out --histogram conv1", "Sizes at a glance, and one in detail."),
    ("gradscope inspect --scale conv2=2 --clip-norm 'fc1@parameter_grad=0.1'", "What if?"),
    (
        "gradscope inspect model.yaml input.batch=16 --per-sample",
        "Which sample makes the gradient?",
    ),
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
    steps: Annotated[int | None, option("N", "Optimizer steps; the tables show the last.")] = None,
    chain: Annotated[
        list[str] | None,
        option(
            "LAYER",
            "Also show the grad_fn chain from this layer's output to the leaves. Repeatable.",
            complete=completing.layers,
        ),
    ] = None,
    verify: Annotated[
        bool,
        flag("--verify", "Run the step without hooks too, and compare the gradients bit for bit."),
    ] = False,
    tasks: Annotated[
        bool,
        flag(
            "--tasks",
            "With several losses: the gradient norm of each at the layers that they share, and the "
            "cosines between them.",
        ),
    ] = False,
    per_sample: Annotated[
        bool,
        flag(
            "--per-sample",
            "Also show the loss and the gradient norm of each sample of the batch, and whether "
            "a larger batch would still pay (the gradient's noise scale).",
        ),
    ] = False,
    histogram: Annotated[
        list[str] | None,
        option(
            "LAYER",
            "Also show histograms of this layer's outputs, parameters and gradients. Repeatable.",
            complete=completing.layers,
        ),
    ] = None,
    gradcheck: Annotated[
        list[str] | None,
        option(
            "LAYER",
            "Also compare this layer's backward with finite differences, in float64, on its inputs "
            "of this step. Repeatable.",
            complete=completing.layers,
        ),
    ] = None,
    sketch: Annotated[
        bool,
        flag(
            "--sketch",
            "Also keep a sketch of every tensor in the report, so that `diff` can compare it with "
            "a report made elsewhere.",
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
    loaded = read_model(words, model, layers, steps=steps, interventions=interventions.wanted())
    speaks = is_first_process(loaded)
    judging = rules.settings(loaded)
    try:
        with running(model.timeout, shown=speaks):
            with importing_torch():
                from gradscope.api.inspecting import inspect
            report = inspect(
                loaded,
                chain=chain or (),
                verify=verify,
                tasks=tasks,
                per_sample=per_sample,
                costs=measured(output.view),
                histogram=histogram or (),
                gradcheck=gradcheck or (),
                sketch=sketch,
                allow=model.allow or (),
                **rules.chosen,
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
