"""Pages: one file that fetches nothing, whose links lead somewhere, and no name is markup."""

from __future__ import annotations

import importlib.resources
import re
from collections import Counter
from dataclasses import replace

import pytest
from reporters import report_samples, run_samples
from reporters.pages.page_samples import EVIL, PAGES, SHOWN, Parsed, diff, hostile, large

from gradscope import pages, plugins
from gradscope.diagrams.picture.boxes import contrast
from gradscope.pages import Page, table_part
from gradscope.records.training import LayerSeries, RunHistory
from gradscope.reporters.run import step_metrics
from gradscope.reporters.tables import report_tables
from gradscope.reporters.views import DiffView, View
from gradscope.typeset.tables import Heading, of_columns
from gradscope.typeset.text import plain

diff_html = plugins.load("gradscope.reporters.diff", "html")
html = plugins.load("gradscope.reporters.report", "html")
training_html = plugins.load("gradscope.reporters.training", "html")

FETCHING = {"src", "href", "action", "data", "poster", "srcset", "background", "xlink:href"}


@pytest.fixture(scope="module", params=PAGES)
def text(request) -> str:
    return PAGES[request.param]()


def test_it_is_one_whole_file_that_fetches_nothing(text):
    parsed = Parsed(text)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert (parsed.open, parsed.unbalanced) == ([], [])
    assert parsed.tags["script"] == parsed.tags["style"] == parsed.tags["main"] == 1
    assert [n for _, n, _ in parsed.attributes if n.startswith("on")] == []
    fetched = [value for _, name, value in parsed.attributes if name in FETCHING]
    assert [v for v in fetched if not v.startswith(("#", "data:image/png;base64,"))] == []
    policy = next(v for t, n, v in parsed.attributes if t == "meta" and v.startswith("default-src"))
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"url\(|@import|https?:", text)


def test_links_lead_to_one_place_each(text):
    parsed = Parsed(text)
    ids = Counter(parsed.values("id"))
    assert [name for name, n in ids.items() if n > 1] == []
    references = [value.removeprefix("#") for value in parsed.values("href") if value[0] == "#"]
    for name in ("aria-labelledby", "for"):
        references += [word for value in parsed.values(name) for word in value.split()]
    assert [name for name in references if name not in ids] == []


def test_tables_name_their_columns_and_rows(text):
    parsed = Parsed(text)
    heads = [value for tag, name, value in parsed.attributes if (tag, name) == ("th", "scope")]
    assert len(heads) == parsed.tags["th"]
    assert heads.count("row") == parsed.tags["tr"] - parsed.tags["table"]


def test_nothing_that_does_not_print_is_on_a_page(text):
    assert plain(text.replace("\n", "")) == text.replace("\n", "")


@pytest.mark.parametrize("name", ["report hostile", "check", "why", "diff", "saliency"])
def test_a_hostile_name_stays_text(name):
    parsed = Parsed(PAGES[name]())
    assert parsed.tags["script"] == 1
    assert any(SHOWN in words for words in parsed.texts)
    assert EVIL not in "".join(parsed.texts)


def test_a_page_has_every_cell_of_the_terminals_tables():
    report = report_samples.resnet()
    texts = Counter(words.strip() for words in Parsed(html.render(report, View())).texts)
    for table in (report_tables.calls(report, View()), report_tables.parameters(report, View())):
        cells = Counter(cell.text.strip() for row in table.rows for cell in row if cell.text)
        assert cells - texts == Counter()
        assert {column.key for column in table.columns} <= set(texts)


def test_findings_and_rows_lead_to_each_other():
    parsed = Parsed(html.render(hostile(), View()))
    rows = {value for tag, name, value in parsed.attributes if (tag, name) == ("tr", "id")}
    items = {value for tag, name, value in parsed.attributes if (tag, name) == ("li", "id")}
    leads = [value.removeprefix("#") for value in parsed.values("href")]
    assert [name for name in leads if name in rows]
    assert [name for name in leads if name in items]


def test_only_a_page_with_named_rows_has_a_filter():
    """The rows of an experiment are arms, without a place in a model."""
    rows = of_columns("arms", [(Heading("arm"), ["as-it-is"])])
    named = replace(rows, names=("layer4.0",))
    unnamed, filtered = (
        pages.render(Page("experiment", "train.py", parts=[table_part(table)]))
        for table in (rows, named)
    )
    assert 'id="depth"' not in unnamed
    assert 'id="depth"' in filtered
    live = pages.render(Page("live", "run.db", parts=[table_part(rows)]), live=True)
    assert 'id="depth"' in live  # its rows may come later


def test_a_row_that_a_finding_does_not_name_has_no_flag():
    sound = replace(report_samples.small(), findings=())
    assert 'class="flag"' not in html.render(sound, View())


@pytest.mark.slow
def test_five_thousand_rows_are_under_two_megabytes():
    made = html.render(large(), View())
    assert Parsed(made).tags["tr"] == 5_000 + 2 + len(report_samples.small().history)
    assert len(made.encode()) < 2_000_000


def test_a_view_chooses_what_is_shown():
    report = report_samples.small()
    made = html.render(report, View(table="parameters", sort="grad", top=2))
    assert Parsed(made).tags["tr"] == 1 + 2
    assert "<svg" not in made


def test_pieces_on_one_notebook_page_have_names_of_their_own():
    tables = [
        report_tables.calls(make(), View())
        for make in (report_samples.small, report_samples.resnet)
    ]
    made = [Page("inspect", "net", parts=[table_part(table)]) for table in tables]
    texts = [pages.fragment(page) for page in made]
    ids = [name for text in texts for name in Parsed(text).values("id")]
    assert len(set(ids)) == len(ids) > 4
    assert "<script" not in "".join(texts)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_text_can_be_read(scheme):
    """WCAG 2 AA: 4.5 for text, on each ground that it may stand on."""
    folder = importlib.resources.files("gradscope.pages") / "assets"
    style = (folder / "page.css").read_text(encoding="utf-8")
    blocks = style.split("prefers-color-scheme: dark")
    colors = dict(re.findall(r"--([a-z]+\d?): (#[0-9a-f]{6})", blocks[scheme]))
    grounds = [colors[name] for name in ("paper", "ground", "odd", "lit")]
    texts = [colors[name] for name in ("ink", "soft", "link", "bad", "warn", "good")]
    assert min(contrast(one, ground) for one in texts for ground in grounds) >= 4.5
    curves = [colors[f"c{i}"] for i in range(5)]
    assert min(contrast(one, colors["paper"]) for one in curves) >= 4.5


def test_a_run_has_its_course_its_layers_and_all_its_tables():
    history = run_samples.small()
    parsed = Parsed(training_html.render(history, View()))
    labels = parsed.values("aria-label")
    for said in ("loss", "gradient norm", "learning rate"):
        assert any(one.startswith(f"{said}: ") for one in labels)
    # Gradient norm, update ratio and the dead units of biases; the calls have no more.
    assert parsed.tags["image"] == 3
    assert {"table of parameters", "table of calls"} <= set(labels)
    rows = {value for tag, name, value in parsed.attributes if (tag, name) == ("tr", "id")}
    leads = [value for tag, name, value in parsed.attributes if (tag, name) == ("a", "href")]
    assert len([one for one in leads if one.removeprefix("#") in rows]) >= 2 * 8


def test_one_table_of_a_run():
    made = Parsed(training_html.render(run_samples.small(), View(table="steps")))
    assert made.tags["tr"] == 1 + 1_200
    assert made.tags["svg"] == 0


def test_dead_units_are_read_off_the_gradients_of_biases():
    """A weight's zeros may have other reasons, as at the rim of a picture."""
    steps = (1, 5)
    half = {"zeros": (0.5, 0.25)}
    parameters = (
        LayerSeries("linear.weight", steps, half, shape=(4, 2)),
        LayerSeries("linear.bias", steps, half, shape=(4,)),
    )
    (found,) = step_metrics.maps(replace(run_samples.small(), parameters=parameters, calls=()))
    assert (found.title, found.names, found.values) == (
        *("dead units", ("linear.bias",)),
        ((0.5, 0.25),),
    )


def test_two_runs_over_each_other():
    history = run_samples.small()
    panels = step_metrics.together(history, history)
    alone = step_metrics.panels(history)
    assert [panel.title for panel in panels] == [panel.title for panel in alone]
    for panel, one in zip(panels, alone, strict=True):
        assert len(panel.curves) == 2 * len(one.curves)
        assert [curve.name[0] for curve in panel.curves] == ["A", "B"] * len(one.curves)
        assert [curve.points for curve in panel.curves[::2]] == [c.points for c in one.curves]
    maps = step_metrics.maps_together(history, _doubled(history))
    assert [one.title for one in maps[:2]] == ["A: gradient norm", "B: gradient norm"]
    for one, other in zip(maps[::2], maps[1::2], strict=True):
        assert one.names == other.names
        assert one.scale == other.scale
    assert maps[0].scale.high == 2 * next(step_metrics.maps(history)).scale.high
    parsed = Parsed(diff_html.render(diff(), DiffView(panels=panels, maps=maps)))
    assert parsed.tags["svg"] == len(panels) + len(maps)
    assert {"Over steps", "Layers over steps"} <= {words.strip() for words in parsed.texts}


def _doubled(history: RunHistory) -> RunHistory:
    """The same with gradients twice as large."""

    def doubled(one: LayerSeries) -> LayerSeries:
        norms = one.values.get("grad_norm", ())
        twice = tuple(None if x is None else 2 * x for x in norms)
        return replace(one, values={**one.values, "grad_norm": twice})

    return replace(history, parameters=tuple(map(doubled, history.parameters)))
