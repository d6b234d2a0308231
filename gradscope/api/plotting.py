"""The charts of a report or a run as one picture: ``--plot``, and ``record.plot()``; no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gradscope.charts import figure
from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.errors import OptionError
from gradscope.output_files import check_file, expanded, write_file
from gradscope.records.history import RunHistory
from gradscope.records.report import Report
from gradscope.reporters.report.charts.depth import panels
from gradscope.reporters.training.charts import over_steps
from gradscope.reporters.training.sentences.summary import title
from gradscope.reporters.training.tables.naming import qualified


@dataclass(frozen=True, slots=True, repr=False)
class Plot:
    """Charts that a notebook shows and that ``save`` writes."""

    title: str
    charts: tuple[Panel | Map, ...]

    def __repr__(self) -> str:
        return f"<gradscope plot of {self.title}: {', '.join(one.title for one in self.charts)}>"

    def _repr_svg_(self) -> str:
        return self.drawn(".svg").decode("utf-8")

    def drawn(self, suffix: str) -> bytes:
        """A file's content: ".png", ".svg" or ".pdf"."""
        return figure.drawn(self.title, self.charts, suffix)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write a picture of the kind that the suffix names: .png, .svg or .pdf.

        Raises:
            OptionError: another suffix, or the file exists or cannot be written.
        """
        path = expanded(path)
        check_picture(path)
        if os.path.lexists(path) and not force:
            raise OptionError(f"`{path}` exists", help="`force=True` replaces it")
        check_file(path, force=True)
        write_file(self.drawn(path.suffix.lower()), path, force=force)


def plot(record: Report | RunHistory) -> Plot:
    """What there is to draw of a report over depth, of a run over its steps.

    Raises:
        OptionError: nothing to draw.
    """
    found = plotted(record)
    if not found.charts:
        raise OptionError("nothing to draw")
    return found


def plotted(record: Report | RunHistory) -> Plot:
    """The same, without charts where there is nothing."""
    if isinstance(record, Report):
        return Plot(record.run.model, panels(record))
    of_models = qualified(record)
    return Plot(title(record.run), (*over_steps.panels(of_models), *over_steps.maps(of_models)))


def check_picture(path: Path) -> None:
    """Refuse a file that no picture can be.

    Raises:
        OptionError: its suffix is that of none.
    """
    if path.suffix.lower() not in figure.SUFFIXES:
        suffixes = ", ".join(f"`{suffix}`" for suffix in figure.SUFFIXES)
        raise OptionError(
            f"`{path}` is not a picture file",
            help=f"use one of {suffixes}; `-o report.html` makes a page",
        )
