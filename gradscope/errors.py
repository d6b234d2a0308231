"""Every error that gradscope raises on purpose.

GradscopeError ├── ConfigError a config, file or spec that is wrong or inconsistent         exit 2
├── OptionError an option that is wrong, an output path, a missing device         exit 2 ├──
LayerError a layer pattern that matches nothing                       exit 2 ├── TargetError    an
import that is refused, or a name that does not exist   exit 2 ├── ModelError     the user's own
code raised; carries the partial report     exit 3 └── Interrupted    Ctrl-C, a signal, no time
left; carries the partial report exit 130

An error is one or several problems, each a sentence with its place and its remedy.
"""

from __future__ import annotations

import difflib
import errno
import re
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from gradscope.references import as_written

#: Length of a message, in characters.
LONGEST = 4000
_NO_MEMORY = re.compile(
    "can(not|'t) allocate memory|failed to map segment|bad_alloc|can't start new thread|"
    r"\bMemoryError\b",
    re.IGNORECASE,
)
#: Control and format characters, surrogates, separators of lines and paragraphs.
_UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a problem: a config file's line, or the command-line argument."""

    file: str
    line: int | None = None
    column: int | None = None
    key: str | None = None
    text: str | None = None  # the source line, for the caret
    length: int = 1

    def __str__(self) -> str:
        spot = ":".join(
            str(part) for part in (self.file, self.line, self.column) if part is not None
        )
        return f"{spot} ({self.key})" if self.key else spot


class Where(Protocol):
    """Returns the place of a config's dotted key: its value, or with ``of_key`` the key."""

    def __call__(self, key: str, *, of_key: bool = False) -> Place | None:
        """Return the place; None for a key without a value."""


def nowhere(key: str, *, of_key: bool = False) -> Place | None:
    """Return None: the place of every key without a config."""
    return None


@dataclass(frozen=True, slots=True)
class Problem:
    """One sentence on a problem, its place, and its fix."""

    message: str
    place: Place | None = None
    help: str | None = None
    notes: tuple[str, ...] = ()

    def render(self) -> str:
        """Return the problem as compilers print it: message, place, source line, remedy."""
        lines = [f"error: {self.message}"]
        gutter = "  "
        if self.place:
            lines.append(f"  --> {self.place}")
            if self.place.text is not None and self.place.line is not None:
                gutter = " " * (len(str(self.place.line)) + 1) + " "
                before = self.place.text[: (self.place.column or 1) - 1]
                # A caret under a tab must keep the tab, or it lands elsewhere on the screen.
                indent = "".join(c if c == "\t" else " " for c in before)
                lines.append(f" {self.place.line} | {self.place.text}")
                if self.place.column is not None:
                    lines.append(f"{gutter}| {indent}{'^' * max(1, self.place.length)}")
        lines += [f"{gutter}= note: {note}" for note in self.notes]
        if self.help:
            lines.append(f"{gutter}= help: {self.help}")
        return visible("\n".join(lines))


def message_of(error: BaseException) -> str:
    """Return an exception's message, at most ``LONGEST`` characters.

    The user's ``__str__`` may raise, exit or never end.
    """
    try:
        text = str(error)
    except BaseException as fault:
        return f"(no message: its `__str__` raised {type(fault).__name__})"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the exception's name."""
    return (message_of(error).strip() or type(error).__name__).splitlines()[0]


def few(names: Iterable[str], quote: str = "", most: int = 3) -> str:
    """Join the first of some names, with "…" if there are more than ``most``."""
    quoted = [f"{quote}{name}{quote}" for name in names]
    return ", ".join(quoted[:most]) + (", …" if len(quoted) > most else "")


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if memory or address space ran out."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return _NO_MEMORY.search(message_of(error)) is not None


def visible(text: str) -> str:
    """Return lines of text, with escapes for characters that could control a terminal."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _UNPRINTABLE else ascii(c)[1:-1]
        for c in text
    )


class GradscopeError(Exception):
    """The base class of gradscope's errors; ``exit_code`` is the exit code of the process."""

    exit_code = 2

    def __init__(
        self,
        *problems: Problem | str,
        place: Place | None = None,
        help: str | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        self.problems = tuple(
            _as_written(p if isinstance(p, Problem) else Problem(p, place, help, tuple(notes)))
            for p in problems
        )
        super().__init__("; ".join(p.message for p in self.problems))
        for note in self._notes():
            self.add_note(note)

    def _notes(self) -> list[str]:
        """Return the lines of Python's traceback below the message: place, remarks and remedy.

        Several problems are each reported in full.
        """
        if len(self.problems) != 1:
            return [problem.render() for problem in self.problems]
        _, *rest = self.problems[0].render().splitlines()[self.problems[0].message.count("\n") :]
        return ["\n".join(rest)] if rest else []

    def render(self) -> str:
        """Return all problems, with a blank line between them."""
        return "\n\n".join(problem.render() for problem in self.problems)


def _as_written(problem: Problem) -> Problem:
    """Return the problem with the environment's values replaced by their references."""
    help = None if problem.help is None else as_written(problem.help)
    notes = tuple(map(as_written, problem.notes))
    return replace(problem, message=as_written(problem.message), help=help, notes=notes)


class ConfigError(GradscopeError):
    """A config, a spec, or a file that it names is wrong: its syntax, keys, types or content."""


class OptionError(GradscopeError):
    """A command-line option is wrong or cannot be used."""


class LayerError(GradscopeError):
    """A layer pattern matches nothing."""


class TargetError(GradscopeError):
    """A name that may not be imported, or that does not exist."""


class ModelError(GradscopeError):
    """The user's code raised (``__cause__``).

    ``report`` is the entry's record, with everything recorded so far.
    """

    exit_code = 3

    def __init__(
        self,
        *problems: Problem | str,
        report: Any = None,
        help: str | None = None,
    ) -> None:
        super().__init__(*problems, help=help)
        self.report = report


class TimeIsUp(KeyboardInterrupt):
    """A run exceeded its time limit; the message has the limit and the place."""


class Terminated(KeyboardInterrupt):
    """A signal made the process end; its message says which."""


class Interrupted(GradscopeError):
    """Ctrl-C, a signal, or no time left. ``report`` has everything recorded so far.

    Attributes:
        reason: the cause and the place, without the consequence.
    """

    exit_code = 130

    def __init__(self, reason: str, consequence: str = "", *, report: Any = None) -> None:
        super().__init__(f"{reason}: {consequence}" if consequence else reason)
        self.reason = reason
        self.report = report


def interruption(error: KeyboardInterrupt) -> str:
    """Return the reason of an interruption in a few words."""
    return str(error) if isinstance(error, (TimeIsUp, Terminated)) else "interrupted"


def did_you_mean(word: str, choices: Iterable[str], *, count: int = 1) -> str | None:
    """``did you mean `weights`?``, with up to ``count`` of the closest choices, or None.

    The same word in other case is the closest: for ``Adamw`` it is ``AdamW``, not ``Adam``.
    """
    known = list(dict.fromkeys(choices))
    same = [choice for choice in known if choice.casefold() == word.casefold()]
    others = [choice for choice in known if choice not in same]
    close = (same + difflib.get_close_matches(word, others, n=count, cutoff=0.6))[:count]
    return f"did you mean {' or '.join(f'`{c}`' for c in close)}?" if close else None


def refuse_unknown(what: str, word: str, choices: Collection[str]) -> None:
    """Refuse a word that is not one of the choices.

    Raises:
        OptionError: with the closest choice, or else all.
    """
    if word not in choices:
        help = did_you_mean(word, choices) or f"one of {', '.join(choices)}"
        raise OptionError(f"unknown {what} `{word}`", help=help)


def closest_file(path: Path, suffixes: Collection[str]) -> str | None:
    """Return ``did you mean `weights.pt`?``: the closest file beside ``path`` with one of the
    suffixes, or None.

    Names are compared without their suffixes.
    """
    try:
        beside = [p.name for p in path.parent.iterdir() if p.suffix.lower() in suffixes]
    except (OSError, ValueError):
        return None
    names = {Path(name).stem.casefold(): name for name in sorted(beside, reverse=True)}
    close = difflib.get_close_matches(path.stem.casefold(), names, n=1, cutoff=0.6)
    return f"did you mean `{names[close[0]]}`?" if close else None
