"""The one grammar for names: layers, ``--exclude``, freeze.

``*`` stays within a dotted part, ``**`` is any number of parts (``layer4.**`` includes ``layer4``),
a plain name is exact, ``re:`` is a full match, ``type:Conv2d`` also matches subclasses, a leading
``!`` takes names back, and the last match wins. The root module's name is the empty string.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from gradscope.errors import LayerError, Problem, Where, did_you_mean, nowhere

#: Seconds that a pattern may take for a name: a repetition within a repetition takes years.
PATIENCE = 2.0


#: Names of the module inside checkpoint, FSDP and compiled wrappers.
_INSIDE = frozenset({"_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod"})


def wraps(children: Container[str]) -> bool:
    """Return True if a module with children of these names only wraps another, by its name."""
    # Not set operations: the children of a scripted module are no plain mapping.
    return any(name in children for name in _INSIDE)


def without_wrappers(name: str) -> str:
    """Return a module's or a parameter's name without wrappers."""
    if "_" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _INSIDE)


@dataclass(frozen=True, slots=True)
class Named:
    """An object that a pattern can match: its first name, its other names, its classes' names."""

    name: str
    aliases: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pattern:
    """One parsed pattern."""

    text: str
    negated: bool = field(init=False)
    _type: str | None = field(init=False)
    _regex: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        body, negated = self.text, False
        while body.startswith("!"):
            body, negated = body[1:], not negated
        object.__setattr__(self, "negated", negated)
        object.__setattr__(self, "_type", body[5:] if body.startswith("type:") else None)
        source = body[3:] if body.startswith("re:") else _translate(body)
        try:
            object.__setattr__(self, "_regex", re.compile(source, re.DOTALL))
        except (re.error, RecursionError, OverflowError) as error:
            raise LayerError(
                f"pattern `{_short(self.text)}` is not a regular expression: {error}",
                help="drop `re:` to use `*` and `**` instead",
            ) from None

    def matches(self, named: Named) -> bool:
        """Return True if the body matches, whatever the sign.

        Raises:
            LayerError: the match takes longer than ``PATIENCE``.
        """
        if self._type is not None:
            return self._type in named.types
        names = (named.name, *named.aliases)
        if not (self.text.lstrip("!").startswith("re:") or self.text.count("*") > 2):
            return any(self._regex.fullmatch(name) for name in names)
        try:
            with at_most(PATIENCE):
                return any(self._regex.fullmatch(name) for name in names)
        except TimeoutError:
            raise LayerError(
                f"pattern `{_short(self.text)}` takes longer than {PATIENCE:g} s for one name",
                help="avoid a repetition inside a repetition, as in `(a+)+`, or use fewer stars",
            ) from None


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after so many seconds, if the system has an alarm for this thread."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    handler = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def _translate(glob: str) -> str:
    """Return a dotted glob as a regular expression; an empty ``**`` takes the dot beside it with
    it."""
    out: list[str] = []
    for part in glob.split("."):
        if part != "**":
            # A lone `*` needs a character: the root, whose name is empty, has no parts.
            out.append("[^.]+" if part == "*" else re.escape(part).replace(r"\*", "[^.]*"))
        elif out[-1:] != ["**"]:
            out.append("**")
    if out == ["**"]:
        return r".*"
    regex = ""
    for index, part in enumerate(out):
        first, last = index == 0, index == len(out) - 1
        if part != "**":
            regex += part if first or out[index - 1] == "**" else r"\." + part
        elif first:
            regex += r"(?:[^.]+\.)*"
        elif last:
            regex += r"(?:\.[^.]+)*"
        else:
            regex += r"(?:\.[^.]+)*\."
    return regex


def matching(
    patterns: Sequence[str],
    names: Iterable[Named],
    *,
    what: str = "layer",
    key: str = "",
    place: Where = nowhere,
) -> list[Named]:
    """Return the names that ``patterns`` select, in their own order.

    ``key`` is the config key with the patterns, and ``place`` returns its place.

    Raises:
        LayerError: a pattern matches no name, or the list takes everything back.
    """
    parsed = []
    names = list(names)
    selected: set[int] = set()
    for number, text in enumerate(patterns):
        try:
            pattern = Pattern(text)
            hits = {i for i, named in enumerate(names) if pattern.matches(named)}
            if not hits:
                raise _no_match(pattern, names, what)
        except LayerError as error:
            where = place(f"{key}.{number}" if len(patterns) > 1 else key)
            problems = (Problem(p.message, where, p.help, p.notes) for p in error.problems)
            raise LayerError(*problems) from None
        parsed.append(pattern)
        selected = selected - hits if pattern.negated else selected | hits
    if not selected and patterns:
        shown = ", ".join(f"`{text}`" for text in patterns)
        only_negative = all(pattern.negated for pattern in parsed)
        raise LayerError(
            f"the patterns {shown} leave no {what}",
            place=place(key),
            help="put `**` first: `!` only takes names back" if only_negative else None,
        )
    return [named for i, named in enumerate(names) if i in selected]


def _no_match(pattern: Pattern, names: list[Named], what: str) -> LayerError:
    body = pattern.text.lstrip("!")
    if pattern._type is not None:
        choices = sorted({named.types[0] for named in names if named.types})
        close = did_you_mean(pattern._type, choices, count=3)
        help = close or f"the types here are {', '.join(choices[:8])}"
    else:
        plain = body.removeprefix("re:")
        choices = [n for named in names for n in (named.name, *named.aliases) if n]
        close = did_you_mean(plain, choices, count=3)
        shown = ", ".join(choices[:6]) + (", …" if len(choices) > 6 else "")
        help = close or (f"the names start with {shown}" if choices else "there is none to match")
    return LayerError(f"pattern `{_short(body)}` matches no {what}", help=help)
