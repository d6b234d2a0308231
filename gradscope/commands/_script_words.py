"""The words after the options of ``run``: SCRIPT or ``-m MODULE``, also after ``python``."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradscope.errors import OptionError
from gradscope.training.launch import Script

_PYTHON = re.compile(r"python(?P<version>\d+(\.\d+)*)?[dt]?(\.exe)?", re.IGNORECASE)
#: The only long option of Python that takes a value.
_LONG_WITH_VALUE = "--check-hash-based-pycs"
#: Letters without a value, and then the one letter that has one, or names what is run.
_LETTERS = re.compile(r"-([^WXmc]*)([WXmc]?)(.*)", re.DOTALL)
#: What starts processes, each of which gradscope observes.
_LAUNCHERS = {"torchrun": "torchrun --nproc-per-node 2", "accelerate": "accelerate launch"}


@dataclass(frozen=True, slots=True)
class Restart:
    """The same command under another interpreter, or with options of it; called, it takes over."""

    command: tuple[str, ...]

    def __call__(self) -> None:
        """Become that process."""
        try:
            os.execv(self.command[0], self.command)
        except OSError as error:
            sys.exit(f"error: cannot run `{self.command[0]}`: {error.strerror or error}")


def script_or_restart(words: Sequence[str], options: Sequence[str]) -> Script | Restart:
    """What is to be run, by the words after ``options``.

    Raises:
        OptionError: the words name no script and no module.
    """
    name, *rest = words
    if name == "-m":
        if not rest:
            raise OptionError("`-m` needs a module", help="as in `gradscope run -m pkg.train`")
        return Script(rest[0], tuple(rest[1:]), is_module=True)
    if _is_python(name):
        return _behind_python(name, rest, options)
    if name in _LAUNCHERS and not Path(name).exists():
        raise OptionError(
            f"`{name}` starts processes; gradscope must run inside each of them",
            help=f"put it first: `{_LAUNCHERS[name]} -m gradscope run train.py`",
        )
    return Script(name, tuple(rest))


def _is_python(name: str) -> bool:
    """Whether a word is an interpreter: by its name, and where it is a path it can be executed."""
    path = Path(name)
    if _PYTHON.fullmatch(path.name) is None:
        return False
    return not path.is_file() if path.name == name else os.access(path, os.X_OK)


def _behind_python(name: str, words: Sequence[str], options: Sequence[str]) -> Script | Restart:
    """What Python is asked to run; with options of its own, or another one, it runs gradscope."""
    flags, rest = _flags(words)
    if not rest or rest[0] in ("-c", "-"):
        asked = " ".join([name, *flags, *rest[:1]])
        raise OptionError(
            f"`{asked}` is not a script", help="give its file: `gradscope run train.py`"
        )
    other = _other_interpreter(name)
    if other is None and not flags:
        return script_or_restart(rest, options)
    command = (other or sys.executable, *flags, "-m", "gradscope", "run")
    return Restart((*command, *options, *rest))


def _flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Python's own options, as it reads them, and what comes after them."""
    flags: list[str] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        found = None if word.startswith("--") else _LETTERS.fullmatch(word)
        plain, last, value = found.groups() if found else ("", "", "")
        if last in ("m", "c"):
            flags += [f"-{plain}"] if plain else []
            return flags, [f"-{last}", *([value] if value else []), *left]
        flags.append(word)
        if word == _LONG_WITH_VALUE or (last and not value):
            flags += left[:1]
            left = left[1:]
    return flags, left


def _other_interpreter(word: str) -> str | None:
    """The path of an interpreter that is not the one that runs this; None for that one.

    Of a bare name only the version counts, for `gradscope` need not be the one that the shell would
    find beside it.

    Raises:
        OptionError: there is none of that version.
    """
    if Path(word).name != word:
        own = Path(sys.executable).parent.resolve()
        return None if Path(word).parent.resolve() == own else word
    named = _PYTHON.fullmatch(word)
    version = named["version"] if named else None
    if version is None or f"{sys.version.split()[0]}.".startswith(f"{version}."):
        return None
    found = shutil.which(word)
    if found is None:
        raise OptionError(
            f"there is no interpreter `{word}`",
            help="drop it: the script runs in gradscope's Python",
        )
    return found
