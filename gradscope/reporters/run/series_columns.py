"""Columns of a table of layers over steps: each measure first to last, and as a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gradscope.records.tensors import MEASURES as NORMS
from gradscope.records.tensors import number_or_none, steps_lost
from gradscope.records.training import Course, LayerSeries
from gradscope.reporters.header import label
from gradscope.reporters.run.step_metrics import losses
from gradscope.reporters.tables.call_columns import MISSING
from gradscope.reporters.tables.columns import Column, figure, over_ranks, words
from gradscope.reporters.tables.transformer import REDUCED, SHARES
from gradscope.typeset.numbers import NOT_THERE, number, shape, share
from gradscope.typeset.sparklines import NOT_FINITE, curve
from gradscope.typeset.tables import KEEP
from gradscope.typeset.text import plain

Figure = Callable[[float], str]
#: Between the first value and the last.
TO = " → "
#: A table's measures: the column's name and the series', in the order of the columns.
PARAMETERS = {
    "grad": "grad_norm",
    "update": "update_ratio",
    "norm": "value_norm",
    "clipped": "clipped_norm",
    "zeros": "zeros",
    "update_rms": "update_rms",
    "effective_lr": "effective_lr",
    "cosine": "cosine",
    "decay": "decay_share",
    "momentum": "m_norm",
    "v_norm": "v_norm",
    "v_spread": "v_spread",
    "spectral_norm": "spectral_norm",
    "stable_rank": "stable_rank",
}
CALLS = {
    "norm": "out_norm",
    "grad_out": "grad_out_norm",
    "grad_in": "grad_in_norm",
    "mean": "out_mean",
    "std": "out_std",
    "min": "out_min",
    "max": "out_max",
    "zeros": "out_zeros",
}
#: Of attention, experts and residual stream, reduced over heads and experts.
TRANSFORMER = {kind: {key: key for key in columns} for kind, columns in REDUCED.items()}
_KEEP = {
    **{"name": KEEP, "grad": KEEP, "grad_out": KEEP, "nonfinite": KEEP},
    **{"grad_curve": 90, "grad_out_curve": 90, "update": 80, "norm": 70},
    **{"update_curve": 60, "norm_curve": 50, "norm_ranks": 65, "grad_out_ranks": 75},
    **{"logit_max": KEEP, "logit_max_curve": 90, "evenness": 85, "evenness_curve": 80},
    **{"most": KEEP, "effective": 85, "effective_curve": 80, "unused": 75, "sink": 70},
    **{"rms": KEEP, "rms_curve": 80, "added": 85, "max_to_median": 75, "nan_rows": KEEP},
    **{"update_rms": KEEP, "update_rms_curve": 85, "cosine": 78, "decay": 76, "momentum": 72},
    **{"v_norm": 68, "v_spread": 58, "effective_lr": 74, "spectral_norm": 66, "stable_rank": 64},
}
USUAL = {
    "parameters": (
        *("name", "grad", "grad_curve", "update", "update_curve", "norm", "norm_curve"),
        "nonfinite",
    ),
    "updates": (
        *("name", "update_rms", "update_rms_curve", "effective_lr", "cosine", "decay"),
        *("momentum", "v_norm", "v_spread", "spectral_norm", "stable_rank"),
    ),
    "calls": (
        *("name", "norm", "norm_ranks", "norm_curve"),
        *("grad_out", "grad_out_ranks", "grad_out_curve", "nonfinite"),
    ),
    "attention": (
        *("name", "logit_max", "logit_max_curve", "evenness", "evenness_curve", "sink"),
        *("masked_rows", "nan_rows"),
    ),
    "experts": ("name", "most", "unused", "effective", "effective_curve", "entropy", "dropped"),
    "residual": ("name", "rms", "rms_curve", "added", "max_to_median", "kurtosis"),
}
#: Shown where they are not zero.
_RARE = ("masked_rows", "nan_rows", "dropped")


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A layer's series, with the steps of each measure, the width of its curves, and the number of
    layers in the row.

    A curve covers the steps at which any row has the measure; ``places`` numbers them.
    """

    series: LayerSeries
    places: Callable[[str], Mapping[int, int]]
    room: int = 24
    times: int = 1
    _courses: dict[str, Course] = field(default_factory=dict, compare=False)

    @property
    def about(self) -> str:
        """The parameter or the call: the key of the row in a page."""
        return label(self.series.name, self.series.call)

    def course(self, measure: str) -> Course:
        """A measure at every step that has it."""
        found = self._courses.get(measure)
        if found is None:
            found = self._courses[measure] = self.series.course(measure)
        return found

    def ends(self, measure: str) -> list[tuple[float | None, bool]]:
        """Return the first and the last value (one if there is one), and True for NaN or Inf."""
        steps, values, lost = self.course(measure)
        places = (0, -1) if len(steps) > 1 else (0,) if steps else ()
        return [(values[i], steps[i] in lost) for i in places]

    def curve(self, measure: str) -> str:
        """Return a measure as a curve of blocks."""
        (steps, values, lost), at = self.course(measure), self.places(measure)
        places, gone = [at[step] for step in steps], [at[step] for step in lost]
        return curve(places, values, gone, first=0, last=len(at) - 1, width=self.room)

    def known(self, measure: str) -> list[float]:
        """The finite values of a measure."""
        values = self.course(measure).values
        return [x for x in values if x is not None and math.isfinite(x)]

    def spread(self, measure: str) -> tuple[float, float] | None:
        """Return the smallest and the largest value of a measure over ranks, at its last step."""
        lowest, highest = self.series.lowest.get(measure, ()), self.series.highest.get(measure, ())
        for low, high in zip(reversed(lowest), reversed(highest), strict=True):
            if low is not None and high is not None:
                return low, high
        return None

    @property
    def change(self) -> float:
        """Return the change of the gradient's norm from the first step to the last, in powers of
        ten."""
        norms: Sequence[float | None]
        if self.series.norms is not None and self.series.norms.steps:
            norms = self.series.norms.gradient
        else:
            norms = self.course("grad_norm" if self.series.call is None else "grad_out_norm").values
        found = [next(filter(_is_known, way), None) for way in (norms, reversed(norms))]
        known = [x for x in found if x is not None]
        if not known or known[0] == known[-1]:
            return 0.0
        ends = [math.log10(x) if x > 0 else -400.0 for x in known]
        return abs(ends[1] - ends[0])

    @property
    def lost(self) -> list[int]:
        """Return the steps at which the row's tensor had a NaN or Inf."""
        found = set(lost_steps(self.series))
        if self.series.norms is not None:
            found.update(*(steps_lost(*self.series.norms.of(measure)) for measure in NORMS))
        return sorted(found)


def _is_known(norm: float | None) -> bool:
    return norm is not None and number_or_none(norm) is not None


def lost_steps(series: LayerSeries) -> list[int]:
    """Return the steps at which one of a layer's tensors had a NaN or Inf."""
    counts = [n for key, n in series.values.items() if key.endswith("nonfinite")]
    steps = zip(series.steps, *counts, strict=True)
    return [step for step, *several in steps if any(several)]


def _text(value: float | None, lost: bool, figure: Figure, absent: str) -> str:
    text = absent if value is None else figure(value)
    if not lost:
        return text
    return NOT_FINITE if value is None else text + NOT_FINITE


def _course(row: SeriesRow, measure: str, figure: Figure) -> str:
    absent = MISSING if measure.startswith("grad") else NOT_THERE
    return TO.join(_text(value, lost, figure, absent) for value, lost in row.ends(measure))


def _last(row: SeriesRow, measure: str) -> float | None:
    values = row.course(measure).values
    return values[-1] if values else None


def _share(part: float) -> str:
    return share(part, 1.0)


def _bad(row: SeriesRow, text: str) -> str:
    return "bad" if NOT_FINITE in text else ""


def _at(which: Callable[[list[float]], float], row: SeriesRow, measure: str) -> float | None:
    known = row.known(measure)
    return which(known) if known else None


def _measured(key: str, measure: str) -> Iterator[Column[SeriesRow]]:
    """Yield a measure's columns: first to last value, curve, and figures."""
    last = partial(_last, measure=measure)
    written: Figure = _share if key in ("zeros", "decay", *SHARES) else number
    course = partial(_course, measure=measure, figure=written)

    def needed(rows: Sequence[SeriesRow]) -> bool:
        known = (row.known(measure) for row in rows)
        return any(any(one) for one in known) if key in _RARE else any(known)

    def over_steps(rows: Sequence[SeriesRow]) -> bool:
        return needed(rows) and any(len(row.course(measure).steps) > 1 for row in rows)

    yield Column(key, last, course, last, tone=_bad, needed=needed)

    def drawn(row: SeriesRow) -> str:
        return row.curve(measure)

    yield Column(f"{key}_curve", drawn, drawn, last, right=False, tone=_bad, needed=over_steps)
    yield over_ranks(f"{key}_ranks", lambda row: row.spread(measure), written)
    ends: dict[str, Callable[[list[float]], float]] = {
        **{"first": lambda known: known[0], "last": lambda known: known[-1]},
        **{"min": min, "max": max},
    }
    for word, which in ends.items():
        yield figure(f"{key}_{word}", partial(_at, which, measure=measure), written)


def _name(row: SeriesRow) -> str:
    times = f" ×{row.times}" if row.times > 1 else ""
    if row.series.call is None:
        return plain(row.series.name) + times
    return label(row.series.name, row.series.call) + times


def _register(table: str, measures: Mapping[str, str]) -> dict[str, Column[SeriesRow]]:
    columns = [words("name", lambda r: r.series.name, _name, wraps=True, needed=lambda rows: True)]
    if table in ("parameters", "updates"):
        columns.append(words("shape", lambda r: shape(r.series.shape) if r.series.shape else ""))
    elif table == "calls":
        columns.append(words("type", lambda row: next(iter(row.series.types), "")))
    for key, measure in measures.items():
        columns += _measured(key, measure)
    nonfinite: Column[SeriesRow] = Column(
        "nonfinite",
        lambda row: len(row.lost),
        lambda row: losses(row.lost),
        lambda row: len(row.lost) or None,
        tone=lambda row, text: "bad" if text else "",
        needed=lambda rows: any(row.lost for row in rows),
    )
    usual = USUAL[table]
    return {
        column.key: replace(
            column,
            keep=_KEEP.get(column.key, 0),
            needed=column.needed if column.key in usual else None,
        )
        for column in [*columns, figure("change", lambda row: row.change), nonfinite]
    }


COLUMNS = {
    "parameters": _register("parameters", PARAMETERS),
    "updates": _register("updates", PARAMETERS),
    "calls": _register("calls", CALLS),
    **{kind: _register(kind, measures) for kind, measures in TRANSFORMER.items()},
}
