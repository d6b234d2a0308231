"""Findings in every format: golden at widths, and what must hold of them whatever they say."""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from reporters import golden
from reporters.finding_samples import CHECKS, HOSTILE, LOSS, RULES, VANISHING, missing, run
from reporters.golden import WIDTHS
from reporters.sarif_schema import SARIF
from rich.cells import cell_len

from gradscope import plugins
from gradscope.errors import OptionError
from gradscope.records import json as record_json
from gradscope.records.report import CheckedModel, CheckReport, Finding, Report
from gradscope.reporters.finding_lines import grouped
from gradscope.reporters.tables import report_tables
from gradscope.reporters.views import View

csv = plugins.load("gradscope.reporters.report", "csv")
github = plugins.load("gradscope.reporters.report", "github")
sarif = plugins.load("gradscope.reporters.report", "sarif")
markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

FORMATS = plugins.names("gradscope.reporters.report")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CHECKS)
def test_terminal(name: str, width: str) -> None:
    text = terminal.render_check(CHECKS[name](), View(width=WIDTHS[width]))
    golden.check(f"report/check-{name}.{width}.txt", text)


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"terminal", "html"}))
@pytest.mark.parametrize("name", ["several", "hostile"])
def test_other_formats(name: str, format: str) -> None:
    reporter = plugins.load("gradscope.reporters.report", format)
    text = reporter.render_check(CHECKS[name](), View(rules=RULES))
    golden.check(f"report/check-{name}{reporter.suffix}", text)


def test_code_in_a_finding_is_code_in_markdown() -> None:
    finding = replace(missing("a_b"), message="`x_*` meets a * b", advice="call `f(x)` | g")
    check = CheckReport(
        "findings", models=(CheckedModel("findings", run("m"), findings=(finding,)),)
    )
    text = markdown.render_check(check, View())
    assert "`x_*` meets a \\* b" in text
    assert "help: call `f(x)` \\| g" in text


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200, None])
def test_names_and_figures_are_never_cut(name: str, width: int | None) -> None:
    check = CHECKS[name]()
    text = re.sub(r"\s+", "", terminal.render_check(check, View(width=width)))
    assert "…" not in text
    for model in check.models:
        for finding in model.findings:
            shown = finding.name.replace("\n", "\\n").replace("\x1b", "\\x1b")
            assert re.sub(r"\s+", "", shown) in text


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_lines_fit_the_terminal(name: str, width: int) -> None:
    for line in terminal.render_check(CHECKS[name](), View(width=width)).splitlines():
        assert cell_len(line) <= width, line


def test_a_sound_model_is_one_line() -> None:
    first, *rest = terminal.render_check(CHECKS["sound"](), View(width=80)).splitlines()
    assert first == "torchvision:resnet18: ok · loss cross_entropy"
    assert rest == ["1 model, no findings; 4 rules ran"]


def test_colour_says_nothing_alone() -> None:
    check = CHECKS["several"]()
    plain = terminal.render_check(check, View(width=80))
    coloured = terminal.render_check(check, View(width=80, color=True))
    assert "\x1b[1;31merror GS401 no-gradient\x1b[0m" in coloured
    assert "\x1b[33mwarning GS101" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    assert "\x1b" not in plain


def test_hostile_text_stays_in_its_place() -> None:
    check = CHECKS["hostile"]()
    for format in FORMATS:
        text = plugins.load("gradscope.reporters.report", format).render_check(
            check, View(rules=RULES)
        )
        assert "\x1b" not in text
        assert "\x07" not in text
    # Nothing but the commands themselves begins a line as a command would.
    lines = github.render_check(check, View()).splitlines()
    assert [line.startswith("::") for line in lines] == [True, False]


def findings(check: CheckReport) -> list[Finding]:
    return [finding for model in check.models for finding in model.findings]


def test_errors_come_first_and_those_alike_are_folded() -> None:
    found = findings(CHECKS["several"]())
    groups = grouped(found)
    assert [group.first.severity for group in groups] == ["error", "warning", "info"]
    assert [1 + len(group.more) for group in groups] == [15, 1, 1]
    assert sum(1 + len(group.more) for group in groups) == len(found)


def test_two_alike_are_shown_each() -> None:
    assert len(grouped([missing("a"), missing("b")])) == 2
    assert len(grouped([missing("a"), missing("b"), missing("c")])) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"cause": "no-grad"},
        {"severity": "warning"},
        {"code": "GS402"},
        {"advice": "do something else"},
        {"source": "elsewhere"},
    ],
)
def test_what_differs_in_more_than_names_and_figures_is_not_folded(change: dict[str, Any]) -> None:
    other = replace(missing("d"), **change)
    assert len(grouped([missing("a"), missing("b"), missing("c"), other])) == 2


def test_advice_that_names_the_layer_is_alike() -> None:
    found = [replace(missing(n), advice=f"unfreeze `{n}`, it has {i}") for i, n in enumerate("abc")]
    assert len(grouped(found)) == 1


# GitHub's workflow commands.

_COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def unescaped(text: str) -> str:
    for code, character in (("%0A", "\n"), ("%0D", "\r"), ("%3A", ":"), ("%2C", ",")):
        text = text.replace(code, character)
    return text.replace("%25", "%")


def commands(check: CheckReport, view: View | None = None) -> list[tuple[str, dict[str, str], str]]:
    """The commands as GitHub's runner reads them."""
    found = []
    for line in github.render_check(check, view or View()).splitlines():
        match = _COMMAND.fullmatch(line)
        if match:
            pairs = (pair.split("=", 1) for pair in match[2].split(","))
            properties = {key: unescaped(value) for key, value in pairs}
            found.append((match[1], properties, unescaped(match[3])))
    return found


def test_github_commands_come_back_as_they_were_meant() -> None:
    [(level, properties, message)] = commands(CHECKS["hostile"]())
    assert level == "error"
    assert properties == {
        "file": "/abs/weird, name:1.py", "line": "7", "title": "GS405 misspelt-requires-grad",
    }  # fmt: skip
    assert "::error::100 % of it, [x](y)" in message
    assert message.endswith("help: write `requires_grad`")
    assert HOSTILE.location in message


def test_github_says_each_finding_at_its_line() -> None:
    found = commands(CHECKS["several"]())
    places = [(level, p.get("file"), p.get("line")) for level, p, _ in found]
    assert places == [
        ("error", "net.py", "19"),
        ("error", "heads.py", "7"),
        ("warning", "configs/vit.yaml", None),
        ("notice", "configs/vit.yaml", None),
        ("error", "net.py", "19"),
    ]
    assert "and 13 more like it: blocks.1." in found[0][2]
    assert "shape-mismatch, in the forward of fc" in found[-1][2]


def test_paths_are_relative_to_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "ml"
    inner.mkdir()
    monkeypatch.chdir(inner)
    model = CheckedModel(
        "findings",
        run("net.yaml", "net.yaml"),
        findings=(missing("a"), missing("b", str(tmp_path / "lib.py:3")), replace(LOSS)),
    )
    check = CheckReport(models=(model,))
    files = [p["file"] for _, p, _ in commands(check, View(root=tmp_path))]
    assert files == ["ml/net.py", "lib.py", "ml/net.yaml"]
    results = results_of(sarif.render_check(check, View(root=tmp_path)))
    assert [uri(result) for result in results] == files


# SARIF.


def results_of(text: str) -> list[dict[str, Any]]:
    [found] = json_module.loads(text)["runs"]
    return found["results"]


def uri(result: dict[str, Any]) -> str:
    return result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]


@pytest.mark.parametrize("name", CHECKS)
def test_sarif_is_what_the_specification_asks_for(name: str) -> None:
    document = json_module.loads(sarif.render_check(CHECKS[name](), View(rules=RULES)))
    jsonschema.validate(document, SARIF)
    [found] = document["runs"]
    rules = found["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for result in found["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


BROKEN = {
    "another version": lambda d: d.update(version="2.0.0"),
    "no results": lambda d: d["runs"][0].pop("results"),
    "an unknown level": lambda d: d["runs"][0]["results"][0].update(level="info"),
    "no message": lambda d: d["runs"][0]["results"][0].pop("message"),
    "no place": lambda d: d["runs"][0]["results"][0].update(locations=[]),
    "line 0": lambda d: d["runs"][0]["results"][0]["locations"][0]["physicalLocation"][
        "region"
    ].update(startLine=0),
    "an unknown property": lambda d: d["runs"][0]["results"][0].update(severity="high"),
    "a rule without an id": lambda d: d["runs"][0]["tool"]["driver"]["rules"][0].pop("id"),
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_the_schema_refuses_what_the_specification_does(damage: Callable[[Any], None]) -> None:
    document = json_module.loads(sarif.render_check(CHECKS["several"](), View(rules=RULES)))
    damage(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SARIF)


def test_sarif_carries_the_rule_book_along() -> None:
    document = json_module.loads(sarif.render_check(CHECKS["sound"](), View(rules=RULES)))
    first, *others = document["runs"][0]["tool"]["driver"]["rules"]
    assert first["id"] == "GS101"
    assert first["name"] == "VanishingGradient"
    assert first["help"]["text"].endswith("Sources:\n\n- SageMaker Debugger, VanishingGradient")
    assert [rule["defaultConfiguration"]["level"] for rule in (first, *others)] == [
        *("warning", "error", "error", "note")
    ]


def test_sarif_marks_known_findings_and_failed_models() -> None:
    document = json_module.loads(sarif.render_check(CHECKS["several"](), View(rules=RULES)))
    [found] = document["runs"]
    suppressed = [r for r in found["results"] if "suppressions" in r]
    assert [uri(result) for result in suppressed] == ["net.py"]
    [invocation] = found["invocations"]
    assert not invocation["executionSuccessful"]
    [notification] = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"].startswith("./net.py:Net: RuntimeError: mat1")
    [failed] = [r for r in found["results"] if r["ruleId"] == "shape-mismatch"]
    assert uri(failed) == "net.py"


def test_a_fingerprint_outlives_the_figures() -> None:
    def print_of(finding: Finding, model: str = "demo") -> str:
        check = CheckReport(models=(CheckedModel("findings", run(model), findings=(finding,)),))
        [result] = results_of(sarif.render_check(check, View()))
        return result["partialFingerprints"]["gradscope/v1"]

    same = print_of(VANISHING)
    assert print_of(replace(VANISHING, value=1.0, message="otherwise", advice="")) == same
    others = [
        replace(VANISHING, name="conv1"),
        replace(VANISHING, code="GS102"),
        replace(VANISHING, cause="saturated"),
        replace(VANISHING, call=3),
    ]
    assert len({same, print_of(VANISHING, "other"), *map(print_of, others)}) == 6


# Markdown, csv and json.


def test_csv_has_every_field_of_every_finding() -> None:
    check = CHECKS["several"]()
    rows = list(csv_module.DictReader(io.StringIO(csv.render_check(check, View()))))
    known = sum(len(model.known) for model in check.models)
    failed = sum(model.error is not None for model in check.models)
    assert len(rows) == len(findings(check)) + known + failed
    [row] = [row for row in rows if row["code"] == "GS101"]
    assert float(row["value"]) == VANISHING.value
    assert float(row["threshold"]) == VANISHING.threshold
    assert (row["call"], row["source"], row["known"]) == ("2", VANISHING.source, "false")


def test_markdown_escapes_what_would_be_markup() -> None:
    text = markdown.render_check(CHECKS["hostile"](), View())
    assert r"\[x\](y)" in text
    assert "\n::error" not in text


@pytest.mark.parametrize("name", CHECKS)
def test_json_comes_back_as_it_was(name: str) -> None:
    check = CHECKS[name]()
    assert record_json.loads(record_json.dumps(check), CheckReport) == check
    assert record_json.loads_shown(record_json.dumps(check)) == check


# In a report, beside its tables.


def with_findings(report: Report) -> Report:
    return replace(report, status="findings", findings=(LOSS, *map(missing, "abc"), VANISHING))


def test_a_report_shows_them_below_its_tables(sample: Callable[[str], Report]) -> None:
    report = with_findings(sample("small"))
    text = terminal.render(report, View(width=80))
    block = text[text.index("\nfindings\n") :]
    assert [line.split()[1] for line in block.splitlines() if " GS" in line] == [
        *("GS401", "GS101", "GS506")
    ]
    assert "and 2 more like it: b, c" in block
    assert "### Findings" in markdown.render(report, View())


def test_the_table_of_findings_alone(sample: Callable[[str], Report]) -> None:
    view = View(width=80, table="findings")
    text = terminal.render(with_findings(sample("small")), view)
    assert "GS401" in text
    assert "layer" not in text.split("findings")[0]
    assert terminal.render(sample("small"), view).endswith("no findings\n")
    rows = csv.render(with_findings(sample("small")), view).splitlines()
    assert rows[0].startswith("model,severity,code,rule,name")
    assert len(rows) == 6


@pytest.mark.parametrize("view", [View(table="findings", sort="norm"),
                                  View(table="findings", columns=("norm",))])  # fmt: skip
def test_the_findings_have_no_columns_to_choose(view: View) -> None:
    with pytest.raises(OptionError, match="fixed columns"):
        report_tables.check(view)


def test_one_report_in_the_formats_of_findings(sample: Callable[[str], Report]) -> None:
    report = with_findings(sample("small"))
    lines = github.render(report, View()).splitlines()
    assert [line.split(" ")[0] for line in lines[:3]] == ["::error", "::warning", "::notice"]
    jsonschema.validate(json_module.loads(sarif.render(report, View(rules=RULES))), SARIF)
    failed = json_module.loads(sarif.render(sample("failed"), View()))
    assert [r["ruleId"] for r in failed["runs"][0]["results"]] == ["shape-mismatch"]
