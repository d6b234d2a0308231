"""Every broken program gets its finding, at its place; its mended twin gets none of that rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import gradscope
from gradscope.errors import ModelError
from gradscope.records.report import Report
from gradscope.rules import diagnose
from gradscope.rules._book import entries
from rules.all_programs import CASES
from rules.rule_programs import Case, Program

pytestmark = pytest.mark.slow


def checked(program: Program) -> Report:
    """The report with its findings, also of a program that raises."""
    try:
        return gradscope.check(program.model, **program.arguments())
    except ModelError as error:
        assert isinstance(error.report, Report)
        return error.report


def as_bad(case: Case, report: Report) -> list[str]:
    """Return the rule's findings as severe as the broken program's, and every other error."""
    worse = case.as_bad(report.findings)
    return [
        f"{f.code} {f.name}: {f.message}"
        for f in report.findings
        if f.severity == "error" or f in worse
    ]


ENTRIES = {entry.rule.code: entry for entry in entries()}


def reads_calls(code: str, report: Report) -> bool:
    """Return True if the rule finds something in a run's step only with its calls."""
    find, limits = ENTRIES[code].in_runs, ENTRIES[code].rule.limits()
    if find is None or not list(find(report, limits)):
        return False
    return not list(find(replace(report, calls=(), links=()), limits))


@pytest.mark.parametrize("name", CASES)
def test_broken(name):
    case = CASES[name]
    report = checked(case.build(False))
    shown = [(f.code, f.severity, f.name, f.cause) for f in report.findings]
    assert case.found_in(report.findings), shown
    assert report.status in ("findings", "failed")
    notices = [notice for notice in report.run.notices if "taking a full sample" in notice]
    assert notices == []
    assert not reads_calls(case.code, report) or ENTRIES[case.code].rule.runs.calls


@pytest.mark.parametrize("name", CASES)
def test_mended(name):
    case = CASES[name]
    report = checked(case.build(True))
    assert report.error is None
    assert as_bad(case, report) == []
    for part in (0, 1):
        assert as_bad(case, selected(report, part)) == []


def selected(report: Report, part: int) -> Report:
    """The report as layer patterns leave it that take every second module, diagnosed again."""
    names = {facts.name for facts in report.modules[part::2]}
    partial = replace(
        report,
        calls=tuple(call for call in report.calls if call.name in names),
        parameters=tuple(p for p in report.parameters if p.name.rpartition(".")[0] in names),
    )
    return replace(partial, findings=diagnose(partial))


def test_two_programs_for_each_rule():
    count = Counter(case.code for case in CASES.values())
    # GS508 speaks of layers that `--gradcheck` names alone: it has test_wrong_backward.py. GS9 has
    # tests/leaks/programs.
    looking = {entry.rule.code for entry in entries() if entry.find} - {"GS508"}
    looking = {code for code in looking if not code.startswith("GS9")}
    assert {code for code in looking if count[code] < 2} == set()
    assert len(CASES) >= 60
