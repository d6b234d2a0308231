"""Pages in headless Chromium: quiet, on their own, at every width, and what their script does.

Needs ``pip install playwright axe-playwright-python`` and a Chromium on the path.
"""

from __future__ import annotations

import importlib.resources
import shutil

import pytest
from reporters import report_samples
from reporters.pages.page_samples import PAGES, hostile, large

from gradscope import plugins
from gradscope.reporters.views import View

html = plugins.load("gradscope.reporters.report", "html")

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
#: A page of each kind.
VARIED = ["report hostile", "report steps", "why", "diff", "run gan", "saliency"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path"),
]


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a page's text; at the end nothing was fetched and nothing complained."""
    contexts, complaints = [], []

    def open_page(text, **how):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        context = chromium.new_context(**{"viewport": {"width": 1000, "height": 800}, **how})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda one: one.url == file.as_uri() or complaints.append(one.url))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def names(page):
    return page.eval_on_selector_all(
        "tbody tr[data-n]", "rows => rows.filter(r => !r.hidden).map(r => r.dataset.n)"
    )


@pytest.mark.parametrize("width", [400, 1000, 1600])
@pytest.mark.parametrize("name", VARIED)
def test_nothing_is_cut_off_at_any_width(name, width, opened):
    page = opened(PAGES[name](), viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [*VARIED, "check"])
def test_axe_finds_nothing(name, scheme, opened):
    axe = pytest.importorskip("axe_playwright_python")
    script = (importlib.resources.files(axe.__name__) / "axe.min.js").read_text(encoding="utf-8")
    page = opened(PAGES[name](), color_scheme=scheme, bypass_csp=True)
    page.evaluate(script)
    found = page.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))")
    assert found == []


def test_without_script_all_rows_are_there_and_no_tools(opened):
    page = opened(html.render(report_samples.resnet(), View()), java_script_enabled=False)
    assert not page.is_visible("#tools")
    assert page.locator("tbody tr:visible").count() == page.locator("tbody tr").count() > 60
    assert page.locator("svg").first.is_visible()


@pytest.mark.parametrize("column", ["norm", "grad_out", "saved", "zeros", "shape"])
def test_a_click_sorts_as_the_command_line_does(column, opened):
    report = report_samples.resnet()
    page = opened(html.render(report, View(table="calls", columns=("all",))))
    ordered = opened(html.render(report, View(table="calls", columns=("all",), sort=column)))
    page.get_by_role("button", name=column, exact=True).click()
    cells = f"rows => rows.map(r => r.cells[{_place(page, column)}].textContent)"
    by_click = page.eval_on_selector_all("tbody tr", cells)
    assert by_click == ordered.eval_on_selector_all("tbody tr", cells)
    assert page.locator("th[aria-sort=descending]").count() == 1


def _place(page, column):
    return page.eval_on_selector_all("thead th", "h => h.map(x => x.textContent)").index(column)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("layer1.**", lambda name: (name + ".").startswith("layer1.")),
        ("*", lambda name: "." not in name),
        ("layer1.*.conv1", lambda name: name.startswith("layer1.") and name.endswith(".conv1")),
        ("**.conv1", lambda name: name.split(".")[-1] == "conv1"),
        ("BN1", lambda name: "bn1" in name),
    ],
)
def test_the_filter_takes_the_patterns_of_layers(pattern, matches, opened):
    page = opened(html.render(report_samples.resnet(), View(table="calls")))
    every = ["" if name == "(root)" else name for name in names(page)]
    page.fill("#filter", pattern)
    shown = ["" if name == "(root)" else name for name in names(page)]
    assert shown == [name for name in every if matches(name)] != []


def test_depth_and_folding_hide_what_lies_deeper(opened):
    page = opened(html.render(report_samples.resnet(), View(table="calls")))
    every = names(page)
    page.select_option("#depth", "1")
    assert names(page) == [name for name in every if "." not in name]
    page.select_option("#depth", "")
    button = page.get_by_role("button", name="rows below layer1", exact=True)
    button.press("Enter")
    assert button.get_attribute("aria-expanded") == "false"
    assert names(page) == [name for name in every if not name.startswith("layer1.")]


def test_a_link_to_a_hidden_row_shows_it(opened):
    page = opened(html.render(hostile(), View()))
    page.fill("#filter", "conv1")
    assert page.locator("tbody tr:visible").count() < page.locator("tbody tr").count()
    page.locator(".items a").first.click()
    page.locator("tr:target").wait_for(state="visible")
    page.locator("tr:target .flag").click()
    page.locator("li:target").wait_for(state="visible")


def test_from_a_layer_to_its_place_among_the_modules_and_back(opened):
    page = opened(html.render(report_samples.resnet(), View()))
    page.get_by_role("link", name="layer1.0.conv2 among the modules", exact=True).click()
    block = page.locator("svg.blocks :target")
    block.wait_for(state="visible")
    assert block.get_attribute("aria-label") == "layer1.0.conv2"
    block.locator("rect").click()
    page.locator("tr:target").wait_for(state="visible")
    assert page.locator("tr:target").get_attribute("data-n") == "layer1.0.conv2"


def test_a_chart_grows(opened):
    page = opened(html.render(report_samples.resnet(), View()))
    chart = page.locator(".charts figure").first
    before = chart.bounding_box()["width"]
    chart.get_by_role("button").press("Enter")
    assert chart.bounding_box()["width"] > 1.5 * before
    chart.get_by_role("button").click()
    assert chart.bounding_box()["width"] == before


def test_five_thousand_rows_are_ready_soon(opened):
    """Nothing is measured here: a page of this size has to work."""
    page = opened(html.render(large(), View()))
    page.fill("#filter", "model.layers.7.**")
    assert len(names(page)) == 100
