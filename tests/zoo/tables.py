"""The results as tables: totals by group and kind, and each failure with its reason."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

Data = dict[str, Any]
#: Heading → what of a kind's results is counted.
_COLUMNS = {
    "models": lambda row: True,
    "run": lambda row: row["outcome"] in ("ok", "failed"),
    "all held": lambda row: row["outcome"] == "ok",
    "repeat": lambda row: bool(row.get("repeats")),
    "identical": lambda row: bool(row.get("identical")),
    "in float64": lambda row: row.get("precision") == "float64",
}


def totals(results: Iterable[Data]) -> Table:
    """A row for each kind of each group, and the sums."""
    rows = list(results)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("group", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("families", justify="right", no_wrap=True)
    for heading in (*_COLUMNS, "tensors", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        for kind in dict.fromkeys(row["kind"] for row in own):
            table.add_row(group, kind, *_counts([row for row in own if row["kind"] == kind]))
        table.add_row(group, "all", *_counts(own), style="bold", end_section=True)
    table.add_row("total", "", *_counts(rows), style="bold")
    return table


def _counts(rows: list[Data]) -> list[str]:
    families = {(row["group"], row["family"]) for row in rows}
    counted = [sum(map(count, rows)) for count in _COLUMNS.values()]
    sums = [sum(row.get(key, 0) for row in rows) for key in ("compared", "calls")]
    return [f"{number:,}".replace(",", " ") for number in (len(families), *counted, *sums)]


def print_results(results: Iterable[Data], own: dict[str, str], console: Console) -> None:
    """The totals, how many steps repeat, what failed (``own``: by itself), and the findings."""
    rows = list(results)
    _print_checks([row for row in rows if "outcome" in row], own, console)
    _print_findings([row for row in rows if "diagnosis" in row], console)


def _print_checks(rows: list[Data], own: dict[str, str], console: Console) -> None:
    if not rows:
        return
    console.print(totals(rows))
    ran = [row for row in rows if row.get("repeats") is not None]
    repeating = sum(row["repeats"] for row in ran)
    console.print()
    if ran:
        share = 100 * repeating / len(ran)
        console.print(f"{repeating} of {len(ran)} plain steps repeat bit for bit ({share:.1f} %)")
    hidden = sum(row.get("hidden", 0) for row in rows)
    console.print(f"{hidden} gradients are null with the note that says why (in-place views)")
    failed = [row for row in rows if row["outcome"] != "ok"]
    mine = [row for row in failed if row["label"] not in own]
    console.print(f"{len(failed)} of {len(rows)} failed, {len(failed) - len(mine)} by themselves")
    for row in failed:
        said = f" (its own: {own[row['label']]})" if row["label"] in own else ""
        console.print(Text(f"  {row['label']}: {row['outcome']}{said}"))
        for reason in row["reasons"][:3]:
            console.print(Text(f"    {reason}"))


def _print_findings(rows: list[Data], console: Console) -> None:
    """Print the rules' findings in fresh models, and each error."""
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold", title="models with findings")
    headings = ("group", "models", "looked at", "error", "not confirmed", "warning", "info")
    for heading in (*headings, "findings by rule"):
        last = heading == "findings by rule"
        left = last or heading == "group"
        table.add_column(heading, justify="left" if left else "right", no_wrap=not last)
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row["diagnosis"] for row in rows if row["group"] == group]
        ran = [each for each in own if each["outcome"] == "ok"]
        levels = [
            sum(bool(each["findings"].get(severity)) for each in ran)
            for severity in ("error", "warning", "info")
        ]
        levels.insert(1, sum(bool(each["errors"]) for each in ran))
        codes: collections.Counter[str] = collections.Counter()
        for each in ran:
            codes.update(each["codes"])
        said = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
        table.add_row(group, *map(str, (len(own), len(ran), *levels)), said)
    console.print()
    console.print(table)
    for row in rows:
        own = row["diagnosis"]
        for said in own["reasons"] if own["outcome"] != "ok" else own["errors"]:
            console.print(Text(f"  {row['label']}: {said}"))
