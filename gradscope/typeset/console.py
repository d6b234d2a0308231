"""Lines of styled text for a terminal of any width; rich only translates the styles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO

from rich.console import Console
from rich.text import Text

from gradscope.typeset.tables import GAP, Table, plan
from gradscope.typeset.text import break_words

STYLES = {"head": "bold", "dim": "dim", "bad": "bold red", "warn": "yellow", "good": "green"}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of prose: ``lead`` is its emphasised beginning, ``indent`` its depth."""

    text: str
    lead: str = ""
    tone: str = ""
    indent: int = 0

    def __str__(self) -> str:
        """Return the line without its tone, unbroken."""
        return "  " * self.indent + (f"{self.lead} {self.text}" if self.lead else self.text)


def prose(line: Line, width: int | None) -> Iterator[Text]:
    """Yield a line of prose, broken at spaces; its lead carries the tone."""
    margin = "  " * line.indent
    room = None if width is None else max(1, width - len(margin))
    for i, part in enumerate(break_words(str(line).removeprefix(margin), room, indent="  ")):
        lead = line.lead if i == 0 and part.startswith(line.lead) else ""
        style = STYLES.get(line.tone, "bold")
        yield Text.assemble(margin, (lead, style), part[len(lead) :])


def paragraphs(lines: Iterable[Line], width: int | None) -> Iterator[Text]:
    """Yield several lines of prose."""
    return (text for line in lines for text in prose(line, width))


def stacked(blocks: Iterable[Iterable[Text]]) -> list[Text]:
    """Join blocks with an empty line between them; empty blocks are left out."""
    filled = [block for block in map(list, blocks) if block]
    return [line for block in filled for line in (Text(), *block)][1:]


def dimmed(text: str, width: int | None) -> Iterator[Text]:
    """Yield a remark, broken at spaces."""
    yield from (Text(line, "dim") for line in break_words(text, width, indent="  "))


def table_rows(table: Table, width: int | None, *, rule: bool = True) -> Iterator[Text]:
    """Yield a table without its title: the header, a rule below it, and the rows."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    widths = plan(table, width).widths
    grid = Grid(
        box=SIMPLE_HEAD if rule else None,
        show_edge=False,
        # With a rule, the box itself draws one cell between columns.
        padding=(0, GAP - 1 if rule else GAP, 0, 0),
        pad_edge=False,
        header_style=STYLES["head"],
        border_style=STYLES["dim"],
    )
    for i, column in enumerate(table.columns):
        if i in widths:
            grid.add_column(
                Text(column.key),
                justify="right" if column.right else "left",
                width=widths[i],
                no_wrap=True,
            )
    for row in table.rows:
        texts = ("\n".join(table.columns[i].lines(row[i].text, w)) for i, w in widths.items())
        tones = (STYLES.get(row[i].tone, "") for i in widths)
        grid.add_row(*map(Text, texts, tones))
    total = sum(widths.values()) + GAP * (len(widths) - 1)
    console = _console(StringIO(), total, color=False)
    for segments in console.render_lines(grid, pad=False):
        # Blanks need no style: they would be escapes for nothing.
        parts = ((text, style or "") if text.strip() else text for text, style, _ in segments)
        yield Text.assemble(*parts)


def table_lines(table: Table, width: int | None) -> Iterator[Text]:
    """Yield a table under its title, with its hidden columns and the legend below."""
    yield Text.assemble((table.title, "bold"), f"  {table.caption}" if table.caption else "")
    yield from table_rows(table, width)
    # A column without a name belongs to its neighbour.
    hidden = [name for name in plan(table, width).hidden if name]
    if hidden:
        yield from dimmed(f"hidden at this width: {', '.join(hidden)} ({table.remedy})", width)
    for remark in table.legend:
        yield from dimmed(remark, width)


def printed(lines: Iterable[Text], *, width: int | None, color: bool) -> str:
    """Return the lines as text, with escapes for the styles if ``color`` requests them.

    Nothing is wrapped or cut here: the lines have their width already.
    """
    out = StringIO()
    console = _console(out, width or 80, color=color)
    for line in lines:
        line.rstrip()
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
    return out.getvalue()


def as_html(text: str) -> str:
    """Return the text of ``printed`` as HTML: the same text, each style spelled out."""
    shown = Text.from_ansi(text)
    width = max((line.cell_len for line in shown.split()), default=1)
    console = _console(StringIO(), max(1, width), color=True)
    console.record = True
    console.print(shown, markup=False, highlight=False, emoji=False, soft_wrap=True)
    block = '<pre style="white-space: pre; overflow-x: auto; line-height: normal">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=block)


def _console(out: StringIO, width: int, *, color: bool) -> Console:
    """Return rich's console with fixed settings, independent of the environment."""
    return Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        force_jupyter=False,
        legacy_windows=False,
    )
