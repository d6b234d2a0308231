"""A saliency report as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from rich.text import Text

from gradscope.records.saliency import SaliencyReport
from gradscope.reporters.header import header, run_facts
from gradscope.reporters.saliency import _tables
from gradscope.reporters.text_view import TextView
from gradscope.typeset.console import dimmed, printed, stacked, table_lines
from gradscope.typeset.text import plain

suffix = ".txt"


def render(report: SaliencyReport, view: TextView, written: Sequence[Path] = ()) -> str:
    """The classes that the model saw and the maps that were made, picture by picture.

    ``written`` are the files that hold the pictures.
    """
    blocks = _blocks(report, written, view.width)
    return printed(stacked(blocks), width=view.width, color=view.color)


def _blocks(
    report: SaliencyReport, written: Sequence[Path], width: int | None
) -> Iterator[Iterable[Text]]:
    yield header(report.run, [run_facts(report.run)], width)
    for image in report.images:
        yield table_lines(_tables.classes(image), width)
        notes = (dimmed(note, width) for note in _tables.notes(image))
        yield chain(table_lines(_tables.maps(image), width), *notes)
    yield [Text(f"wrote {plain(str(path))}") for path in written]
