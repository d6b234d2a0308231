"""The one grammar for names: layers, ``--exclude``, freeze.

``*`` stays within a dotted part, ``**`` is any number of parts (``layer4.**`` includes ``layer4``),
a plain name is exact, ``re:`` is a full match, ``type:Conv2d`` also matches subclasses, a leading
``!`` takes names back, and the last match wins. The root module's name is the empty string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gradscope.errors import LayerError, did_you_mean


@dataclass(frozen=True, slots=True)
class Named:
    """Something that a pattern can match: its first name, its other names, its classes' names."""

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
        except re.error as error:
            raise LayerError(
                f"pattern `{self.text}` is not a regular expression: {error}",
                help="drop `re:` to use `*` and `**` instead",
            ) from None

    def matches(self, named: Named) -> bool:
        """Whether the body matches, whatever the sign."""
        if self._type is not None:
            return self._type in named.types
        return any(self._regex.fullmatch(name) for name in (named.name, *named.aliases))


def _translate(glob: str) -> str:
    """A dotted glob as a regular expression; ``**`` swallows the dot beside it when it is empty."""
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
    patterns: Sequence[str], names: Iterable[Named], *, what: str = "layer"
) -> list[Named]:
    """The names that ``patterns`` select, in their own order.

    Raises:
        LayerError: a pattern that matches no name at all, or a list that takes everything back.
    """
    parsed = [Pattern(text) for text in patterns]
    names = list(names)
    selected: set[int] = set()
    for pattern in parsed:
        hits = {i for i, named in enumerate(names) if pattern.matches(named)}
        if not hits:
            raise _no_match(pattern, names, what)
        selected = selected - hits if pattern.negated else selected | hits
    if not selected and patterns:
        shown = ", ".join(f"`{text}`" for text in patterns)
        only_negative = all(pattern.negated for pattern in parsed)
        raise LayerError(
            f"the patterns {shown} leave no {what}",
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
    return LayerError(f"pattern `{body}` matches no {what}", help=help)
