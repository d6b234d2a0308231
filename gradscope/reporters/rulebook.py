"""The rule book: a list of all rules, or everything about one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from gradscope.plugins import Format
from gradscope.records.data import to_data
from gradscope.reporters.header import TONES
from gradscope.reporters.views import TextView
from gradscope.rules import PRESETS, Rule, Runs
from gradscope.typeset.console import STYLES, Line, dimmed, printed, prose, table_lines, table_rows
from gradscope.typeset.numbers import number, plural
from gradscope.typeset.tables import Cell, Heading, Table, plan
from gradscope.typeset.text import break_words

_COLUMNS = (
    Heading("code", False),
    Heading("rule", False),
    Heading("severity", False),
    Heading("finds", False, 50, prose=True),
)
_GAP = 2


def _terminal(rules: Sequence[Rule], view: TextView) -> str:
    """Return code, name, severity and summary of each rule; for a single rule, all about it."""
    single = len(rules) == 1
    lines = _page(rules[0], view.width) if single else _book(rules, view.width)
    return printed(lines, width=view.width, color=view.color)


def _book(rules: Sequence[Rule], width: int | None) -> Iterator[Text]:
    rows = tuple(
        (
            Cell(rule.code, "head"),
            Cell(rule.name),
            Cell(rule.severity, TONES.get(rule.severity, "")),
            Cell(rule.summary),
        )
        for rule in rules
    )
    table = Table("", _COLUMNS, rows)
    if plan(table, width).hidden:  # the summaries then have their own lines
        table = Table("", _COLUMNS[:-1], tuple(row[:-1] for row in rows), fixed=True)
        head, line, *lines = table_rows(table, width)
        yield from (head, line)
        for text, rule in zip(lines, rules, strict=True):
            yield text
            yield from _paragraph(rule.summary, width, 2 * _GAP)
    else:
        yield from table_rows(table, width)
    yield Text()
    hint = "`gradscope rules CODE` explains one, with its thresholds and their sources"
    yield from dimmed(f"{plural(len(rules), 'rule')} · {hint}", width)


def _page(rule: Rule, width: int | None) -> Iterator[Text]:
    style = STYLES.get(TONES.get(rule.severity, ""), "")
    yield Text.assemble((f"{rule.code} {rule.name}", "bold"), "  ", (rule.severity, style))
    summary = f"{rule.summary[:1].upper()}{rule.summary[1:]}."
    yield from (Text(line) for line in break_words(summary, width))
    for title, text in (
        ("What it looks for", rule.what),
        ("Why it matters", rule.why),
        ("How to fix it", rule.fix),
        ("In a training run", _in_runs(rule)),
        ("How it was calibrated", rule.calibration),
    ):
        if text:
            yield Text()
            yield Text(title, STYLES["head"])
            yield from _paragraph(text, width)
    if rule.thresholds:
        yield Text()
        yield from table_lines(_thresholds(rule), width)
        for threshold in rule.thresholds:
            by = f" ({threshold.source})" if threshold.default is not None else ""
            yield from prose(Line(f"{threshold.meaning}{by}", f"{threshold.name}:", "head"), width)
    yield Text()
    yield Text("Sources", STYLES["head"])
    for source in rule.sources:
        yield from _paragraph(source, width)
    yield Text()
    yield from dimmed(_use(rule), width)


def _in_runs(rule: Rule) -> str:
    """Return sentences on when a run reports the rule, and when it can be judged."""
    runs = rule.runs
    if runs is None:
        return "It does not judge training runs: it needs the full sample or the config of a check."
    if runs.ranks:
        return "It judges runs with several ranks, when `show` or `why` reads their files."
    if runs.loop:
        return (
            "It reads the training loop at every step, sampled or not. It is reported after 5 "
            "steps, or at the end of a shorter run."
        )
    if runs.first:
        return "It judges the first step only."
    needs, limits = [], rule.limits()
    if runs.over_steps:
        needs.append(plural(runs.steps_needed(limits), "step"))
    if runs.over_samples:
        needs.append(plural(runs.samples_needed(limits), "sampled step"))
    return f"{_reported(runs)} It can be judged from {' and '.join(needs)} on."


def _reported(runs: Runs) -> str:
    if runs.steps > 1:
        return f"It is reported after {runs.steps} steps in a row."
    if runs.samples < 2:
        return "It is reported at once."
    start = ", counted from the first" if runs.always else ""
    return f"It is reported after {runs.samples} sampled steps in a row{start}."


def _paragraph(text: str, width: int | None, margin: int = _GAP) -> Iterator[Text]:
    for line in break_words(text, None if width is None else max(1, width - margin)):
        yield Text(" " * margin + line)


def _thresholds(rule: Rule) -> Table:
    presets = [name for name in PRESETS if any(name in t.presets for t in rule.thresholds)]
    headings = [Heading("threshold", right=False), Heading("default")]
    headings += [Heading(name, keep=50) for name in presets]
    rows = tuple(
        (
            Cell(threshold.name),
            Cell(_value(threshold.default)),
            *(Cell(_value(threshold.presets.get(name, threshold.default))) for name in presets),
        )
        for threshold in rule.thresholds
    )
    legend = (
        ("off: this test is switched off",) if any("off" in c.text for r in rows for c in r) else ()
    )
    return Table("Thresholds", tuple(headings), rows, legend=legend)


def _value(value: float | None) -> str:
    if value is None:
        return "off"
    return f"{value:g}" if value == int(value) and abs(value) < 1e4 else _short(value)


def _short(value: float) -> str:
    """Return the number in its short form: 1e-06, 0.3."""
    text = f"{value:g}"
    return text if float(text) == value else number(value)


def _use(rule: Rule) -> str:
    ignore = f"leave it out with `--ignore {rule.code}`"
    if not rule.thresholds:
        return f"{ignore[:1].upper()}{ignore[1:]}"
    first = rule.thresholds[0]
    shown = _value(first.default if first.default is not None else 1.0)
    return (
        f"Set a threshold with `rules.thresholds.{rule.code}.{first.name}={shown}`, all of another "
        f"tool's with `--preset`, or {ignore}"
    )


def _json(rules: Sequence[Rule], view: TextView) -> str:
    """Return the documentation, thresholds and presets of each rule."""
    data = {"schema": "gradscope.rules/1", "rules": list(map(_data, rules))}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _data(rule: Rule) -> Any:
    data = to_data(rule)
    for threshold, record in zip(data["thresholds"], rule.thresholds, strict=True):
        threshold["presets"] = dict(record.presets)
    return data


FORMATS = {"json": Format(".json", _json), "terminal": Format(".txt", _terminal)}
