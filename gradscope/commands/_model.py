"""The start of every command that runs a model: reads the words and the config, then imports
torch."""

from __future__ import annotations

import atexit
import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand

from gradscope import progress
from gradscope.click import Context
from gradscope.commands._options import LayerOptions, ModelOptions
from gradscope.errors import OptionError, is_out_of_memory, message_of
from gradscope.typeset.numbers import size

if TYPE_CHECKING:
    from gradscope.config.loaded_config import LoadedConfig

#: Replacement of `--` among the words; no argument of a process can contain it.
DASHES = "\0"


class BothSides(TyperCommand):
    """A command whose options may be on both sides of ``--``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse with a placeholder for each ``--``."""
        return super().parse_args(ctx, [DASHES if word == "--" else word for word in args])


class LastWords(TyperCommand):
    """A command that parses no option after the first ``--``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse with a placeholder for the first ``--``."""
        if "--" not in args:
            return super().parse_args(ctx, args)
        at = args.index("--")
        return super().parse_args(ctx, [*args[:at], "--", DASHES, *args[at + 1 :]])


#: A word that sets a key of the config.
OVERRIDE = re.compile(r"[a-z_][\w.]*=", re.DOTALL)


def read_model(
    words: list[str] | None,
    model: ModelOptions,
    layers: LayerOptions | None = None,
    **keys: Any,
) -> LoadedConfig:
    """Read the config from MODEL, ``key=value`` arguments and options.

    ``keys`` are the command's own options that set a config key of the same name.

    Raises:
        OptionError: more than one MODEL.
        ConfigError: the config contradicts itself.
    """
    from gradscope.config import loaded_config as config

    named, overrides = one_model(words)
    layers = layers or LayerOptions()
    loaded = config.read(
        named,
        [*overrides, *(model.settings or [])],
        options=given_options({"layers": layers.layers, **keys, **model.keys}),
    )
    return replace(loaded, exclude=tuple(layers.exclude or ()))


def is_first_process(loaded: LoadedConfig) -> bool:
    """Return True if this process writes the result: the only one, or rank 0."""
    return loaded.config.parallel is None or os.environ.get("RANK", "0") == "0"


def refuse_to_run(saved: str, words: Sequence[str], options: dict[str, Any]) -> None:
    """Refuse options that need a run, when the command shows a saved file.

    Raises:
        OptionError: such an option or word was given.
    """
    asked = [*(f"--{name}" for name in given_options(options)), *words]
    if asked:
        raise OptionError(
            f"{saved} cannot run again, which `{asked[0]}` needs",
            help=f"drop it, or give the model instead of the {saved.split()[-1]}",
        )


def one_model(words: list[str] | None) -> tuple[str | None, list[str]]:
    """Return the MODEL, if there is one, and the overrides among the words of a command.

    Raises:
        OptionError: more than one MODEL.
    """
    models, overrides = split_words(words)
    if len(models) > 1:
        raise OptionError(
            f"one MODEL, please: got {', '.join(f'`{model}`' for model in models)}",
            help="write overrides as `key=value`, without blanks around `=`",
        )
    return models[0] if models else None, overrides


def parted(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split the words of a command at the first ``--``; the second part is None without one."""
    if DASHES not in words:
        return [*words], None
    at = words.index(DASHES)
    return [*words[:at]], [*words[at + 1 :]]


def split_words(words: list[str] | None) -> tuple[list[str], list[str]]:
    """Return the MODELs and the overrides among the words of a command."""
    overrides = [word for word in words or [] if OVERRIDE.match(word)]
    return [word for word in words or [] if not OVERRIDE.match(word)], overrides


def split_files(words: list[str] | None) -> tuple[list[str], list[str]]:
    """Return the files and the overrides among a command's words; a file's name may contain
    ``=``."""
    every = words or []
    overrides = [word for word in every if OVERRIDE.match(word) and not Path(word).is_file()]
    return [word for word in every if word not in overrides], overrides


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given; the config decides the others."""
    return {key: value for key, value in options.items() if value not in (None, [], ())}


#: Bytes of address space that a run needs in addition to the import of torch.
_REST: Final = 512 << 20
_TRIAL: Final = f"""
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (max(soft - {_REST}, 0), hard))
import numpy, torch
torch.ones(2).sum()
"""


@contextmanager
def importing_torch() -> Iterator[None]:
    """Pause the garbage collector in the block, which imports torch.

    The objects of torch stay until the process ends. Searching them for garbage again and again
    takes a sixth of the import's time.

    Raises:
        OptionError: torch cannot be imported, or there is too little memory for it.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    progress.begin("importing torch")
    _check_room()
    gc.disable()
    try:
        yield
        gc.freeze()
        atexit.register(_unfreeze)
    except (ImportError, OSError, MemoryError, RuntimeError) as error:
        problem = _problem(error)
        if problem is None:
            raise
        raise problem from error
    finally:
        gc.enable()


def _unfreeze() -> None:
    """Unfreeze the garbage collector's objects: Triton reports those not freed at the end as
    leaks.
    """
    if "triton" in sys.modules:
        gc.unfreeze()


def _check_room() -> None:
    """Refuse to import torch if the limit of address space is too small.

    With a limit, another process tries the import first, because a library without room for its
    threads ends its process.

    Raises:
        OptionError: the limit is too small.
    """
    try:
        import resource
    except ImportError:  # no such limits on this system
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    words = [sys.executable, "-P", "-c", _TRIAL]
    try:
        trial = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except (OSError, MemoryError):  # no room for a process either
        trial = subprocess.CompletedProcess(words, -1, b"", b"")
    # Any other fault of torch appears at its import.
    failure = OSError(trial.stderr.decode(errors="replace"))
    if trial.returncode < 0 or (trial.returncode and is_out_of_memory(failure)):
        raise OptionError(
            f"torch cannot be imported within {size(limit)} of address space",
            help="raise the limit: `ulimit -v unlimited`; with CUDA torch takes some 4 GB",
        )


def _problem(error: BaseException) -> OptionError | None:
    """Return the problem if torch cannot be imported; None for any other error."""
    lines = message_of(error).strip().splitlines() or [type(error).__name__]
    if is_out_of_memory(error):
        line = next((line for line in lines if "map segment" in line), lines[0])
        return OptionError(
            f"there is not enough memory to import torch: {line}",
            help="close other programs, or give the container more",
        )
    ours = isinstance(error, ImportError) and (error.name or "").startswith("gradscope")
    if ours or "torch" in sys.modules:
        return None
    return OptionError(
        f"torch cannot be imported: {type(error).__name__}: {lines[0]}",
        help="reinstall it: pip install --force-reinstall torch torchvision",
    )
