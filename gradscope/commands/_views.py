"""The destination and the look of a result: checked before the run, written once."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from gradscope import plugins
from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.commands._findings import path_root, rule_texts
from gradscope.commands._options import (
    COLORS,
    OUTPUT,
    DisplayOptions,
    FileOptions,
    TableOptions,
    option,
)
from gradscope.commands._write import check_output, is_terminal, say, stream_width, write_output
from gradscope.errors import OptionError, refuse_unknown, visible
from gradscope.records.report import CheckReport, Report
from gradscope.records.showing import Plotted
from gradscope.records.spike import SpikeReport
from gradscope.reporters.shortening import shortened
from gradscope.reporters.tables import report_tables
from gradscope.reporters.views import DiffView, TextView, View

ROOM = "gradscope.reporters.report"


@dataclass(frozen=True, slots=True)
class Destination:
    """The checked destination and look of a result: only the write can still fail.

    ``heading`` is above the text on standard output; for all other formats it is a note on standard
    error. ``room`` is the package with the formats, a file each.
    """

    format: str
    path: Path | None
    force: bool
    width: int | None
    color: bool
    room: str
    heading: str | None = None
    max_tokens: int | None = None

    def show(self, record: object, view: object = None) -> None:
        """Render a record and write it, once. Without ``view``, only width and colour are set."""
        reporter = plugins.load(self.room, self.format)
        look = TextView(width=self.width, color=self.color)
        self.write(reporter.render(record, look if view is None else view))

    def write(self, content: str | bytes) -> None:
        """Write the full result, once."""
        content = fitted(content, self.max_tokens)
        if self.heading is not None and self.path is None and self.format == "terminal":
            content = f"{visible(self.heading)}\n{content!s}"
        elif self.heading is not None:
            say(self.heading)
        write_output(content, self.path, force=self.force)


def choose_destination(
    format: str | None,
    file: FileOptions,
    display: DisplayOptions,
    room: str,
    heading: str | None = None,
) -> Destination:
    """Check the destination of a result, so that a long run does not end in a typing error.

    Raises:
        OptionError: an unknown format, suffix or color mode, or an output that cannot be written.
    """
    check_look(display)
    chosen = choose_format(format, file.path, room)
    check_output(file.path, force=file.force)
    check_max_tokens(file.max_tokens, chosen)
    width, color = terminal_width(file.path, display.width), use_color(file.path, display.color)
    return Destination(
        *(chosen, file.path, file.force, width, color, room, heading), file.max_tokens
    )


def check_max_tokens(max_tokens: int | None, format: str) -> None:
    """Refuse a limit of tokens if the result is not JSON.

    Raises:
        OptionError: there is a limit.
    """
    if max_tokens is not None and format != "json":
        raise OptionError("`--max-tokens` is for JSON", help="add `-f json`")


def fitted(content: str | bytes, max_tokens: int | None) -> str | bytes:
    """Return the result; JSON is cut to the limit, if there is one."""
    return content if max_tokens is None else f"{shortened(str(content), max_tokens)}\n"


@dataclass(frozen=True, slots=True)
class ReportOutput:
    """A report's destination, and the look of its tables there."""

    destination: Destination
    view: View

    @classmethod
    def of(
        cls,
        format: str | None,
        file: FileOptions,
        display: DisplayOptions,
        tables: TableOptions | None = None,
        heading: str | None = None,
    ) -> ReportOutput:
        """Return the output that the options select.

        Raises:
            OptionError: as ``choose_destination``, and an unknown column or table.
        """
        destination = choose_destination(format, file, display, ROOM, heading)
        view = table_view(destination, tables or TableOptions())
        report_tables.check(view)
        return cls(destination, view)

    def write(self, report: object) -> None:
        """Render a report or a check and write it; nothing if a failed run left none."""
        if isinstance(report, Report | CheckReport):
            self.destination.write(self.render(report))

    def render(self, report: Report | CheckReport) -> str:
        """Return the text of a report or of a check."""
        reporter = plugins.load(ROOM, self.destination.format)
        render = reporter.render_check if isinstance(report, CheckReport) else reporter.render
        text: str = render(report, self.view)
        return text


def table_view(destination: Destination, tables: TableOptions) -> View:
    """Return the look of the tables at a destination, by the options.

    Raises:
        OptionError: several tables in one csv.
    """
    columns = tuple(filter(None, (word.strip() for word in (tables.columns or "").split(","))))
    if destination.format == "csv" and "," in (tables.table or ""):
        raise OptionError("csv holds one table", help="give `--table` one name")
    return View(
        width=destination.width,
        color=destination.color,
        sort=tables.sort,
        top=tables.top,
        columns=columns or None,
        table=tables.table,
        fold=tables.fold,
        depth=tables.depth,
        bar=tables.bar,
        rules=rule_texts() if destination.format == "sarif" else (),
        root=path_root(),
    )


def diff_view(
    destination: Destination,
    top: int | None,
    table: str | None,
    panels: tuple[Panel, ...] = (),
    maps: tuple[Map, ...] = (),
) -> DiffView:
    """Return the look of a comparison at a destination: ``top`` rows of a table, charts of runs."""
    rules = rule_texts() if destination.format == "sarif" else ()
    look = (destination.width, destination.color)
    return DiffView(*look, top, table, path_root(), panels, maps, rules)


def check_look(display: DisplayOptions) -> None:
    """Refuse impossible settings of the terminal.

    Raises:
        OptionError: an unknown color mode, or a width that is too small.
    """
    refuse_unknown("color mode", display.color, COLORS)
    if display.width is not None and display.width < 1:
        raise OptionError(f"`--width {display.width}` is too small", help="give 1 or more")


def text_view(display: DisplayOptions) -> TextView:
    """Return the style of text on standard output.

    Raises:
        OptionError: as ``check_look``.
    """
    check_look(display)
    return TextView(width=terminal_width(None, display.width), color=use_color(None, display.color))


def choose_format(format: str | None, output: Path | None, room: str) -> str:
    """Return the format of ``-f``, else of the suffix of ``-o``, else the terminal's.

    Raises:
        OptionError: a format or suffix that no file in the room has.
    """
    formats = plugins.names(room)
    if format is not None:
        refuse_unknown("format", format, formats)
        return format
    if output is None:
        return "terminal"
    return plugins.by_suffix(room, output, otherwise="say it with `-f`")


def terminal_width(output: Path | None = None, width: int | None = None) -> int | None:
    """Return ``--width``, else the width of standard output; None is unlimited, as for a file."""
    return width if width is not None or output is not None else stream_width(sys.stdout)


def use_color(output: Path | None = None, color: str = "auto") -> bool:
    """Decide on color: ``--color``; else none in a file; else NO_COLOR, FORCE_COLOR, and a
    terminal.
    """
    if color != "auto":
        return color == "always"
    if output is not None or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True, slots=True)
class PlotOptions:
    """A picture of the result."""

    panel: ClassVar[str] = OUTPUT

    plot: Annotated[
        Path | None,
        option(
            "FILE",
            "Also draw the result to this .png, .svg or .pdf: gradients, activations, updates "
            "and memory over depth; or a run over its steps.",
        ),
    ] = None

    def check(self, file: FileOptions) -> None:
        """Refuse a file that could not be written, before anything runs.

        Raises:
            OptionError: another suffix, the file of `-o`, or a path that cannot be written.
        """
        if self.plot is None:
            return
        from gradscope.api.showing import check_picture

        check_picture(self.plot)
        if file.path is not None and file.path.absolute() == self.plot.absolute():
            raise OptionError(f"`{self.plot}` is given to `-o` and to `--plot`")
        check_output(self.plot, force=file.force)

    def refuse(self, what: str) -> None:
        """Refuse ``--plot`` for a result without charts.

        Raises:
            OptionError: a picture was requested.
        """
        if self.plot is not None:
            raise OptionError(f"`--plot` draws reports and runs, not {what}")

    def write(self, record: Plotted | SpikeReport, file: FileOptions) -> None:
        """Draw the record's charts, if a picture was requested and there is something to draw."""
        if self.plot is None:
            return
        from gradscope.api.showing import plotted

        found = plotted(record)
        if not found.charts:
            say(f"nothing to draw: `{self.plot}` was not written")
            return
        write_output(found.drawn(self.plot.suffix.lower()), self.plot, force=file.force)
