"""``gradscope why``: the cause of a missing, zero or non-finite gradient, and its line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradscope.api.reading import read_history
from gradscope.commands import _completing as completing
from gradscope.commands._findings import fail_on_option
from gradscope.commands._model import (
    LastWords,
    importing_torch,
    parted,
    read_model,
    refuse_to_run,
    split_words,
)
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    LayerOptions,
    ModelOptions,
    Rank,
    argument,
    format_option,
    option,
    takes_groups,
)
from gradscope.commands._running import running
from gradscope.commands._trials import (
    ScriptOptions,
    is_script,
    refuse_several_processes,
    try_script,
)
from gradscope.commands._views import Destination, choose_destination
from gradscope.commands._write import say
from gradscope.errors import (
    ConfigError,
    Interrupted,
    LayerError,
    ModelError,
    OptionError,
    Problem,
    refuse_unknown,
)
from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport
from gradscope.reporters.header import stretches
from gradscope.rules import FAIL_ON, mention, reaches, spike_cause
from gradscope.runfile.capsules import capsules_of, read_capsule
from gradscope.runfile.folder import (
    SUFFIX,
    ChosenRun,
    chosen_run,
    file_of,
    is_run,
    newest_run,
    run_named,
)
from gradscope.training.launch import Script

if TYPE_CHECKING:
    from gradscope.config.loaded_config import LoadedConfig

ROOM = "gradscope.reporters.answers"
EXAMPLES = (
    (
        "gradscope why ./net.py:Net",
        "Each parameter without a useful gradient: the cause, its line.",
    ),
    ("gradscope why ./net.py:Net stem.weight", "This parameter, in any state."),
    ("gradscope why model.yaml 'type:Linear' -f markdown", "All linear layers, for an issue."),
    (
        "gradscope why train.py -- --epochs 1",
        "Run a script for 50 steps, and report its problems.",
    ),
    ("gradscope why", "The findings of the newest run in `gradscope-runs/`."),
)
Parser = LastWords
#: Words that can only be a MODEL: a path, a spec with its source, a demo. Others are a NAME.
_MODEL = re.compile(
    r"demo\Z|.*\.(ya?ml|json|py)\Z|(?!!|type:|re:)[^*]*[:/\\]", re.DOTALL | re.IGNORECASE
)


@takes_groups
def run(
    words: Annotated[
        list[str] | None,
        argument(
            "MODEL|RUN|SCRIPT.py|NAME|KEY=VALUE [-- ARGS]",
            "A YAML config, a spec, a run, a training script or saved answers (default: the "
            "newest run in `gradscope-runs/`, else `demo`); parameters and layers to answer for, "
            "by name or pattern; config keys to override. After `--` the script's arguments.",
            complete=completing.models_and_runs,
        ),
    ] = None,
    *,
    model: ModelOptions,
    step: Annotated[int | None, option("N", "Only a run's findings at this step.")] = None,
    rank: Rank = None,
    script: ScriptOptions,
    layers: LayerOptions,
    fail_on: Annotated[str, fail_on_option("an answer")] = "never",
    format: Annotated[str | None, format_option(ROOM)] = None,
    file: FileOptions,
    display: DisplayOptions,
) -> None:
    """Name the cause and the line: of a missing gradient, or of a script that does not learn.

    With a MODEL, gradscope checks every trainable parameter, and explains each missing, zero, NaN
    or Inf gradient. With a NAME (`fc.weight`, `layer1.*`, `type:Linear`) it explains this one in
    any state. A path or a spec with a colon is a MODEL, every other word a NAME.

    With a training SCRIPT, gradscope runs it for 50 steps, as under `gradscope run`, and reports
    what is wrong. It keeps the run only with `-o run.db`. With a RUN of `gradscope run` it shows
    the findings and their steps. Without an argument it takes the newest run in `gradscope-runs/`,
    else `demo`.
    """
    refuse_unknown("severity", fail_on, FAIL_ON)
    own, after = parted(words or [])
    arguments = after or []
    models, names, overrides = _sort_words(own)
    of_runs = step is not None or rank is not None
    of_models = bool(overrides or model.settings or model.keys)
    if len(models) == 1 and not of_runs and not of_models and is_script(models[0]):
        _check_script(model)
        trial = script.trial(Script(models[0], arguments))
        keep = file.path if file.path is not None and file.path.suffix.lower() == SUFFIX else None
        result = file if keep is None else replace(file, output=None)
        try_script(
            trial,
            [*names, *(layers.layers or ())],
            layers.exclude or (),
            choose_destination(format, result, display, ROOM),
            keep=keep,
            fail_on=fail_on,
        )
        return
    if script.given is not None:
        help = f"as in `gradscope why {script.given} … train.py`"
        raise OptionError(f"`{script.given}` is for a training script", help=help)
    models, names, overrides = _sort_words([*own, *arguments])
    chosen = _asked_run(models, of_runs=of_runs, of_models=of_models)
    heading = None if chosen is None else chosen.heading
    destination = choose_destination(format, file, display, ROOM, heading)
    if chosen is None and step is not None:
        raise OptionError("`--step` is for a run, as `gradscope run` records one")
    if chosen is None and rank is not None:
        raise OptionError("`--rank` is for a run of several processes, under `torchrun`")
    options = {"layers": layers.layers, **model.keys}
    exclude = layers.exclude or ()
    if chosen is not None:
        refuse_to_run("a run", overrides, {**model.keys, "set": model.settings})
        patterns = [*names, *(layers.layers or ())]
        report = _of_run(replace(chosen, path=file_of(chosen.path, rank)), patterns, exclude, step)
    elif models and models[0].lower().endswith(".json"):
        others = {**options, "set": model.settings, "exclude": exclude}
        refuse_to_run("saved answers", [*overrides, *names], others)
        report = record_json.load(Path(models[0]), WhyReport)
    else:
        loaded = read_model(models + overrides, model, layers)
        report = _run(loaded, names, model, destination, guessed=not models)
    destination.show(report)
    if reaches(report.answers, fail_on):
        raise typer.Exit(1)


def _check_script(model: ModelOptions) -> None:
    """Refuse options that do not apply to a script.

    Raises:
        OptionError: the message names the option.
    """
    refuse_several_processes()
    if model.timeout is not None:
        raise OptionError("`--timeout` is for a model", help="for a script use `--seconds`")
    if model.allow:
        raise OptionError("`--allow` is for a model: a script may import anything")


def _sort_words(words: list[str] | None) -> tuple[list[str], list[str], list[str]]:
    """Sort the words into MODEL, NAMEs and overrides; without a MODEL, the first word may be a
    run's name."""
    rest, overrides = split_words(words)
    models = [word for word in rest if _MODEL.match(word) or (word and is_run(Path(word)))]
    if not models and rest and run_named(Path(rest[0])):
        models = rest[:1]
    return models, [word for word in rest if word not in models], overrides


def _asked_run(models: list[str], *, of_runs: bool, of_models: bool) -> ChosenRun | None:
    """Return the run that the command is about; None if it is about a model.

    Args:
        models: the words that name a run or a model.
        of_runs, of_models: True if options or keys were given that only runs, or only models, take.
    """
    if models:
        path = None if models[0] == "demo" else run_named(Path(models[0]))
        return None if path is None else ChosenRun(path)
    if of_runs:
        return chosen_run(None, "why")
    return None if of_models else newest_run()


def _of_run(
    chosen: ChosenRun, patterns: Sequence[str], exclude: Sequence[str], step: int | None
) -> WhyReport:
    from gradscope.reporters.run.findings import answers
    from gradscope.runfile.reader import RunFile

    with RunFile.open(chosen.path) as run:
        history = read_history(run, calls=bool(patterns or exclude))
        samples = run.files[0].sample(history.sampled[-1]) if history.sampled else ()
    kept = [number for number, path in capsules_of(chosen.path).items() if _is_mentioned(path)]
    if kept:
        steps = stretches([(number, number) for number in kept])
        say(f"the samples of {steps}: `gradscope spike {shlex.quote(str(chosen.path))}`")
    try:
        return answers(history, next(iter(samples), None), patterns, exclude, step)
    except LayerError as error:
        if chosen.heading is None:
            raise
        raise _with_notes(error, (f"`{chosen.path}` is the newest run",)) from None


def _is_mentioned(path: Path) -> bool:
    """Return True for the capsule of a spike, of a sample unlike all before, or a damaged one."""
    try:
        capsule = read_capsule(path)
    except ConfigError:
        return True
    return bool(mention(capsule, spike_cause(capsule)[0]))


def _run(
    loaded: LoadedConfig,
    names: list[str],
    model: ModelOptions,
    destination: Destination,
    *,
    guessed: bool,
) -> WhyReport:
    """Run the model and return the answers; ``guessed`` is True if no word was a MODEL, so that the
    demo runs."""
    try:
        with running(model.timeout):
            with importing_torch():
                from gradscope.api.answering import why
            return why(loaded, names=names, allow=model.allow or ())
    except (ModelError, Interrupted) as error:
        if error.report is not None:
            destination.show(error.report)
        raise
    except LayerError as error:
        raise _unknown(error, names[0] if names and guessed else None) from None


def _unknown(error: LayerError, word: str | None) -> LayerError:
    """Return the error, with advice if the first word was meant for a MODEL."""
    if word is None or not any(f"`{word}`" in problem.message for problem in error.problems):
        return error
    from gradscope.config.targets import spec_fault

    fault = spec_fault(word, Path.cwd(), argument=True)
    notes = (
        (f"`{word}` was taken for a NAME of the demo: {fault[1]}",) if fault and fault[1] else ()
    )
    return _with_notes(error, notes)


def _with_notes(error: LayerError, notes: tuple[str, ...]) -> LayerError:
    return LayerError(
        *(Problem(p.message, p.place, p.help, (*p.notes, *notes)) for p in error.problems)
    )
