"""An experiment → the losses of its arms over steps, those of one kind in one chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.charts.panels import Curve, Panel, point
from gradscope.records.experiment import DATA, PLAIN, RATE, SEED, ArmResult, ExperimentReport


def panels(report: ExperimentReport) -> tuple[Panel, ...]:
    """The arms on data, on the learning rate, and without a part; *as it is* is in each."""
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
