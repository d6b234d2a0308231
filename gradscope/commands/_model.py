"""Reads the config, then imports torch: the first step of every command that runs a model."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscope.commands._importing import importing_torch as importing_torch  # with the config
from gradscope.errors import OptionError

if TYPE_CHECKING:
    from gradscope.config import LoadedConfig

#: A word that sets a key of the config.
OVERRIDE = re.compile(r"[a-z_][\w.]*=", re.DOTALL)


def read_model(
    words: list[str] | None, settings: list[str] | None, options: dict[str, Any]
) -> LoadedConfig:
    """The config that MODEL, ``key=value`` arguments and options make together.

    Raises:
        OptionError: more than one MODEL.
        ConfigError: what the config says does not hold together.
    """
    from gradscope import config

    models, overrides = split_words(words)
    if len(models) > 1:
        raise OptionError(
            f"one MODEL, please: got {', '.join(f'`{model}`' for model in models)}",
            help="write overrides as `key=value`, without blanks around `=`",
        )
    return config.read(
        models[0] if models else None,
        [*overrides, *(settings or [])],
        options=given_options(options),
    )


def is_first_process(loaded: LoadedConfig) -> bool:
    """Whether this process is the one of several that writes the result, or the only one."""
    return loaded.config.parallel is None or os.environ.get("RANK", "0") == "0"


def refuse_to_run(saved: str, words: Sequence[str], options: dict[str, Any]) -> None:
    """Refuse what asks for another run, where a file of what is ``saved`` is to be shown.

    Raises:
        OptionError: one of the options was given, or one of the words.
    """
    asked = [*(f"--{name}" for name in given_options(options)), *words]
    if asked:
        raise OptionError(
            f"{saved} cannot run again, which `{asked[0]}` needs",
            help=f"drop it, or give the model instead of the {saved.split()[-1]}",
        )


def split_words(words: list[str] | None) -> tuple[list[str], list[str]]:
    """The MODELs and the overrides among the words of a command."""
    overrides = [word for word in words or [] if OVERRIDE.match(word)]
    return [word for word in words or [] if not OVERRIDE.match(word)], overrides


def split_files(words: list[str] | None) -> tuple[list[str], list[str]]:
    """The files, which may have ``=`` in their names, and the overrides among a command's words."""
    every = words or []
    overrides = [word for word in every if OVERRIDE.match(word) and not Path(word).is_file()]
    return [word for word in every if word not in overrides], overrides


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given: what they were not is left to the config."""
    return {key: value for key, value in options.items() if value not in (None, [], ())}
