"""The steps of a run as a table, a row for each, and the choices of a view of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from gradscope.records.training import RunHistory, TrainingStep
from gradscope.reporters.run import layers
from gradscope.reporters.tables.columns import (
    Column,
    Scalar,
    cells,
    chosen_columns,
    figure,
    having,
    pick,
    select,
    single,
    sort_column,
    words,
)
from gradscope.reporters.tables.report_tables import check_choices
from gradscope.reporters.views import View
from gradscope.typeset.numbers import count, plural, seconds
from gradscope.typeset.tables import KEEP, Table

#: The number of last steps in a terminal, unless the user asks for others; a pipe gets all.
LAST = 20
_KEEP = {
    **{"step": KEEP, "loss": KEEP, "nonfinite": KEEP, "gradient_norm": 90},
    **{
        "backwards": 65,
        "optimizer": 85,
        "clipped_norm": 80,
        "update_rms": 75,
        "learning_rate": 70,
        "seconds": 60,
        "loss_scale": 50,
    },
}
USUAL = (
    *("step", "optimizer", "loss", "backwards", "nonfinite", "gradient_norm", "clipped_norm"),
    *("update_rms", "learning_rate", "loss_scale", "seconds", "sampled"),
)
#: Columns of csv.
EXACT = (
    *("step", "optimizer", "optimizer_step", "time", "seconds", "loss", "backwards", "losses"),
    *("nonfinite", "gradient_norm", "clipped_norm", "learning_rate", "learning_rates"),
    *("loss_scale", "sampled", "update_rms"),
)


def _several(values: tuple[float | None, ...]) -> str:
    return " ".join("" if x is None else repr(x) for x in values) if len(values) > 1 else ""


def _word(column: Column[TrainingStep]) -> Column[TrainingStep]:
    """Text that is sorted as it is shown."""
    return having(replace(column, rank=column.text))


def _columns() -> Iterator[Column[TrainingStep]]:
    yield figure("step", lambda step: step.step, count, ascending=True, needed=bool)
    yield _word(words("optimizer", lambda step: step.optimizer))
    yield figure("optimizer_step", lambda step: step.optimizer_step, count)
    yield having(figure("time", lambda step: step.time))
    yield having(figure("loss", lambda step: step.loss))
    several = {"needed": lambda steps: any(len(step.losses) > 1 for step in steps)}
    yield figure("backwards", lambda step: len(step.summed_losses), count, **several)
    yield _word(words("losses", lambda step: _several(step.losses)))
    yield _word(words("nonfinite", lambda step: step.nonfinite, tone=lambda step, text: "bad"))
    yield having(figure("gradient_norm", lambda step: step.gradient_norm))
    yield having(figure("clipped_norm", lambda step: step.clipped_norm))
    yield having(figure("update_rms", lambda step: step.update_rms))
    yield having(figure("learning_rate", lambda step: next(iter(step.learning_rates), None)))
    yield _word(words("learning_rates", lambda step: _several(step.learning_rates)))
    yield having(figure("loss_scale", lambda step: step.loss_scale))
    yield having(figure("seconds", lambda step: step.seconds, seconds))
    yield _word(words("sampled", lambda s: s.sampled, lambda s: "yes" if s.sampled else ""))


COLUMNS = {one.key: replace(one, keep=_KEEP.get(one.key, 0)) for one in _columns()}


def table(history: RunHistory, view: View) -> Table | None:
    """Return the table of the requested steps; if there are many, a terminal shows the last
    ones."""
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
    asked = view.columns if view.table == "steps" else None
    columns, headings = chosen_columns(COLUMNS, USUAL, rows, asked, [sort_column(view)])
    more = len(entries) - len(chosen)
    ways = (
        f"`--top {len(entries)}` shows all, `--sort COLUMN` changes the order, `-f csv` has every "
        "figure"
    )
    return Table(
        "steps",
        headings,
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


_COLUMNS: Mapping[str, Collection[str] | None] = {
    "steps": COLUMNS,
    **layers.COLUMNS,
    "findings": None,
    "events": None,
}


def check(view: View) -> None:
    """Refuse a view that names an unknown column or table, before the run is read.

    Raises:
        OptionError: an unknown table, column or direction, or a ``top`` below 1.
    """
    check_choices(view, _COLUMNS, layers.COLUMNS["parameters"])
