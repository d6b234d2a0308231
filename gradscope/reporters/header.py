"""Labels, steps in words, and the header of every text: the model, and how it was run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from gradscope.records.run import RunInfo
from gradscope.typeset.console import dimmed
from gradscope.typeset.numbers import count
from gradscope.typeset.text import join, plain

#: The tone of a severity; others have none.
TONES = {"error": "bad", "warning": "warn"}
#: The model itself, whose name is empty.
ROOT = "(root)"


def some_names(names: Iterable[str], at_most: int) -> str:
    """Return the first names, and the number of further ones; a single further name is named
    too."""
    shown = [plain(name) for name in names]
    more = len(shown) - at_most
    return ", ".join(shown if more <= 1 else [*shown[:at_most], f"… {more} more"])


def label(name: str, call: int | None = 0, last: int | None = None) -> str:
    """Return a module's name as a reader sees it, with the call's number from the second call on.

    ``last`` is the last of several calls in one row.
    """
    number = f" #{call}" if call else ""
    return (plain(name) or ROOT) + (number if last is None else f" #{call}…{last}")


#: Number of step ranges, and of single steps, that are named.
_STRETCHES, _STEPS = 4, 6


def stretches(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ``step 5``, ``steps 1–400``, ``steps 1–4, 9``; for many stretches, the first, the
    last, and their number."""
    if not ranges:
        return ""
    words = [count(a) if a == b else f"{count(a)}–{count(b)}" for a, b in ranges]
    if len(words) > _STRETCHES:
        many = f"… {words[-1]} ({count(len(words))} stretches)"
        words = [*words[: _STRETCHES - 1], many]
    alone = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"{'step' if alone else 'steps'} {', '.join(words)}"


def listed(steps: Sequence[int]) -> str:
    """List a few numbers in full, an unbroken stretch as one; of many, the first ones and the
    last."""
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"{count(steps[0])}–{count(steps[-1])}"
    if len(steps) <= _STEPS:
        return ", ".join(map(count, steps))
    return f"{', '.join(map(count, steps[: _STEPS - 1]))}, … {count(steps[-1])}"


def run_facts(run: RunInfo, *more: str) -> list[str]:
    """Return the model, and how it was run, as facts."""
    how = [run.device, precision(run)]
    if run.steps:  # for an existing tensor this is unknown
        how += [run.mode, f"seed {run.seed}"]
    return [plain(run.model) or "model", *more, *map(plain, how)]


def precision(run: RunInfo) -> str:
    """Return the dtype of the parameters and of autocast."""
    return f"{run.dtype}, autocast {run.autocast}" if run.autocast else run.dtype


def loss_facts(run: RunInfo) -> list[str]:
    """Return the loss that the run started from, and whether it was inferred; nothing without
    one.
    """
    if run.loss in ("", "inferred"):
        return []
    how = ""
    if run.loss_inferred:
        how = " (inferred)"
        if run.loss.startswith("output"):
            how = " (inferred, the model's own)"
        elif run.loss == "sum":
            how = " of the output (inferred, a stand-in)"
    return [f"loss {plain(run.loss)}{how}"]


def notes(notices: Iterable[str]) -> list[str]:
    """Return notices, such as those about inferred or corrected settings, as lines."""
    return [f"note: {plain(notice)}" for notice in notices]


def header(run: RunInfo, facts: Iterable[Sequence[str]], width: int | None) -> Iterator[Text]:
    """Yield facts side by side, the very first in bold, then the notes."""
    yield from fact_lines(facts, width)
    for note in notes(run.notices):
        yield from dimmed(note, width)


def fact_lines(facts: Iterable[Sequence[str]], width: int | None) -> Iterator[Text]:
    """Yield lines of facts side by side, the very first in bold."""
    for number, line_facts in enumerate(facts):
        for i, line in enumerate(join(line_facts, width)):
            lead = line_facts[0] if number == i == 0 and line.startswith(line_facts[0]) else ""
            yield Text.assemble((lead, "bold"), line[len(lead) :])
