"""The header of every text: the model, and how it was run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from gradscope.records.run import RunInfo
from gradscope.typeset.console import dimmed
from gradscope.typeset.text import join, plain


def run_facts(run: RunInfo, *more: str) -> list[str]:
    """The model, and how it was run."""
    how = [run.device, precision(run)]
    if run.steps:  # for an existing tensor this is unknown
        how += [run.mode, f"seed {run.seed}"]
    return [plain(run.model) or "model", *more, *map(plain, how)]


def precision(run: RunInfo) -> str:
    """The dtype of the parameters, and that of autocast."""
    return f"{run.dtype}, autocast {run.autocast}" if run.autocast else run.dtype


def loss_facts(run: RunInfo) -> list[str]:
    """The loss that the run started from, and who chose it; nothing without one."""
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


def notes(run: RunInfo) -> list[str]:
    """What was inferred or mended on the way."""
    return [f"note: {plain(notice)}" for notice in run.notices]


def header(run: RunInfo, facts: Iterable[Sequence[str]], width: int | None) -> Iterator[Text]:
    """Facts side by side, the first of all in bold, then the notes."""
    yield from fact_lines(facts, width)
    for note in notes(run):
        yield from dimmed(note, width)


def fact_lines(facts: Iterable[Sequence[str]], width: int | None) -> Iterator[Text]:
    """Lines of facts side by side, the first of all in bold."""
    for number, line_facts in enumerate(facts):
        for i, line in enumerate(join(line_facts, width)):
            lead = line_facts[0] if number == i == 0 and line.startswith(line_facts[0]) else ""
            yield Text.assemble((lead, "bold"), line[len(lead) :])
