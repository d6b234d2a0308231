"""How a report leaves a command: the options, checked before the run, and one writing."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gradscope import plugins
from gradscope.commands._findings import path_root, rule_texts
from gradscope.commands._write import STDOUT, check_output, write_output
from gradscope.errors import OptionError, did_you_mean
from gradscope.records.report import CheckReport, Report
from gradscope.reporters.report import View
from gradscope.reporters.report.tables import derive
from gradscope.reporters.text_view import TextView

Format = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="FORMAT",
        help="terminal, json, csv, markdown, github (annotations) or sarif. Wins over -o's suffix.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write to this file; its suffix picks the format. `-` is standard output.",
    ),
]
Force = Annotated[bool, typer.Option("--force", metavar="", help="Overwrite the output file.")]
Sort = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Sort by a column: numbers descend, names ascend, rows without a value come last. "
        "`norm:asc` and `name:desc` turn it round.",
    ),
]
Top = Annotated[
    int | None, typer.Option(metavar="N", help="Only the first N calls, and N parameters.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS",
        help="Columns of the calls: `norm,grad_out`, `+min,+max` besides the usual ones, `all`. "
        "With `--table parameters`: of the parameters.",
    ),
]
Table = Annotated[
    str | None,
    typer.Option(metavar="TABLE", help="Only this table: `calls`, `parameters` or `findings`."),
]
Fold = Annotated[
    bool,
    typer.Option(
        "--fold",
        metavar="",
        help="Show blocks that look the same, one after the other, once: `h.0…11.mlp ×12`.",
    ),
]
Color = Annotated[str, typer.Option(metavar="WHEN", help="auto, always or never.")]
Width = Annotated[
    int | None,
    typer.Option(metavar="N", help="Fit the tables into N characters, not the terminal's."),
]

ROOM = "gradscope.reporters.report"
COLORS = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class Destination:
    """A checked wish: nothing but the writing itself can still fail."""

    format: str
    view: View
    path: Path | None
    force: bool


def plan_output(
    *,
    format: str | None = None,
    output: Path | None = None,
    force: bool = False,
    sort: str | None = None,
    top: int | None = None,
    columns: str | None = None,
    table: str | None = None,
    fold: bool = False,
    color: str = "auto",
    width: int | None = None,
) -> Destination:
    """Check every output option, so that a long run does not end in a typing error.

    Raises:
        OptionError: an unknown format, suffix, column or table, or an output that cannot be had.
    """
    path = None if output is None or output == STDOUT else output
    chosen = choose_format(format, path)
    asked = tuple(filter(None, (word.strip() for word in (columns or "").split(","))))
    check_look(color, width)
    view = View(
        width=terminal_width(path, width),
        color=use_color(path, color),
        sort=sort,
        top=top,
        columns=asked or None,
        table=table,
        fold=fold,
        rules=rule_texts() if chosen == "sarif" else (),
        root=path_root(),
    )
    derive.check(view)
    check_output(path, force=force)
    return Destination(chosen, view, path, force)


def check_look(color: str, width: int | None) -> None:
    """Refuse what no terminal can be.

    Raises:
        OptionError: an unknown color mode, or no width at all.
    """
    if color not in COLORS:
        raise OptionError(
            f"unknown color mode `{color}`",
            help=did_you_mean(color, COLORS) or f"one of {', '.join(COLORS)}",
        )
    if width is not None and width < 1:
        raise OptionError(f"`--width {width}` leaves no room", help="give 1 or more")


def text_view(output: Path | None, width: int | None, color: str) -> TextView:
    """How text looks where it goes.

    Raises:
        OptionError: as ``check_look``.
    """
    check_look(color, width)
    return TextView(width=terminal_width(output, width), color=use_color(output, color))


def write_report(report: object, destination: Destination) -> None:
    """Render a report or a check and write it, once; nothing where a failed run left none."""
    reporter = plugins.load(ROOM, destination.format)
    if isinstance(report, CheckReport):
        text = reporter.render_check(report, destination.view)
    elif isinstance(report, Report):
        text = reporter.render(report, destination.view)
    else:
        return
    write_output(text, destination.path, force=destination.force)


def choose_format(format: str | None, output: Path | None, room: str = ROOM) -> str:
    """``-f``, else what the suffix of ``-o`` says, else the terminal.

    Raises:
        OptionError: a format or suffix that no file in the room has.
    """
    formats = plugins.names(room)
    if format is not None:
        if format in formats:
            return format
        raise OptionError(
            f"unknown format `{format}`",
            help=did_you_mean(format, formats) or f"one of {', '.join(formats)}",
        )
    if output is None:
        return "terminal"
    suffixes = {plugins.load(room, name).suffix: name for name in formats}
    suffix = output.suffix.lower()
    if suffix in suffixes:
        return suffixes[suffix]
    said = f"the suffix `{output.suffix}` of" if suffix else "no suffix in"
    known = ", ".join(f"`{suffix}` ({name})" for suffix, name in sorted(suffixes.items()))
    raise OptionError(
        f"{said} `{output}` names no format" if suffix else f"{said} `{output}` to tell the format",
        help=f"use one of {known}, or say it with `-f`",
    )


def terminal_width(output: Path | None = None, width: int | None = None) -> int | None:
    """``--width``, else the terminal's; None, which is unlimited, for files and pipes."""
    if width is not None:
        return width
    if output is not None or not _on_terminal():
        return None
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and len(said) < 6 and int(said) > 0:
        return int(said)
    try:
        # A terminal without a size (some CI, some editors) answers 0.
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def use_color(output: Path | None = None, color: str = "auto") -> bool:
    """``--color``; else never in a file; else NO_COLOR, FORCE_COLOR, and what stdout is."""
    if color != "auto":
        return color == "always"
    if output is not None or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return _on_terminal() and os.environ.get("TERM") != "dumb"


def _on_terminal() -> bool:
    return bool(sys.stdout) and sys.stdout.isatty()
