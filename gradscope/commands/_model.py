"""What every command that runs a model does first: read its config, then import torch."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscope import progress
from gradscope.errors import ConfigError, OptionError, Problem

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
        models[0] if models else None, [*overrides, *(settings or [])], options=_given(options)
    )


def read_models(
    words: list[str] | None, settings: list[str] | None, options: dict[str, Any]
) -> list[LoadedConfig]:
    """The configs of all MODELs, each with all overrides and options put in.

    Raises:
        ConfigError: what one of them says does not hold together; has the problems of all.
    """
    from gradscope import config

    models, overrides = split_words(words)
    overrides += settings or []
    found: list[LoadedConfig] = []
    problems: list[Problem] = []
    wanted: list[str | None] = [*models] or [None]
    for model in wanted:
        try:
            found.append(config.read(model, overrides, options=_given(options)))
        except ConfigError as error:
            # What is wrong with an override is wrong with it for each of the models.
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(*problems)
    return found


def is_first_process(loaded: LoadedConfig) -> bool:
    """Whether this process is the one of several that writes the result, or the only one."""
    return loaded.config.parallel is None or os.environ.get("RANK", "0") == "0"


@contextmanager
def importing_torch() -> Iterator[None]:
    """Import within this what needs torch, without the garbage collector walking through it.

    What torch's import makes stays until the process ends. Searching it for garbage, again and
    again while it grows and once more at the end, takes a sixth of the time that the import takes.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    progress.begin("importing torch")
    gc.disable()
    try:
        yield
        gc.freeze()
        atexit.register(_unfreeze)
    finally:
        gc.enable()


def _unfreeze() -> None:
    """Triton, which torchvision imports, calls all that is not freed at the end a leak."""
    if "triton" in sys.modules:
        gc.unfreeze()


def refuse_to_run(saved: str, words: Sequence[str], options: dict[str, Any]) -> None:
    """Refuse what asks for another run, where a file of what is ``saved`` is to be shown.

    Raises:
        OptionError: one of the options was given, or one of the words.
    """
    given = [*(f"--{name}" for name in _given(options)), *words]
    if given:
        raise OptionError(
            f"{saved} cannot be run again, as `{given[0]}` asks",
            help=f"leave it away, or name the model in place of the {saved.split()[-1]}",
        )


def split_words(words: list[str] | None) -> tuple[list[str], list[str]]:
    """The MODELs and the overrides among the words of a command."""
    overrides = [word for word in words or [] if OVERRIDE.match(word)]
    return [word for word in words or [] if not OVERRIDE.match(word)], overrides


def split_files(words: list[str] | None) -> tuple[list[str], list[str]]:
    """The files, which may have ``=`` in their names, and the overrides among a command's words."""
    given = words or []
    overrides = [word for word in given if OVERRIDE.match(word) and not Path(word).is_file()]
    return [word for word in given if word not in overrides], overrides


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value not in (None, [], ())}
