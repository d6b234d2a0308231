"""The lines of code around a finding: those of the user's own files, and of no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reporters import report_samples
from reporters.pages.page_samples import why

from gradscope import plugins
from gradscope.records.report import Finding
from gradscope.reporters.document import excerpt
from gradscope.reporters.views import TextView, View

answers_html = plugins.load("gradscope.reporters.answers", "html")
html = plugins.load("gradscope.reporters.report", "html")

CODE = (
    "import torch\n\nclass Net:\n\tdef forward(self, x):\n        return x < 1 & 2\n    # </pre>\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a file, and one beside it."""
    (tmp_path / "here").mkdir()
    for file in ("here/net.py", "here/net.txt", "outside.py"):
        (tmp_path / file).write_text(CODE)
    (tmp_path / "here/link.py").symlink_to(tmp_path / "outside.py")
    (tmp_path / "here/large.py").write_text("x = 1\n" * 200_000)
    (tmp_path / "here/bytes.py").write_bytes(b"\xff\xfe\n")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def test_the_lines_around_the_one_that_is_meant(folder):
    found = excerpt("net.py:5")
    assert found is not None
    assert found.numbered() == [
        ("3 | class Net:", False),
        ("4 |     def forward(self, x):", False),
        ("5 |         return x < 1 & 2", True),
        ("6 |     # </pre>", False),
    ]
    assert excerpt("net.py:1") is not None


@pytest.mark.parametrize(
    "location",
    [
        *(None, "", "net.py", "net.py:0", "net.py:7", "net.py:x", f"net.py:{'9' * 5000}"),
        *("net.txt:1", "gone.py:1", "../outside.py:1", "link.py:1", "large.py:1", "bytes.py:1"),
        *("/etc/passwd:1", "a\0b.py:1", ".py:1"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_what_is_not_looked_into(location, folder):
    assert excerpt(location) is None
    outside = Path(folder, "outside.py")
    assert excerpt(f"{outside}:1") is None


def test_it_stands_on_the_page(folder):
    finding = Finding("GS103", "zero-gradient", "error", "conv1", "no", "look", location="net.py:5")
    report = replace(report_samples.small(), findings=(finding,))
    page = html.render(report, View())
    assert "<mark>5 |         return x &lt; 1 &amp; 2</mark>" in page
    answers = replace(why(), answers=(replace(why().answers[0], location="net.py:6"),))
    assert "<mark>6 |     # &lt;/pre&gt;</mark>" in answers_html.render(answers, TextView())
