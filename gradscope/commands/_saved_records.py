"""``show`` of a saved comparison or of saved answers."""

from __future__ import annotations

from dataclasses import fields

from gradscope import plugins
from gradscope.commands._findings import path_root, rule_texts
from gradscope.commands._options import DisplayOptions, FileOptions
from gradscope.commands._tables import TableOptions
from gradscope.commands._views import choose_destination
from gradscope.errors import OptionError, refuse_unknown
from gradscope.records.answers import WhyReport
from gradscope.records.diff import TABLES_OF_DIFF, DiffReport
from gradscope.reporters.diff import DiffView
from gradscope.reporters.text_view import TextView

_ROOMS = {DiffReport: "gradscope.reporters.diff", WhyReport: "gradscope.reporters.answers"}
_WORDS = {DiffReport: "a comparison", WhyReport: "a set of answers"}
#: The options of tables that each has a use for.
_TAKES: dict[type, tuple[str, ...]] = {DiffReport: ("top", "table"), WhyReport: ()}


def write_saved(
    record: DiffReport | WhyReport,
    format: str | None,
    file: FileOptions,
    display: DisplayOptions,
    tables: TableOptions,
) -> None:
    """Write it as ``diff`` or ``why`` did.

    Raises:
        OptionError: an option that it cannot honour.
    """
    kind, room = type(record), _ROOMS[type(record)]
    destination = choose_destination(format, file, display, room)
    given = [f.name for f in fields(tables) if getattr(tables, f.name) not in (None, False)]
    for name in given:
        if name not in _TAKES[kind]:
            raise OptionError(f"`--{name}` is for a report, and this is {_WORDS[kind]}")
    view: DiffView | TextView = TextView(width=destination.width, color=destination.color)
    if kind is DiffReport:
        if tables.table is not None:
            refuse_unknown("table", tables.table, TABLES_OF_DIFF)
        rules = rule_texts() if destination.format == "sarif" else ()
        shape = (destination.width, destination.color, tables.top, tables.table, path_root())
        view = DiffView(*shape, rules=rules)
    destination.write(plugins.load(room, destination.format).render(record, view))
