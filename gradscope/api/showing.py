"""Shows and saves a record: text, a page, tables, or its charts as one picture; no torch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gradscope import pages, plugins
from gradscope.api.reading import read_history, report_of_step
from gradscope.charts import figure
from gradscope.charts.maps import Map
from gradscope.charts.panels import Panel
from gradscope.diagrams import GraphView
from gradscope.errors import OptionError, did_you_mean
from gradscope.output_files import check_file, expanded, write_file
from gradscope.records.answers import Answer, WhyReport
from gradscope.records.coord_check import CoordCheckReport, LayerScaling
from gradscope.records.data import to_data
from gradscope.records.diff import DiffReport
from gradscope.records.experiment import ArmResult, ExperimentReport
from gradscope.records.graph import AutogradGraph, GraphNode
from gradscope.records.leaks import LeaksReport
from gradscope.records.report import CheckReport, Finding, Report
from gradscope.records.saliency import SaliencyReport
from gradscope.records.showing import Plotted, Shown
from gradscope.records.spike import SpikeReport
from gradscope.records.training import RunHistory, TrainingRun
from gradscope.records.transformer import PROBES
from gradscope.reporters import coord_check, experiment, spike
from gradscope.reporters.run import qualified, step_metrics
from gradscope.reporters.run.summary import title
from gradscope.reporters.tables.charts import panels
from gradscope.reporters.views import DiffView, TextView, View
from gradscope.runfile.reader import RunFile
from gradscope.typeset.console import as_html


@dataclass(frozen=True, slots=True, repr=False)
class Plot:
    """Charts that a notebook shows and that ``save`` writes."""

    title: str
    charts: tuple[Panel | Map, ...]

    def __repr__(self) -> str:
        return f"<gradscope plot of {self.title}: {', '.join(one.title for one in self.charts)}>"

    def _repr_svg_(self) -> str:
        return self.drawn(".svg").decode("utf-8")

    def drawn(self, suffix: str) -> bytes:
        """Return a file's content; ``suffix`` is ".png", ".svg" or ".pdf"."""
        return figure.drawn(self.title, self.charts, suffix)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write a picture; the suffix sets its kind: .png, .svg or .pdf.

        Raises:
            OptionError: another suffix, or the file exists or cannot be written.
        """
        path = expanded(path)
        check_picture(path)
        _check_new(path, force, "`force=True` replaces it")
        write_file(self.drawn(path.suffix.lower()), path, force=force)


def _check_new(path: Path, force: bool, help: str) -> None:
    if os.path.lexists(path) and not force:
        raise OptionError(f"`{path}` exists", help=help)
    check_file(path, force=True)


#: Records with charts.
_Drawn = Plotted | SpikeReport


def plot(record: _Drawn) -> Plot:
    """Return the charts of a record: over depth for a report, over steps for a run.

    Raises:
        OptionError: nothing to draw.
    """
    found = plotted(record)
    if not found.charts:
        raise OptionError("nothing to draw")
    return found


def plotted(record: _Drawn) -> Plot:
    """Return the charts of a record as ``plot`` does, but empty if there is no data."""
    if isinstance(record, Report):
        return Plot(record.run.model, panels(record))
    if isinstance(record, ExperimentReport):
        return Plot(record.script, experiment.panels(record))
    if isinstance(record, CoordCheckReport):
        return Plot(record.run.model, coord_check.panels(record))
    if isinstance(record, SpikeReport):
        return Plot(f"{record.run}: step {record.step}", spike.panels(record))
    assert isinstance(record, RunHistory)
    of_models = qualified(record)
    return Plot(title(record.run), (*step_metrics.panels(of_models), *step_metrics.maps(of_models)))


def check_picture(path: Path) -> None:
    """Refuse a path that is not a picture file.

    Raises:
        OptionError: the suffix is not one of a picture.
    """
    if path.suffix.lower() not in figure.SUFFIXES:
        suffixes = ", ".join(f"`{suffix}`" for suffix in figure.SUFFIXES)
        raise OptionError(
            f"`{path}` is not a picture file",
            help=f"use one of {suffixes}; `-o report.html` makes a page",
        )


__all__ = ["frame", "html", "plot", "report_of_step", "save", "text"]

#: The rooms of formats: each file of one has ``render(record, view)``.
_ROOMS: dict[type[Shown], str] = {
    Report: "gradscope.reporters.report",
    WhyReport: "gradscope.reporters.answers",
    SaliencyReport: "gradscope.reporters.saliency",
    AutogradGraph: "gradscope.diagrams",
    DiffReport: "gradscope.reporters.diff",
    CoordCheckReport: "gradscope.reporters.coord_check",
    ExperimentReport: "gradscope.reporters.experiment",
    LeaksReport: "gradscope.reporters.leaks",
    CheckReport: "gradscope.reporters.report",
    RunHistory: "gradscope.reporters.training",
}
#: Records with a page of parts that a notebook can show.
_WITH_PAGES = (
    *(ExperimentReport, LeaksReport, Report, WhyReport, DiffReport, SaliencyReport, RunHistory),
    CoordCheckReport,
)
#: The display options of each record's formats; of the others, those of text.
_VIEWS: dict[type[Shown], Callable[..., Any]] = {
    **dict.fromkeys((Report, CheckReport, RunHistory), View),
    AutogradGraph: GraphView,
    DiffReport: DiffView,
}
_Rows = tuple[Sequence[str], Sequence[Sequence[Any]]]


def text(record: Shown) -> str:
    """Return the record's text for the terminal, of unlimited width."""
    return str(rendered(record, "terminal")).rstrip("\n")


def html(record: Shown) -> str:
    """Return the record's page as HTML for a notebook, or its coloured text if it has no page."""
    if isinstance(record, _WITH_PAGES):
        reporter = plugins.load(_ROOMS[type(record)], "html")
        return pages.fragment(reporter.page(record, _VIEWS.get(type(record), TextView)()))
    return as_html(str(rendered(record, "terminal", color=True)))


def run_page(run: RunFile, ended: TrainingRun | None = None) -> str:
    """Return the page of a run.

    Args:
        run: its file.
        ended: its end, if the file does not have it yet.

    Raises:
        ConfigError: the file is damaged.
    """
    history = read_history(run, calls=True)
    if ended is not None:
        history = replace(history, run=ended, age=None)
    reporter = plugins.load(_ROOMS[RunHistory], "html")
    return str(reporter.render(history, View()))


def save(record: Shown, path: Path, *, force: bool) -> None:
    """Write a record; the suffix sets the format.

    Raises:
        OptionError: the suffix is unknown, or the file exists or cannot be written.
    """
    path = expanded(path)
    format = plugins.by_suffix(_ROOMS[type(record)], path, otherwise="print it: `print(report)`")
    _check_new(path, force, "`save(path, force=True)` replaces it")
    content = rendered(record, format)
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    write_file(data, path, force=force)


def frame(record: Shown, table: str | None) -> Any:
    """Return one of a record's tables for pandas.

    Raises:
        ConfigError: pandas is not installed.
        OptionError: the table does not exist.
    """
    tables = _tables(record)
    chosen = next(iter(tables)) if table is None else table
    if chosen not in tables:
        names = ", ".join(f"`{name}`" for name in tables)
        raise OptionError(
            f"there is no table `{table}` here",
            help=did_you_mean(chosen, tables) or f"there is {names}",
        )
    from gradscope.loading.imports import require

    pandas = require("pandas", wanted_by="to_frame")
    header, rows = tables[chosen]()
    return pandas.DataFrame([list(row) for row in rows], columns=list(header))


def rendered(record: Shown, format: str, *, color: bool = False) -> str | bytes:
    """Render the record in a format of its room, such as "json"."""
    room = _ROOMS[type(record)]
    reporter = plugins.load(room, format)
    render = reporter.render_check if isinstance(record, CheckReport) else reporter.render
    rendered: str | bytes = render(record, _VIEWS.get(type(record), TextView)(color=color))
    return rendered


def _tables(record: Shown) -> dict[str, Callable[[], _Rows]]:
    if isinstance(record, Report):
        from gradscope.reporters.report import FINDINGS, finding_rows
        from gradscope.reporters.tables.report_tables import records

        return {
            "calls": lambda: records(record, View()),
            "parameters": lambda: records(record, View(table="parameters")),
            **{k: functools.partial(records, record, View(table=k)) for k in PROBES},
            "findings": lambda: (FINDINGS[1:-1], finding_rows(record)),
        }
    if isinstance(record, WhyReport):
        return {"answers": lambda: _fields(Answer, record.answers)}
    if isinstance(record, DiffReport):
        from gradscope.reporters.diff import CALLS, PARAMETERS, call_rows, parameter_rows

        return {
            "calls": lambda: (CALLS, call_rows(record)),
            "parameters": lambda: (PARAMETERS, parameter_rows(record)),
        }
    if isinstance(record, AutogradGraph):
        return {"nodes": lambda: _fields(GraphNode, record.nodes)}
    if isinstance(record, SaliencyReport):
        return {"maps": lambda: _maps(record)}
    if isinstance(record, ExperimentReport):
        return {"arms": lambda: _fields(ArmResult, record.arms)}
    if isinstance(record, CoordCheckReport):
        return {"layers": lambda: _fields(LayerScaling, record.layers)}
    if isinstance(record, CheckReport):
        return {"findings": lambda: _found(record)}
    if isinstance(record, RunHistory):
        return _tables_of_run(record)
    return {}


def _tables_of_run(history: RunHistory) -> dict[str, Callable[[], _Rows]]:
    from gradscope.reporters.training import TABLES, table

    def rows(name: str) -> _Rows:
        header, found = table(history, View(table=name))
        return header, list(found)

    return {name: functools.partial(rows, name) for name in TABLES}


def _found(check: CheckReport) -> _Rows:
    names = [f.name for f in fields(Finding)]
    rows = [(m.run.model, one) for m in check.models for one in m.findings]
    return ["model", *names], [
        [model, *(to_data(getattr(one, name)) for name in names)] for model, one in rows
    ]


def _fields(kind: Any, records: Sequence[Any]) -> _Rows:
    names = [f.name for f in fields(kind)]
    return names, [[to_data(getattr(one, name)) for name in names] for one in records]


def _maps(report: SaliencyReport) -> _Rows:
    names = ["path", "target", "target_name", "score", "method", "layer", "min", "max", "note"]
    rows = [
        [i.path, i.target, i.target_name, i.score, m.method, m.layer, m.min, m.max, m.note]
        for i in report.images
        for m in i.maps
    ]
    return names, rows
