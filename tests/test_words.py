"""What gradscope says: docstrings begin with their subject, and old words do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gradscope"
PAGES = [*ROOT.glob("docs/*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]

#: A docstring says what a thing is or does: it opens no question.
QUESTION = re.compile(
    r'^\s*r?"""((?:What|Where|Whether|Who|Whose|Which|How|When|Why)\b.*)', re.MULTILINE
)
#: Names that gradscope had for its own notions before it took those of the field.
OLD = re.compile(
    r"\b(vital signs?|(?:closer|second|first) looks?|looks? closely|looked at|watched|sentinel"
    r"|onlookers?|cadence|left as found|departures?|partings?|habits?|put together|nobody|woken"
    r"|passes by)\b",
    re.IGNORECASE,
)
#: The old words that stay: as aliases of an option, of a keyword and of a column.
ALIASES = {
    ("api/watching.py", "sentinel"),
    ("commands/run.py", "sentinel"),
    ("records/training.py", "watched"),
    ("runfile/schema.py", "watched"),
}


def found(pattern: re.Pattern[str]) -> set[tuple[str, str]]:
    """Files of the package, and what the pattern's group matches there."""
    return {
        (path.relative_to(PACKAGE).as_posix(), match)
        for path in PACKAGE.rglob("*.py")
        for match in pattern.findall(path.read_text(encoding="utf-8"))
    }


def test_no_docstring_opens_with_a_question():
    assert found(QUESTION) == set()


def test_old_words_are_aliases_only():
    assert found(OLD) == ALIASES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_an_old_word(page):
    prose = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert OLD.findall(prose) == []


def test_a_question_and_an_old_word_are_found():
    assert QUESTION.findall('def f():\n    """Whether it trains."""') == ['Whether it trains."""']
    assert QUESTION.findall('def f():\n    """The steps that it samples."""') == []
    assert OLD.findall("the steps that were looked at") == ["looked at"]
    assert OLD.findall("sampled steps") == []
