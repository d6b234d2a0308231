"""Options that several commands share, alone or in groups; other options are in the command's
file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._write import STDOUT
from gradscope.reporters.shortening import LEAST_TOKENS

#: The panels of `--help`; a command's own options are under "Options".
MODEL = "Model"
LAYERS = "Layers"
INTERVENTIONS = "Interventions"
RULES = "Rules"
TABLES = "Tables"
OUTPUT = "Output"
HELP = "Help"

COLORS = ("auto", "always", "never")


def option(
    metavar: str,
    help: str,
    *flags: str,
    complete: Callable[..., list[str]] | None = None,
    panel: str | None = None,
    **more: Any,
) -> Any:
    """Return an option with a value, named like its parameter unless ``flags`` are given."""
    more |= {"metavar": metavar, "autocompletion": complete, "rich_help_panel": panel}
    return typer.Option(*flags, help=help, **more)


def argument(metavar: str, help: str, *, complete: Callable[..., list[str]] | None = None) -> Any:
    """Return an argument of a command."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=complete)


def flag(name: str, help: str, *, panel: str | None = None, **more: Any) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=help, rich_help_panel=panel, **more)


def format_option(
    room: str,
    words: str = "terminal, html, json or markdown. Wins over -o's suffix.",
) -> Any:
    """Return the option ``-f``: ``words`` describe the formats, which are the choices of
    ``room``."""
    return option(
        "FORMAT", words, "-f", "--format", panel=OUTPUT, complete=completing.files_of(room)
    )


Words = Annotated[
    list[str] | None,
    argument(
        "MODEL|KEY=VALUE",
        "A YAML config or a spec (default: `demo`), and config keys to override.",
        complete=completing.models,
    ),
]
Pictures = Annotated[
    list[str] | None,
    argument(
        "IMAGE|KEY=VALUE",
        "Picture files, folders, patterns, `.npy` arrays, and config keys to override.",
        complete=completing.pictures,
    ),
]
RecordedRun = Annotated[
    Path | None,
    argument(
        "RUN",
        "The recorded run: a file, folder or name (default: the newest run in `gradscope-runs/`).",
        complete=completing.runs,
    ),
]
Set = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Override a config key. Repeatable.",
        "--set",
        panel=MODEL,
        complete=completing.settings,
    ),
]
Device = Annotated[
    str | None,
    option(
        "DEVICE",
        "auto, cpu, cuda, cuda:N, mps or meta.",
        panel=MODEL,
        complete=completing.one_of(("auto", "cpu", "cuda", "mps", "meta")),
    ),
]
DType = Annotated[
    str | None,
    option(
        "DTYPE",
        "The dtype of parameters and inputs: float32, bfloat16, …",
        complete=completing.one_of(("float32", "float64", "float16", "bfloat16")),
    ),
]
Seed = Annotated[int | None, option("N", "Seed, set before construction, inputs and forward.")]
Format = Annotated[
    str | None,
    format_option(
        "gradscope.reporters.report",
        "terminal, html, json, csv, markdown, github (annotations) or sarif. Wins over -o's "
        "suffix.",
    ),
]
Force = Annotated[bool, flag("--force", "Overwrite the output file.", panel=OUTPUT)]
Allow = Annotated[
    list[str] | None,
    option(
        "PATTERN",
        "Let the config import this too: `pkg.*`. Repeatable. The environment variable "
        "`GRADSCOPE_ALLOW` takes a list with commas.",
        panel=MODEL,
    ),
]
Rank = Annotated[
    int | None, option("N", "Only the records of this rank, if the run has several processes.")
]
Timeout = Annotated[
    float | None,
    option(
        "SECONDS",
        "Stop building and running after this time, and report where it stopped.",
        panel=MODEL,
    ),
]
Debug = Annotated[bool, flag("--debug", "Show Python's traceback of an error.", panel=HELP)]
MaxTokens = Annotated[
    int | None,
    option(
        "N",
        "With `-f json`: at most N tokens, the worst first.",
        panel=OUTPUT,
        min=LEAST_TOKENS,
    ),
]


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Selection of layers."""

    panel: ClassVar[str] = LAYERS

    layers: Annotated[
        list[str] | None,
        option(
            "PATTERN",
            "Only these layers: `conv*`, `layer4.**`, `type:Conv2d`, `re:.*bn`. Repeatable.",
            "-l",
            "--layers",
            complete=completing.layers,
        ),
    ] = None
    exclude: Annotated[
        list[str] | None,
        option("PATTERN", "Not these layers. Repeatable.", complete=completing.layers),
    ] = None


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Overrides of the config, and permissions to import."""

    panel: ClassVar[str] = MODEL

    settings: Set = None
    device: Device = None
    dtype: DType = None
    seed: Seed = None
    timeout: Timeout = None
    allow: Allow = None

    @property
    def keys(self) -> dict[str, Any]:
        """Config keys given by an option of the same meaning."""
        keys = {"device": self.device, "dtype": self.dtype, "seed": self.seed}
        return {key: value for key, value in keys.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PlainFileOptions:
    """File of the result."""

    panel: ClassVar[str] = OUTPUT

    output: Annotated[
        Path | None,
        option(
            "FILE",
            "Write to this file; its suffix picks the format. `-` is standard output.",
            "-o",
            "--output",
        ),
    ] = None
    force: Force = False

    @property
    def path(self) -> Path | None:
        """The file; None is standard output."""
        return None if self.output == STDOUT else self.output


@dataclass(frozen=True, slots=True)
class FileOptions(PlainFileOptions):
    """File of a record, and how long it may be as JSON."""

    max_tokens: MaxTokens = None


@dataclass(frozen=True, slots=True)
class DisplayOptions:
    """Options for the look of text, and for the traceback of an error."""

    panel: ClassVar[str] = OUTPUT

    color: Annotated[
        str,
        option("WHEN", "auto, always or never.", complete=completing.one_of(COLORS)),
    ] = "auto"
    width: Annotated[
        int | None,
        option("N", "Fit the tables into N characters instead of the terminal's width."),
    ] = None
    debug: Debug = False


def takes_groups(run: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command from a function whose parameters include groups: dataclasses, each field an
    option.

    Typer makes an option from each parameter in the signature. So this puts a group's fields in its
    place, and ``--help`` keeps the command's order. The help shows them in the group's ``panel``,
    except those that name another panel.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(run, eval_str=True).parameters.values():
        group = parameter.annotation
        if is_dataclass(group):
            groups[parameter.name] = group
            parameters += _options(group)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(run)
    def command(*arguments: Any, **options: Any) -> Any:
        for name, group in groups.items():
            given = [field.name for field in fields(group) if field.name in options]
            options[name] = group(**{field: options.pop(field) for field in given})
        return run(*arguments, **options)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _options(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    panel = getattr(group, "panel", None)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=_in_panel(types[field.name], panel),
        )
        for field in fields(group)
    ]


def _in_panel(annotation: Any, panel: str | None) -> Any:
    """Return an option's annotation, with its group's panel in the help."""
    kind, option = get_args(annotation)
    if panel is None or option.rich_help_panel is not None:
        return annotation
    placed = copy(option)
    placed.rich_help_panel = panel
    return Annotated[kind, placed]


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Columns, rows and order of a report's tables."""

    panel: ClassVar[str] = TABLES

    sort: Annotated[
        str | None,
        option(
            "COLUMN",
            "Sort by a column: numbers descend, names ascend, empty cells come last. `norm:asc` "
            "and `name:desc` reverse it.",
            complete=completing.sort,
        ),
    ] = None
    top: Annotated[int | None, option("N", "Only the first N calls, and N parameters.")] = None
    columns: Annotated[
        str | None,
        option(
            "COLUMNS",
            "Columns of the calls: `norm,grad_out`, `+min,+max` besides the usual ones, `all`. "
            "For columns of the parameters: `--table parameters`, or a name that calls do not "
            "have, such as `+update_rms`.",
            complete=completing.columns,
        ),
    ] = None
    table: Annotated[
        str | None,
        option(
            "TABLE",
            "Only this table: `calls`, `parameters`, `attention`, `experts`, `residual` or "
            "`findings`; several with commas.",
            complete=completing.tables,
        ),
    ] = None
    depth: Annotated[
        int | None,
        option("N", "Only modules down to this depth: 1 is the model and its direct parts."),
    ] = None
    bar: Annotated[
        str | None,
        option(
            "COLUMN",
            "Bars beside a column, on a log scale: `grad_out`.",
            complete=completing.column,
        ),
    ] = None
    fold: Annotated[
        bool,
        flag("--fold", "Merge equal blocks in a row: `h.0…11.mlp ×12`."),
    ] = False
