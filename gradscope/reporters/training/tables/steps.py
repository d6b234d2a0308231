"""The steps of a run as a table, a row for each: its step metrics in figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gradscope.records.history import RunHistory
from gradscope.records.training import TrainingStep
from gradscope.reporters.report import View
from gradscope.reporters.report.tables.cells import cells, select
from gradscope.reporters.report.tables.columns import Column, Scalar, parse_sort, pick, single
from gradscope.typeset.numbers import count, number, plural, seconds
from gradscope.typeset.tables import KEEP, Heading, Table
from gradscope.typeset.text import plain

#: A terminal gets so many of the last steps unless it asks for others; a pipe gets all.
LAST = 20
_KEEP = {
    **{"step": KEEP, "loss": KEEP, "nonfinite": KEEP, "gradient_norm": 90},
    **{
        "backwards": 65,
        "optimizer": 85,
        "clipped_norm": 80,
        "learning_rate": 70,
        "seconds": 60,
        "loss_scale": 50,
    },
}
USUAL = (
    *("step", "optimizer", "loss", "backwards", "nonfinite", "gradient_norm", "clipped_norm"),
    *("learning_rate", "loss_scale", "seconds", "sampled"),
)
#: What csv holds.
EXACT = (
    *("step", "optimizer", "optimizer_step", "time", "seconds", "loss", "backwards", "losses"),
    *("nonfinite", "gradient_norm", "clipped_norm", "learning_rate", "learning_rates"),
    *("loss_scale", "sampled"),
)


def _figure(key: str, value: Callable[[TrainingStep], float | None]) -> Column[TrainingStep]:
    def text(step: TrainingStep) -> str:
        x = value(step)
        return "" if x is None else number(x)

    def needed(steps: Sequence[TrainingStep]) -> bool:
        return any(value(step) is not None for step in steps)

    return Column(key, value, text, value, needed=needed)


def _whole(key: str, value: Callable[[TrainingStep], int]) -> Column[TrainingStep]:
    return Column(key, value, lambda s: count(value(s)), value, ascending=key == "step")


def _word(key: str, value: Callable[[TrainingStep], Scalar]) -> Column[TrainingStep]:
    def text(step: TrainingStep) -> str:
        return plain(str(value(step) or ""))

    def needed(steps: Sequence[TrainingStep]) -> bool:
        return any(text(step) for step in steps)

    return Column(key, value, text, text, right=False, ascending=True, needed=needed)


def _several(values: tuple[float | None, ...]) -> str:
    return " ".join("" if x is None else repr(x) for x in values) if len(values) > 1 else ""


def _register() -> dict[str, Column[TrainingStep]]:
    rate = _figure("learning_rate", lambda s: s.learning_rates[0] if s.learning_rates else None)
    took = _figure("seconds", lambda step: step.seconds)
    sampled_row = replace(
        _word("sampled", lambda step: step.sampled),
        text=lambda step: "yes" if step.sampled else "",
    )
    summed = replace(
        _whole("backwards", lambda step: len(step.summed_losses)),
        needed=lambda steps: any(len(step.losses) > 1 for step in steps),
    )
    columns = [
        _whole("step", lambda step: step.step),
        _word("optimizer", lambda step: step.optimizer),
        _whole("optimizer_step", lambda step: step.optimizer_step),
        _figure("time", lambda step: step.time),
        _figure("loss", lambda step: step.loss),
        summed,
        _word("losses", lambda step: _several(step.losses)),
        replace(_word("nonfinite", lambda step: step.nonfinite), tone=lambda step, text: "bad"),
        _figure("gradient_norm", lambda step: step.gradient_norm),
        _figure("clipped_norm", lambda step: step.clipped_norm),
        rate,
        _word("learning_rates", lambda step: _several(step.learning_rates)),
        _figure("loss_scale", lambda step: step.loss_scale),
        replace(took, text=lambda step: seconds(step.seconds)),
        sampled_row,
    ]
    return {column.key: replace(column, keep=_KEEP.get(column.key, 0)) for column in columns}


COLUMNS = _register()


def table(history: RunHistory, view: View) -> Table | None:
    """The steps that the view wants; of many, in a terminal, the last ones."""
    if not history.steps:
        return None
    entries = [single((step,)) for step in history.steps]
    top = view.top or (None if view.width is None else LAST)
    if view.sort or top is None or top >= len(entries):
        chosen, caption = select(entries, COLUMNS, replace(view, top=top), "step")
    else:
        chosen = entries[-top:]
        caption = f"the last {count(top)} of {plural(len(entries), 'step')}"
    rows = [row for entry in chosen for row in entry.rows]
    usual = [COLUMNS[key] for key in USUAL]
    keys = [c.key for c in usual if c.needed is None or c.needed(rows)]
    by = parse_sort(view.sort)[0] if view.sort else None
    if by in COLUMNS and by not in keys:
        keys.append(by)
    asked = view.columns if view.table == "steps" else None
    columns = pick(COLUMNS, asked, keys, ["step"])
    more = len(entries) - len(chosen)
    ways = (
        f"`--top {len(entries)}` shows all, `--sort COLUMN` changes the order, `-f csv` has every "
        "figure"
    )
    return Table(
        "steps",
        tuple(Heading(c.key, c.right, KEEP if c.key == by else c.keep) for c in columns),
        cells(columns, [entry.shown for entry in chosen], chosen),
        caption,
        (f"{plural(more, 'step')} more: {ways}",) if more and not view.top else (),
        fixed=bool(asked),
        remedy="use --table steps --columns or a wider terminal",
    )


def records(history: RunHistory, view: View) -> tuple[list[str], list[list[Scalar]]]:
    """Header and exact values, a row for each step."""
    entries, _ = select([single((step,)) for step in history.steps], COLUMNS, view, "step")
    columns = pick(COLUMNS, view.columns if view.table == "steps" else None, EXACT, ["step"])
    rows = [[column.value(step) for column in columns] for entry in entries for step in entry.rows]
    return [column.key for column in columns], rows
