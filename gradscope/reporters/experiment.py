"""An experiment: the verdict, the rules' findings, the losses of its arms, and the arms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.charts.panels import Curve, Panel, point
from gradscope.pages import Part
from gradscope.records.experiment import (
    DATA,
    PLAIN,
    RAN,
    RATE,
    SEED,
    SHIFTED,
    ArmResult,
    ExperimentReport,
)
from gradscope.reporters.document import Block, Document, Found, Prose, formats
from gradscope.reporters.header import TONES, notes
from gradscope.reporters.views import TextView
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import duration, number, plural
from gradscope.typeset.sparklines import curve
from gradscope.typeset.tables import Heading, Table, of_columns
from gradscope.typeset.text import plain

_WIDTH = 16  # of a sparkline
_UNDETERMINED = "undetermined:"


def facts(report: ExperimentReport) -> list[str]:
    """Return the script, and the limit of each arm."""
    limits = f"arms of {plural(report.steps, 'step')} or {duration(report.seconds)}"
    count = len({one.name for one in report.ran})  # several losses have a row each
    return [plain(report.script), limits, f"{plural(count, 'arm')} with a loss"]


def verdict(report: ExperimentReport) -> Iterator[Line]:
    """Yield the cause, its evidence, and the next step."""
    if report.status == "failed":
        lead, tone = "failed:", "bad"
    else:
        lead, tone = (f"{report.cause}:", TONES["error"]) if report.cause else ("no cause:", "")
    message = plain(report.message)
    if message.startswith(_UNDETERMINED):
        lead, message = _UNDETERMINED, message.removeprefix(_UNDETERMINED).lstrip()
    yield Line(message, lead, tone)
    for sentence in report.evidence:
        yield Line(plain(sentence), indent=1)
    if report.advice:
        yield Line(plain(report.advice), "help:", indent=1)


def table(report: ExperimentReport) -> Table | None:
    """Return a row for each arm; None without one."""
    if not report.arms:
        return None
    arms = report.arms
    columns = [
        (Heading("arm", right=False), [_name(one) for one in arms]),
        (Heading("steps", keep=20), [f"{one.steps}" if one.state == RAN else "" for one in arms]),
        (Heading("start", keep=60), [_loss(one, one.start) for one in arms]),
        (Heading("end", keep=90), [_loss(one, one.end) for one in arms]),
        (Heading("slope", keep=40), [_slope(one) for one in arms]),
        (Heading("loss", right=False, keep=70), [_sparkline(one) for one in arms]),
        (Heading("verdict", right=False, prose=True), [_verdict(one) for one in arms]),
    ]
    slope = "slope: change per step in the last third, ± half of its 95 % interval"
    legend = (slope,) if any(one.slope is not None for one in arms) else ()
    tones = ["" if one.state == RAN else "dim" for one in arms]
    return of_columns("arms", columns, tones, legend=legend)


def _name(one: ArmResult) -> str:
    return plain(one.name if one.optimizer is None else f"{one.name} ({one.optimizer})")


def _loss(one: ArmResult, loss: float | None) -> str:
    if one.state != RAN:
        return ""
    return "NaN" if loss is None else number(loss)


def _slope(one: ArmResult) -> str:
    if one.slope is None or one.slope_high is None:
        return ""
    return f"{one.slope:.1e} ± {one.slope_high - one.slope:.0e}"


def _sparkline(one: ArmResult) -> str:
    if not one.losses:
        return ""
    steps = range(1, len(one.losses) + 1)
    lost = [step for step, loss in zip(steps, one.losses, strict=True) if loss is None]
    return curve(steps, one.losses, lost, first=1, last=len(one.losses), width=_WIDTH)


def _verdict(one: ArmResult) -> str:
    return plain(one.verdict if one.state == RAN else f"{one.state}: {one.verdict}")


def panels(report: ExperimentReport) -> tuple[Panel, ...]:
    """Return the charts: data, learning rate, targets, a removed part; all show *as it is*."""
    ran = report.ran
    plain = [one for one in ran if one.name == PLAIN]
    found = []
    for title, arms in _kinds(ran):
        curves = tuple(_curve(one) for one in (*plain, *arms))
        found.append(Panel(title, "step", "loss", curves))
    return tuple(panel for panel in found if panel.has_points)


def _kinds(ran: Sequence[ArmResult]) -> Iterator[tuple[str, list[ArmResult]]]:
    rest = [one for one in ran if one.name != PLAIN]
    for title, wanted in (
        ("batch and input", lambda one: one.name in (*DATA, SEED)),
        ("learning rate", lambda one: one.name.startswith(RATE)),
        ("targets of neighbours", lambda one: one.name in SHIFTED),
        ("without a part", lambda one: True),
    ):
        arms = [one for one in rest if wanted(one)]
        rest = [one for one in rest if one not in arms]
        if arms:
            yield title, arms


def _curve(one: ArmResult) -> Curve:
    name = one.name if one.optimizer is None else f"{one.name} ({one.optimizer})"
    points = (
        point(step, [loss], f"step {step}", lost=loss is None)
        for step, loss in enumerate(one.losses, 1)
    )
    return Curve(name, tuple(points))


def document(report: ExperimentReport, view: TextView, format: str) -> Document:
    """Return the document: the verdict with the rules' findings, the losses, and the table."""
    blocks: list[Block] = [
        Prose(tuple(verdict(report)), "verdict", listed=True),
        Found(report.findings, part="verdict", titled=False),
    ]
    charts, arms = panels(report), table(report)
    if charts:
        blocks.append(Part("losses", panels=charts))
    blocks += filter(None, [arms])
    heading = f"experiment: {facts(report)[0]}"
    given = ([facts(report)], notes(report.notices), blocks, report.versions)
    return Document("experiment", *given, heading=heading)


FORMATS = formats(document)
