"""Findings for services that read pull requests: workflow commands of GitHub, and SARIF 2.1.0.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions,
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from gradscope.plugins import Format
from gradscope.records.report import CheckedModel, CheckReport, Finding, Report, RuleText
from gradscope.records.run import RunInfo
from gradscope.reporters import finding_lines
from gradscope.reporters.check import alone, stale, summary, title
from gradscope.reporters.finding_lines import SimilarFindings, error_lines, fingerprint
from gradscope.reporters.views import View
from gradscope.typeset.text import plain, printable_json

_AT = re.compile(r"(?P<file>.+?):(?P<line>\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A file, with forward slashes, and a line in it from 1; None if unknown."""

    file: str
    line: int | None = None


def source_line(location: str | None, run: RunInfo, root: Path | None) -> SourceLine | None:
    """Return the user's line; else the config or the source file of the model.

    Args:
        location: a place in a record, such as ``net.py:31``.
        run: the run of the record.
        root: the folder to which paths are relative; None: paths stay as they are.
    """
    match = _AT.fullmatch(location or "")
    if match is not None:
        return SourceLine(_path(match["file"], root), max(1, int(match["line"])))
    if location:
        return SourceLine(_path(location, root))
    return None if run.file is None else SourceLine(_path(run.file, root))


def _path(file: str, root: Path | None) -> str:
    if root is not None:
        inside = os.path.relpath(file, root)
        file = file if inside.startswith("..") else inside
    return PurePath(file).as_posix()


_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def github(report: Report, view: View) -> str:
    """The findings of one run."""
    return github_check(alone(report), view)


def github_check(check: CheckReport, view: View) -> str:
    """Return a workflow command for each finding, one for similar findings on the same line, and
    the total as plain text.

    GitHub shows ten annotations of a level and a step, so similar findings share one.
    """
    lines = [command for model in check.models for command in _annotations(model, view)]
    lines += stale(check)
    return "\n".join([*lines, summary(check), *map(plain, check.notes)]) + "\n"


def _annotations(model: CheckedModel, view: View) -> Iterator[str]:
    name = title(model.run)
    if model.error is not None:
        error = [str(line).strip() for line in error_lines(model.error)]
        where = source_line(model.error.location, model.run, view.root)
        yield _command("error", plain(model.error.kind), where, [f"{name}: {error[0]}", *error[1:]])
    for group in finding_lines.grouped(model.findings):
        for part in _by_line(group):
            finding = part.first
            sentence, *details = finding_lines.lines(part)
            text = [f"{name}: {sentence.text}"]
            text += [str(line).strip() for line in details]
            where = source_line(finding.line, model.run, view.root)
            level = _COMMANDS.get(finding.severity, "notice")
            yield _command(level, f"{plain(finding.code)} {plain(finding.rule)}", where, text)


def _by_line(group: SimilarFindings) -> Iterator[SimilarFindings]:
    """Split similar findings by line, because an annotation has one line."""
    members: dict[str | None, SimilarFindings] = {}
    for finding in (group.first, *group.more):
        before = members.get(finding.location)
        more = (*before.more, finding) if before else ()
        members[finding.location] = SimilarFindings(before.first if before else finding, more)
    yield from members.values()


def _command(level: str, title: str, where: SourceLine | None, text: list[str]) -> str:
    properties = {"title": title}
    if where is not None:
        line = {} if where.line is None else {"line": str(where.line)}
        properties = {"file": plain(where.file), **line, **properties}
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{level} {written}::{_data(chr(10).join(text))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(report: Report, view: View) -> str:
    """The findings of one run."""
    return sarif_check(alone(report), view)


def sarif_check(check: CheckReport, view: View) -> str:
    """Return one run of the tool: its rules with their help, and a result for each finding."""
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
    """Return the rules' descriptors by id: the rules that ran, and others with findings."""
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
        text = "\n".join([f"{title(model.run)}: {first}", *more])
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
        "model": title(model.run),
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
    """Return the user's line, if known, and the module or parameter as a logical location."""
    where = source_line(location, model.run, view.root)
    # Code scanning refuses results without a file: a model that no file names stands for itself.
    file = where.file if where else title(model.run)
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
    text = f"{title(model.run)}: {error.exception or error.kind}: {error.message}"
    return {"level": "error", "message": {"text": text}, "descriptor": {"id": error.kind}}


GITHUB = Format(".github", github, github_check)
SARIF = Format(".sarif", sarif, sarif_check)


def of_checks(as_check: Callable[[Any], CheckReport]) -> dict[str, Format]:
    """Return both formats for a record whose findings are shown as a check."""

    def of(one: Format) -> Format:
        return Format(one.suffix, lambda record, view: one.render_check(as_check(record), view))

    return {"github": of(GITHUB), "sarif": of(SARIF)}
