"""``--plot``: a result's charts as one picture file, beside what the command writes anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from gradscope.charts import figure
from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.commands._options import OUTPUT, FileOptions
from gradscope.commands._write import check_output, say, write_output
from gradscope.errors import OptionError


@dataclass(frozen=True, slots=True)
class PlotOptions:
    """A picture of the result."""

    panel: ClassVar[str] = OUTPUT

    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw the result to this .png, .svg or .pdf: gradients, activations, updates "
            "and memory over depth; of a run over its steps.",
        ),
    ] = None

    def check(self, file: FileOptions) -> None:
        """Refuse a file that could not be written, before anything runs.

        Raises:
            OptionError: another suffix, the file of `-o`, or a path that cannot be had.
        """
        if self.plot is None:
            return
        if self.plot.suffix.lower() not in figure.SUFFIXES:
            suffixes = ", ".join(f"`{suffix}`" for suffix in figure.SUFFIXES)
            raise OptionError(
                f"no picture is written as `{self.plot}`",
                help=f"use one of {suffixes}; `-o report.html` makes a page",
            )
        if file.path is not None and file.path.absolute() == self.plot.absolute():
            raise OptionError(f"`{self.plot}` is given to `-o` and to `--plot`")
        check_output(self.plot, force=file.force)

    def refuse(self, what: str) -> None:
        """Refuse a picture of something that has none.

        Raises:
            OptionError: one is asked for.
        """
        if self.plot is not None:
            raise OptionError(f"`--plot` draws reports and runs, not {what}")

    def write(self, title: str, charts: Sequence[Panel | Map], file: FileOptions) -> None:
        """Draw the charts, where a picture is asked for and there is something to draw."""
        if self.plot is None:
            return
        if not charts:
            say(f"nothing was measured that could be drawn: no `{self.plot}`")
            return
        picture = figure.drawn(title, charts, self.plot.suffix.lower())
        write_output(picture, self.plot, force=file.force)
