"""``--plot``: a result's charts as one picture file, beside what the command writes anyway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from gradscope.api.plotting import check_picture, plotted
from gradscope.commands._options import OUTPUT, FileOptions
from gradscope.commands._write import check_output, say, write_output
from gradscope.errors import OptionError
from gradscope.records.history import RunHistory
from gradscope.records.report import Report


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
        check_picture(self.plot)
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

    def write(self, record: Report | RunHistory, file: FileOptions) -> None:
        """Draw the record's charts, where a picture is asked for and there is something to draw."""
        if self.plot is None:
            return
        found = plotted(record)
        if not found.charts:
            say(f"nothing to draw: `{self.plot}` was not written")
            return
        write_output(found.drawn(self.plot.suffix.lower()), self.plot, force=file.force)
