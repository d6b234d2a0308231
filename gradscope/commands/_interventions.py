"""``--clip-norm 'layer1.*=1'``: an option for each action, which does one thing more to the run."""

from __future__ import annotations

from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gradscope.actions import PLACES, action, action_names, summary
from gradscope.commands import _completing as completing
from gradscope.commands._options import INTERVENTIONS
from gradscope.errors import OptionError, did_you_mean


class _Given:
    """What is changed on its way, by action: patterns, each with a place and a value."""

    panel: ClassVar[str] = INTERVENTIONS

    def wanted(self) -> list[dict[str, Any]]:
        """As a config lists them.

        Raises:
            OptionError: a place or a value that an action does not take.
        """
        given: dict[str, list[str] | None] = asdict(self)  # type: ignore[call-overload]
        return [parsed(do, text) for do, texts in given.items() for text in texts or ()]


if TYPE_CHECKING:  # made below, an option for each file of `actions/`

    class InterventionOptions(_Given):
        """What is changed on its way."""


def parsed(do: str, text: str) -> dict[str, Any]:
    """An option's text, PATTERN[@PLACE][=VALUE], as a config says it.

    Raises:
        OptionError: a place or a value that the action does not take.
    """
    known, option = action(do), f"--{do.replace('_', '-')}"
    form = f"{option} 'LAYER{'=VALUE' if known.takes else ''}'"
    pattern, equals, word = text.rpartition("=") if known.takes else (text, "", "")
    if known.takes and not (equals and word):
        raise OptionError(
            f"`{option} {text}` has no value", help=f"write `{form}`: VALUE is {known.takes}"
        )
    pattern, at, place = pattern.rpartition("@") if "@" in pattern else (pattern, "", "")
    if at and place not in known.places:
        close = did_you_mean(place.replace("-", "_"), known.places)
        raise OptionError(
            f"`{option} {text}`: `{place}` is not a valid place",
            help=close or f"one of {', '.join(p for p in PLACES if p in known.places)}",
        )
    if not pattern:
        raise OptionError(f"`{option} {text}` names no layer", help=f"write `{form}`")
    found: dict[str, Any] = {"layers": [pattern], "do": do}
    if at:
        found["at"] = place
    if known.takes:
        found["value"] = _value(do, word, f"{option} {text}")
    return found


def _value(do: str, word: str, said: str) -> Any:
    known = action(do)
    try:
        value: Any = float(word)
    except ValueError:
        # Relative to where the option was written, not to the config.
        value = {"file": str(Path(word).absolute())} if Path(word).suffix else word
    if known.accepts(value):
        return value
    raise OptionError(f"`{said}`: `{word}` is not {known.takes}", help="write it after the `=`")


def _option(do: str) -> Any:
    known = action(do)
    return typer.Option(
        f"--{do.replace('_', '-')}",
        metavar="LAYER[@PLACE]" + "=VALUE" * bool(known.takes),
        help=summary(do),
        autocompletion=completing.layers,
    )


if not TYPE_CHECKING:
    InterventionOptions = make_dataclass(
        "InterventionOptions",
        [(do, Annotated[list[str] | None, _option(do)], None) for do in action_names()],
        bases=(_Given,),
        frozen=True,
    )
    InterventionOptions.__doc__ = _Given.__doc__
