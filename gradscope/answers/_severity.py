"""How bad an answer is: what no training can mend, what may pass, and what is as it was asked."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.records.answers import Answer

LEVELS = ("error", "warning", "info")


def severity(answer: Answer) -> str | None:
    """``error``, ``warning``, or None where nothing is wrong.

    A zero gradient is a warning where one arrives after an optimizer step, as behind a partner
    that was initialised with zeros, where this batch alone may have masked it, and where none of
    the usual causes explains it. Frozen is what was asked for; not frozen, where the config asks
    for it, is a warning, and an error where a misspelt flag asks for it. Rules judge alike.
    """
    if answer.cause == "misspelt":
        return "error"
    if answer.cause == "frozen":
        return "warning" if answer.state == "healthy" else None
    if answer.state == "healthy":
        return None
    if answer.state == "zero":
        passing = answer.cause == "zero-weight" and answer.recovers is None
        mild = answer.recovers or passing or answer.cause in ("masked", None)
        return "warning" if mild else "error"
    return "error"


def reaches(answers: Sequence[Answer], threshold: str) -> bool:
    """Whether one of the answers is as bad as ``threshold``; nothing is as bad as ``never``."""
    if threshold not in LEVELS:
        return False
    counting = LEVELS[: LEVELS.index(threshold) + 1]
    return any(severity(answer) in counting for answer in answers)
