"""Which class a user means: by its number, or by its name among the weights' own."""

from __future__ import annotations

from gradscope.errors import OptionError, did_you_mean


def class_id(word: str, classes: tuple[str, ...] | None, count: int) -> int:
    """The id of a class that was named by number or by name.

    Args:
        word: what the user wrote.
        classes: the names by id, where they are known.
        count: how many classes the model has.

    Raises:
        OptionError: no such class; the closest names are offered.
    """
    if word.isdecimal() and len(word) < 18:
        if int(word) < count:
            return int(word)
        raise OptionError(
            f"there is no class {word}: the model has {count}",
            help=f"a number from 0 to {count - 1}",
        )
    if classes is None or len(classes) != count:
        raise OptionError(
            f"`{word}` is not a class number, and the model's classes have no names here",
            help=f"a number from 0 to {count - 1}",
        )
    wanted = word.casefold()
    exact = [i for i, name in enumerate(classes) if name.casefold() == wanted]
    hits = exact or [i for i, name in enumerate(classes) if wanted in name.casefold()]
    if len(hits) == 1:
        return hits[0]
    if not hits:
        close = did_you_mean(wanted, [name.casefold() for name in classes], count=3)
        raise OptionError(
            f"no class is called `{word}`", help=close or f"or a number from 0 to {count - 1}"
        )
    some = ", ".join(f"{i} ({classes[i]})" for i in hits[:5]) + (", …" if len(hits) > 5 else "")
    raise OptionError(f"several classes are called `{word}`", help=f"give the number: {some}")
