"""``gradscope why``: the one cause of a missing, zero or broken gradient, and where it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gradscope import plugins
from gradscope.commands._model import (
    OVERRIDE,
    Allow,
    Debug,
    Device,
    Dtype,
    Exclude,
    Layers,
    Seed,
    Set,
    read_model,
)
from gradscope.commands._views import (
    Color,
    Force,
    Output,
    Width,
    choose_format,
    text_view,
)
from gradscope.commands._write import STDOUT, check_output, keep_stdout_clean, write_output
from gradscope.errors import Interrupted, LayerError, ModelError, OptionError, Problem, did_you_mean
from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport
from gradscope.reporters.text_view import TextView
from gradscope.rules import FAIL_ON, reaches

ROOM = "gradscope.reporters.answers"
#: What can only be a MODEL: a path, a spec with its source, a demo. All else is a NAME.
_MODEL = re.compile(
    r"demo\Z|.*\.(ya?ml|json|py)\Z|(?!!|type:|re:)[^*]*[:/\\]", re.DOTALL | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where answers go, and how they look there."""

    format: str
    view: TextView
    path: Path | None
    force: bool

    def write(self, report: object) -> None:
        """Render and write, once; nothing where a failed run left nothing."""
        if isinstance(report, WhyReport):
            text = plugins.load(ROOM, self.format).render(report, self.view)
            write_output(text, self.path, force=self.force)


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL|NAME|KEY=VALUE",
            help="A YAML config, a spec or saved answers (default: `demo`); parameters and layers "
            "to answer for, by name or pattern; config keys to override.",
            show_default=False,
        ),
    ] = None,
    settings: Set = None,
    layers: Layers = None,
    exclude: Exclude = None,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="SEVERITY",
            help="Exit with 1 where an answer is as bad as this: error, warning, info or never.",
        ),
    ] = "never",
    device: Device = None,
    dtype: Dtype = None,
    seed: Seed = None,
    format: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--format",
            metavar="FORMAT",
            help="terminal, json or markdown. Wins over -o's suffix.",
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    color: Color = "auto",
    width: Width = None,
    allow: Allow = None,
    debug: Debug = False,
) -> None:
    """Say why parameters have no useful gradient: the one cause, and where it is.

    Without NAME every trainable parameter is looked at, and those whose gradient is missing, zero
    or not finite are answered. A NAME (`fc.weight`, `layer1.*`, `type:Linear`) is answered whatever
    its state. MODEL is told from a NAME by its form: a path, or a spec with a colon.
    """
    if fail_on not in FAIL_ON:
        help = did_you_mean(fail_on, FAIL_ON) or f"one of {', '.join(FAIL_ON)}"
        raise OptionError(f"unknown severity `{fail_on}`", help=help)
    destination = _destination(format, output, force, color, width)
    models, names, overrides = _told_apart(words or [])
    options = {"layers": layers, "device": device, "dtype": dtype, "seed": seed}
    if models and models[0].lower().endswith(".json"):
        _refuse_to_run(names, overrides, options | {"set": settings, "exclude": exclude})
        report = record_json.load(Path(models[0]), WhyReport)
    else:
        report = _run(models + overrides, names, settings, options, exclude, allow, destination)
    destination.write(report)
    if reaches(report.answers, fail_on):
        raise typer.Exit(1)


def _destination(
    format: str | None, output: Path | None, force: bool, color: str, width: int | None
) -> Destination:
    path = None if output is None or output == STDOUT else output
    view = text_view(path, width, color)
    chosen = choose_format(format, path, ROOM)
    check_output(path, force=force)
    return Destination(chosen, view, path, force)


def _told_apart(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """MODEL, NAMEs and overrides."""
    overrides = [word for word in words if OVERRIDE.match(word)]
    rest = [word for word in words if not OVERRIDE.match(word)]
    models = [word for word in rest if _MODEL.match(word)]
    return models, [word for word in rest if word not in models], overrides


def _run(
    words: list[str],
    names: list[str],
    settings: list[str] | None,
    options: dict[str, Any],
    exclude: list[str] | None,
    allow: list[str] | None,
    destination: Destination,
) -> WhyReport:
    loaded = read_model(words, settings, options)
    # Imported once the config holds together: an error in it must not wait for torch.
    from gradscope import api

    try:
        with keep_stdout_clean():
            return api.why_config(loaded, names=names, exclude=exclude or (), allow=allow or ())
    except (ModelError, Interrupted) as error:
        destination.write(error.report)
        raise
    except LayerError as error:
        no_model = not any(_MODEL.match(word) for word in words)
        raise _unknown(error, names[0] if names and no_model else None) from None


def _unknown(error: LayerError, word: str | None) -> LayerError:
    """The error, with what to write if the first word was meant for a MODEL."""
    if word is None or not any(f"`{word}`" in problem.message for problem in error.problems):
        return error
    from gradscope.config.specs import spec_fault

    fault = spec_fault(word, Path.cwd(), argument=True)
    said = f"`{word}` was taken for a NAME of the demo: {fault[1]}" if fault and fault[1] else ""
    notes = (said,) if said else ()
    return LayerError(
        *(Problem(p.message, p.place, p.help, (*p.notes, *notes)) for p in error.problems)
    )


def _refuse_to_run(names: list[str], overrides: list[str], options: dict[str, Any]) -> None:
    """Refuse what asks for another run, where there is nothing to run.

    Raises:
        OptionError: one of the options was given, a name, or a word that overrides a key.
    """
    given = [f"--{name}" for name, value in options.items() if value not in (None, [], ())]
    given += [*overrides, *names]
    if given:
        raise OptionError(
            f"saved answers cannot be run again, as `{given[0]}` asks",
            help="leave it away, or name the model in place of the answers",
        )
