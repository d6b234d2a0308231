"""What every command that runs a model takes: MODEL, overrides, and the options they share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradscope.errors import OptionError

if TYPE_CHECKING:
    from gradscope.config import LoadedConfig

#: A word that sets a key of the config.
OVERRIDE = re.compile(r"[a-z_][\w.]*=", re.DOTALL)

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL|KEY=VALUE",
        help="A YAML config or a spec (default: `demo`), and config keys to override.",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a config key. Repeatable."),
]
Layers = Annotated[
    list[str] | None,
    typer.Option(
        "-l",
        "--layers",
        metavar="PATTERN",
        help="Only these layers: `conv*`, `layer4.**`, `type:Conv2d`, `re:.*bn`. Repeatable.",
    ),
]
Exclude = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN", help="Not these layers. Repeatable.")
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N, mps or meta.")
]
Dtype = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="Of parameters and inputs: float32, bfloat16, …")
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="Set before construction, inputs and forward.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Let the config import this too: `pkg.*`. Repeatable. The environment variable "
        "`GRADSCOPE_ALLOW` takes a list with commas.",
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", metavar="", help="Show Python's traceback of an error.")
]


def read_model(
    words: list[str] | None, settings: list[str] | None, options: dict[str, Any]
) -> LoadedConfig:
    """The config that MODEL, ``key=value`` arguments and options make together.

    Raises:
        OptionError: more than one MODEL.
        ConfigError: what the config says does not hold together.
    """
    from gradscope import config

    words = words or []
    overrides = [word for word in words if OVERRIDE.match(word)]
    models = [word for word in words if not OVERRIDE.match(word)]
    if len(models) > 1:
        raise OptionError(
            f"one MODEL, please: got {', '.join(f'`{model}`' for model in models)}",
            help="write overrides as `key=value`, without blanks around `=`",
        )
    given = {key: value for key, value in options.items() if value not in (None, [], ())}
    return config.read(
        models[0] if models else None, [*overrides, *(settings or [])], options=given
    )
