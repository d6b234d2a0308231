"""Lines of styled text for a terminal of any width; rich only translates the styles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO

from rich.console import Console
from rich.text import Text

from gradscope.typeset.tables import GAP, Table, lay_out, plan
from gradscope.typeset.text import break_words

STYLES = {"head": "bold", "dim": "dim", "bad": "bold red", "warn": "yellow", "good": "green"}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of prose: ``lead`` is its first, weightier part, ``indent`` its depth."""

    text: str
    lead: str = ""
    tone: str = ""
    indent: int = 0


def prose(line: Line, width: int | None) -> Iterator[Text]:
    """A line of prose, broken at spaces; its lead carries the tone."""
    margin = "  " * line.indent
    whole = f"{line.lead} {line.text}" if line.lead else line.text
    room = None if width is None else max(1, width - len(margin))
    for i, part in enumerate(break_words(whole, room, indent="  ")):
        lead = line.lead if i == 0 and part.startswith(line.lead) else ""
        style = STYLES.get(line.tone, "bold")
        yield Text.assemble(margin, (lead, style), part[len(lead) :])


def paragraphs(lines: Iterable[Line], width: int | None) -> Iterator[Text]:
    """Several lines of prose."""
    return (text for line in lines for text in prose(line, width))


def stacked(blocks: Iterable[Iterable[Text]]) -> list[Text]:
    """Blocks with an empty line between them; one without lines leaves no trace."""
    filled = [block for block in map(list, blocks) if block]
    return [line for block in filled for line in (Text(), *block)][1:]


def dimmed(text: str, width: int | None) -> Iterator[Text]:
    """A remark, broken at spaces."""
    yield from (Text(line, "dim") for line in break_words(text, width, indent="  "))


def table_rows(table: Table, width: int | None, *, rule: bool = True) -> Iterator[Text]:
    """A table without its title: the header, a rule below it, and the rows."""
    for i, cells in enumerate(lay_out(table, plan(table, width))):
        if rule or i != 1:
            yield Text(" " * GAP).join(Text(c.text, STYLES.get(c.tone, "")) for c in cells)


def table_lines(table: Table, width: int | None) -> Iterator[Text]:
    """A table under its title, with what was hidden and the legend below."""
    laid = plan(table, width)
    yield Text.assemble((table.title, "bold"), f"  {table.caption}" if table.caption else "")
    for cells in lay_out(table, laid):
        yield Text(" " * GAP).join(Text(cell.text, STYLES.get(cell.tone, "")) for cell in cells)
    if laid.hidden:
        hidden = f"hidden at this width: {', '.join(laid.hidden)} ({table.remedy})"
        yield from dimmed(hidden, width)
    for remark in table.legend:
        yield from dimmed(remark, width)


def printed(lines: Iterable[Text], *, width: int | None, color: bool) -> str:
    """The lines as text, with escapes for the styles where ``color`` asks for them.

    Nothing is wrapped or cut here: the lines have their width already.
    """
    out = StringIO()
    console = Console(
        file=out,
        width=width or 80,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        force_jupyter=False,
        legacy_windows=False,
    )
    for line in lines:
        line.rstrip()
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
    return out.getvalue()
