"""Findings as SARIF 2.1.0, which code scanning services read.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from gradscope.records.report import CheckedModel, CheckReport, Finding, Report, RuleText
from gradscope.reporters import finding_lines
from gradscope.reporters.errors import error_lines
from gradscope.reporters.finding_identity import fingerprint
from gradscope.reporters.report import _checked
from gradscope.reporters.report._source_lines import source_line
from gradscope.reporters.report._view import View
from gradscope.typeset.text import printable_json

suffix = ".sarif"

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def render(report: Report, view: View) -> str:
    """The findings of one run."""
    return render_check(_checked.alone(report), view)


def render_check(check: CheckReport, view: View) -> str:
    """One run of the tool: its rules with their help, and a result for each finding."""
    rules = _rules(check, view.rules)
    results = [result for model in check.models for result in _results(model, rules, view)]
    failed = [model for model in check.models if model.error is not None]
    driver: dict[str, Any] = {"name": "gradscope"}
    if "gradscope" in check.versions:
        driver["version"] = check.versions["gradscope"]
    run = {
        "tool": {"driver": {**driver, "rules": list(rules.values())}},
        "invocations": [
            {
                "executionSuccessful": not failed,
                "toolExecutionNotifications": [
                    *(_notification(model) for model in failed),
                    *({"level": "note", "message": {"text": note}} for note in check.notes),
                ],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return printable_json(text) + "\n"


def _rules(check: CheckReport, texts: Sequence[RuleText]) -> dict[str, dict[str, Any]]:
    """The descriptors by id: of the rules that ran, and of others with findings."""
    wanted = set(check.rules)
    found = [f for model in check.models for f in (*model.findings, *model.known)]
    wanted.update(finding.code for finding in found)
    rules = {text.code: _descriptor(text) for text in texts if text.code in wanted}
    for finding in found:  # of a newer version's report, say
        text = RuleText(finding.code, finding.rule, finding.severity, finding.rule)
        rules.setdefault(finding.code, _descriptor(text))
    for model in check.models:
        if model.error is not None:
            kind = model.error.kind
            summary = "The model, its loss or its optimizer raised."
            rules.setdefault(kind, _descriptor(RuleText(kind, kind, "error", summary)))
    return rules


def _descriptor(text: RuleText) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": text.code,
        "name": "".join(part.capitalize() for part in text.name.split("-")),
        "shortDescription": {"text": text.summary or text.name},
        "defaultConfiguration": {"level": _LEVELS.get(text.severity, "note")},
    }
    if text.help:
        sources = "".join(f"\n- {source}" for source in text.sources)
        help = text.help + (f"\n\nSources:\n{sources}" if sources else "")
        described["fullDescription"] = {"text": text.summary or text.name}
        described["help"] = {"text": help, "markdown": help}
    return described


def _results(
    model: CheckedModel, rules: dict[str, dict[str, Any]], view: View
) -> Iterator[dict[str, Any]]:
    places = list(rules)
    if model.error is not None:
        error = model.error
        first, *more = [str(line).strip() for line in error_lines(model.error)]
        text = "\n".join([f"{_checked.title(model.run)}: {first}", *more])
        stand_in = Finding(error.kind, error.kind, "error", error.name or "", "", "", error.call)
        yield {
            "ruleId": error.kind,
            "ruleIndex": places.index(error.kind),
            "level": "error",
            "message": {"text": text},
            "locations": [_location(error.location, error.name, model, view)],
            "partialFingerprints": {"gradscope/v1": fingerprint(stand_in, model.run)},
        }
    for known, findings in ((False, model.findings), (True, model.known)):
        for finding in finding_lines.ordered(findings):
            result = _result(finding, model, places.index(finding.code), view)
            if known:
                text = "in the baseline"
                result["suppressions"] = [{"kind": "external", "justification": text}]
            yield result


def _result(finding: Finding, model: CheckedModel, index: int, view: View) -> dict[str, Any]:
    facts = {
        "model": _checked.title(model.run),
        "value": finding.value,
        "threshold": finding.threshold,
        "source": finding.source,
        "cause": finding.cause,
        "call": finding.call,
    }
    place = finding_lines.place(finding)
    parts = [f"{place}: {finding.message}", *finding_lines.facts(finding), finding.advice]
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS.get(finding.severity, "note"),
        "message": {"text": "\n".join(part for part in parts if part)},
        "locations": [_location(finding.line, finding.name, model, view)],
        "partialFingerprints": {"gradscope/v1": fingerprint(finding, model.run)},
        "properties": {key: value for key, value in facts.items() if value is not None},
    }


def _location(
    location: str | None, name: str | None, model: CheckedModel, view: View
) -> dict[str, Any]:
    """The user's line where one is known; the module or parameter as a logical location."""
    where = source_line(location, model.run, view.root)
    # Code scanning refuses results without a file: a model that no file names stands for itself.
    file = where.file if where else _checked.title(model.run)
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(file)}}
    physical["region"] = {"startLine": (where.line if where else None) or 1}
    found: dict[str, Any] = {"physicalLocation": physical}
    if name:
        found["logicalLocations"] = [{"fullyQualifiedName": name, "kind": "module"}]
    return found


def _uri(file: str) -> str:
    path = PurePath(file)
    return path.as_uri() if path.is_absolute() else quote(file.encode("utf-8", "backslashreplace"))


def _notification(model: CheckedModel) -> dict[str, Any]:
    error = model.error
    assert error is not None
    text = f"{_checked.title(model.run)}: {error.exception or error.kind}: {error.message}"
    return {"level": "error", "message": {"text": text}, "descriptor": {"id": error.kind}}
