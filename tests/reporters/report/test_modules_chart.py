"""The modules of a report as blocks: each within its owner, side by side without a gap."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from reporters import report_samples
from reporters.pages.page_samples import EVIL, large

from gradscope.charts import maps
from gradscope.charts.maps import blocks_svg
from gradscope.charts.scales import viridis
from gradscope.diagrams.picture.boxes import contrast
from gradscope.records.modules import ModuleCall
from gradscope.reporters.tables.charts import gradient, innermost, modules


def test_every_module_lies_within_its_owner():
    report = report_samples.resnet()
    found = modules(report)
    assert found is not None
    by_name = {one.name: one for one in found.blocks}
    assert set(by_name) == {call.name or "(root)" for call in report.calls}
    for one in found.blocks:
        if one.depth:
            owner = by_name[one.name.rpartition(".")[0] or "(root)"]
            assert owner.first <= one.first <= one.last <= owner.last
            assert owner.depth == one.depth - 1
    for depth in {one.depth for one in found.blocks}:
        row = sorted((one.first, one.last) for one in found.blocks if one.depth == depth)
        assert all(a[1] < b[0] for a, b in pairwise(row))


def test_the_order_and_the_values_are_those_of_the_charts_over_depth():
    report = report_samples.resnet()
    found = modules(report)
    assert found is not None
    owners = {one.name.rpartition(".")[0] for one in found.blocks}
    leaves = [one for one in found.blocks if one.name not in owners and one.name != "(root)"]
    calls = innermost(report.calls)
    assert [one.name for one in leaves] == [several[0].name for several in calls]
    assert [one.value for one in leaves] == [gradient(0, several).y for several in calls]


def test_where_there_is_too_much_or_nothing_to_see():
    assert modules(large()) is None
    assert modules(replace(report_samples.small(), calls=())) is None
    deep = [ModuleCall(".".join("a" * n), "Net", 0, n) for n in range(1, 40)]
    assert modules(replace(report_samples.small(), calls=tuple(deep))) is None


def test_a_hostile_name_stays_text():
    calls = (ModuleCall("", "Net", 0, 0), ModuleCall(EVIL, EVIL, 0, 1))
    found = modules(replace(report_samples.small(), calls=calls))
    assert found is not None
    svg = blocks_svg(found, lambda name: "r0", lambda name: "b0")
    assert "<script>" not in svg
    assert '"><' not in svg.replace('none"><', "").replace('"><title>', "").replace('"><rect', "")


def test_every_text_can_be_read_on_its_colour():
    for i in range(101):
        ground = "#" + "".join(f"{round(channel):02x}" for channel in viridis(i / 100))
        assert contrast("#ffffff" if i / 100 < maps._DARK else "#000000", ground) >= 4.5
