"""``gradscope spike``: the sample that made a step spike, or another cause."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gradscope.api.spiking import export_sample, spike, write_spike_config
from gradscope.commands._model import importing_torch
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    Rank,
    RecordedRun,
    format_option,
    option,
    takes_groups,
)
from gradscope.commands._running import running
from gradscope.commands._views import PlotOptions, choose_destination
from gradscope.commands._write import check_output, say
from gradscope.runfile.folder import chosen_run, file_of

ROOM = "gradscope.reporters.spike"
EXAMPLES = (
    ("gradscope spike", "The largest spike of the newest run."),
    ("gradscope spike run.db --step 412 --without 7", "That step without sample 7."),
    ("gradscope spike run.db --export bad.safetensors", "The tensors of the worst sample."),
    ("gradscope spike run.db --replay ./train.py:Net", "Split the step later, with the model."),
    ("gradscope spike --plot spike.png", "The steps before, and the samples, as a picture."),
    ("gradscope spike -f json", "All samples, and the steps before."),
)


@takes_groups
def run(
    run: RecordedRun = None,
    *,
    step: Annotated[
        int | None, option("N", "This step; default: the step that stands out most.")
    ] = None,
    without: Annotated[
        list[int] | None,
        option("INDEX", "Also show the step without this sample of the batch. Repeatable."),
    ] = None,
    export: Annotated[
        Path | None,
        option("FILE", "Write the tensors of the worst sample, as .safetensors or .pt."),
    ] = None,
    as_config: Annotated[
        Path | None,
        option("FILE", "Write a config that repeats the step, for `inspect` and `why`."),
    ] = None,
    replay: Annotated[
        str | None,
        option("MODEL", "Split the step by sample again, with this model: `./net.py:Net`."),
    ] = None,
    rank: Rank = None,
    format: Annotated[str | None, format_option(ROOM)] = None,
    file: FileOptions,
    plots: PlotOptions,
    display: DisplayOptions,
) -> None:
    """Name the cause of a spike: a sample, the learning rate, the optimizer or the weights.

    `gradscope run` keeps up to three steps whose loss or gradient spikes, each in a capsule beside
    the run. At that step it split the gradient by sample. This command imports a model only with
    --replay, which splits the gradient later.
    """
    plots.check(file)
    chosen = chosen_run(run, "spike")
    destination = choose_destination(format, file, display, ROOM, chosen.heading)
    if export is not None:
        check_output(export, force=file.force)
    if as_config is not None:
        check_output(as_config, force=file.force)
    path = file_of(chosen.path, rank)
    if replay is None:
        report = spike(path, step, without=without or ())
    else:
        with running(None):
            with importing_torch():
                from gradscope.api.spike_replay import replayed_spike
            report = replayed_spike(path, step, replay, without=without or ())
    if export is not None:
        worst = export_sample(path, report.step, export, force=file.force)
        say(f"wrote sample {worst.index} of step {report.step} to {export}")
    if as_config is not None:
        capsule, notes = write_spike_config(path, report.step, as_config, force=file.force)
        say(f"wrote step {capsule.step} as {as_config}: put the model in place of `???`")
        for note in notes:
            say(note)
    destination.show(report)
    plots.write(report, file)
