"""The served page of a run in Chromium, while the run is written."""

from __future__ import annotations

import shutil
import threading

import pytest
from commands.run_files import ENDED, add_step, started

from gradscope import plugins
from gradscope.api import run_server
from gradscope.api.run_server import RunServer
from gradscope.reporters.views import View

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path"),
]
html = plugins.load("gradscope.reporters.training", "html")


def test_charts_follow_the_run_and_what_the_reader_chose_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(run_server, "_PAUSE", 0.05)
    writer = started(tmp_path / "run.db")
    for number in range(1, 4):
        add_step(writer, number)
    writer.flush()
    server = RunServer(writer.path, lambda history: html.page(history, View()))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    complaints: list[str] = []
    with playwright.sync_playwright() as started_browser:
        browser = started_browser.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 500})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda one: one.url.startswith(server.address) or complaints.append(one.url)
        )
        page.goto(server.address)
        assert "3 steps" in page.inner_text("header")
        page.fill("#filter", "layer1")
        page.click(".enlarge >> nth=1")
        page.evaluate("scrollTo(0, 300)")
        before = page.eval_on_selector(".charts svg", "svg => svg.outerHTML")
        for number in range(4, 21):
            add_step(writer, number)
        writer.flush()
        page.locator("header", has_text="20 steps").wait_for()
        assert page.eval_on_selector(".charts svg", "svg => svg.outerHTML") != before
        assert page.input_value("#filter") == "layer1"
        assert page.eval_on_selector_all(
            "tbody tr[data-n]",
            "rows => rows.every(r => r.hidden || r.dataset.n.includes('layer1'))",
        )
        assert page.locator(".enlarge[aria-pressed=true]").count() == 1
        assert page.evaluate("scrollY") == 300
        # A table sorts after it came anew.
        page.click("thead th >> nth=1 >> button")
        assert page.locator("th[aria-sort]").count() == 1
        writer.finish(ENDED)
        page.locator("main", has_text="exit code 0").wait_for()
        browser.close()
    server.close()
    assert complaints == []
