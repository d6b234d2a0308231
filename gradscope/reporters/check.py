"""A check's findings in every format: text, Markdown and a page, with the summary first; and for
services that read pull requests, workflow commands of GitHub and SARIF 2.1.0.

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

from rich.text import Text

from gradscope import pages
from gradscope.pages import Page, Part, items, table_part
from gradscope.plugins import Format
from gradscope.records.report import (
    BaselineEntry,
    CheckedModel,
    CheckReport,
    Finding,
    Report,
    RuleText,
)
from gradscope.records.run import RunInfo
from gradscope.reporters import finding_lines, header
from gradscope.reporters.document import (
    bullets,
    error_block,
    escaped,
    finding_items,
    found_items,
    table_block,
)
from gradscope.reporters.finding_lines import (
    SimilarFindings,
    error_lines,
    every_line,
    fingerprint,
    ordered,
    tally,
)
from gradscope.reporters.header import label
from gradscope.reporters.tables.charts import PRECISION_LEGEND, precision_tables
from gradscope.reporters.views import View
from gradscope.typeset.console import Line, dimmed, paragraphs, printed, prose, table_lines
from gradscope.typeset.numbers import plural
from gradscope.typeset.text import plain, printable_json


def alone(report: Report) -> CheckReport:
    """Return one run's report as a check of one model, for formats with findings only."""
    model = CheckedModel(
        status=report.status,
        run=report.run,
        config=report.config,
        findings=report.findings,
        error=report.error,
    )
    return CheckReport(status=report.status, versions=report.versions, models=(model,))


#: Beginning of a notice without which an "ok" would be false.
NOT_JUDGED = "leaks not judged: "


def title(run: RunInfo) -> str:
    """Return the user's name of the model; a config with its folder, as two may share a name."""
    if run.file is not None and PurePath(run.file).name == run.model:
        return plain(run.file)
    return plain(run.model) or "model"


def verdict(model: CheckedModel) -> Line:
    """Return the model, its number of findings by severity, and the loss used.

    A model without findings gets this line alone.
    """
    counts = tally(model.findings)
    tone = "bad" if model.error or any(f.severity == "error" for f in model.findings) else ""
    tone = tone or ("warn" if any(f.severity == "warning" for f in model.findings) else "good")
    if model.error is not None:
        counts = ["failed", *counts]
    known = f" ({plural(len(model.known), 'known finding')})" if model.known else ""
    parts = [(", ".join(counts) or "ok") + known, *header.loss_facts(model.run)]
    parts += [plain(one) for one in model.run.notices if one.startswith(NOT_JUDGED)]
    return Line(" · ".join(parts), f"{title(model.run)}:", tone)


def notes(model: CheckedModel) -> list[str]:
    """Return the notices on inferred or adjusted settings, if there is a finding or an error."""
    return header.notes(model.run.notices) if model.findings or model.error else []


def summary(check: CheckReport) -> str:
    """Return the summary of all models in one line, with the number of rules."""
    findings = [finding for model in check.models for finding in model.findings]
    failed = sum(model.error is not None for model in check.models)
    known = sum(len(model.known) for model in check.models)
    facts = [plural(len(check.models), "model")]
    facts += tally(findings) or ["no findings"]
    if failed:
        facts.append(f"{failed} failed")
    text = ", ".join(facts)
    if check.rules:
        text += f"; {plural(len(check.rules), 'rule')} ran"
        if check.models and all(model.run.device == "meta" for model in check.models):
            text += "; the device `meta` has no values for rules that read them"
    if known:
        text += f"; {plural(known, 'finding')} in the baseline not counted"
    return text


def stale(check: CheckReport) -> Iterator[str]:
    """Yield the baseline's entries that match no finding any more."""
    if not check.stale:
        return
    named = plural(len(check.stale), "entry", "entries")
    match = "matches" if len(check.stale) == 1 else "match"
    yield (
        f"{named} of {plain(check.baseline or 'the baseline')} {match} no finding any more: "
        f"{', '.join(map(entry, check.stale))}"
    )


def entry(of: BaselineEntry) -> str:
    """Return a baseline's entry in a sentence."""
    cause = f" {plain(of.cause)}" if of.cause else ""
    return f"{plain(of.model)} {plain(of.code)} {label(of.name)}{cause}"


def next_command(check: CheckReport) -> str | None:
    """Return the command for more about the rule of the worst finding."""
    found = ordered([finding for model in check.models for finding in model.findings])
    return f"about a rule: `gradscope rules {plain(found[0].code)}`" if found else None


def terminal(check: CheckReport, view: View) -> str:
    """Write each model's findings, then the summary; a model without findings is one line."""
    lines: list[Text] = []
    for model in check.models:
        block = list(_texts(model, view))
        # No empty line separates models with a single line.
        spaced = lines and (len(block) > 1 or not lines[-1].plain)
        lines += [Text(), *block] if spaced and lines[-1].plain else block
        if len(block) > 1:
            lines.append(Text())
    lines += _sum(check, view)
    return printed(lines, width=view.width, color=view.color)


def _texts(model: CheckedModel, view: View) -> Iterator[Text]:
    yield from prose(verdict(model), view.width)
    for note in notes(model):
        yield from dimmed(note, view.width)
    yield from paragraphs(error_lines(model.error), view.width)
    yield from paragraphs(every_line(model.findings), view.width)
    for table in precision_tables(model.precision, view.top):
        yield Text()
        if table.rows:
            yield from table_lines(table, view.width)
        else:
            yield Text.assemble((table.title, "bold"), f"  {table.caption}")
            for remark in table.legend:
                yield from dimmed(remark, view.width)
    if model.precision:
        yield Text()
        for remark in PRECISION_LEGEND:
            yield from dimmed(remark, view.width)


def _sum(check: CheckReport, view: View) -> Iterator[Text]:
    for remark in stale(check):
        yield from prose(Line(remark, "note:"), view.width)
    yield from prose(Line(summary(check)), view.width)
    more = next_command(check)
    if more:
        yield from dimmed(more, view.width)


def markdown(check: CheckReport, view: View) -> str:
    """Write the summary first, then each model, for a comment on a pull request."""
    return "\n\n".join(_verdicts(check, view)) + "\n"


def _verdicts(check: CheckReport, view: View) -> Iterator[str]:
    yield "## gradscope check"
    yield escaped(summary(check))
    for model in check.models:
        line = verdict(model)
        yield f"### {escaped(line.lead)} {escaped(line.text)}"
        if notes(model):
            yield bullets(map(escaped, notes(model)))
        if model.error is not None:
            yield error_block(model.error)
        if model.findings:
            yield "\n".join(found_items(model.findings))
        for table in precision_tables(model.precision, view.top):
            if table.rows:
                yield table_block(table).replace("### ", "#### ", 1)
            else:
                caption = " · ".join((table.caption, *table.legend))
                yield f"#### {table.title.capitalize()} ({escaped(caption)})"
        if model.precision:
            yield "\n\n".join(map(escaped, PRECISION_LEGEND))
    yield from map(escaped, stale(check))


def html(check: CheckReport, view: View) -> str:
    """Write the summary first, then each model."""
    made = [part for model in check.models for part in _model(model, view)]
    remarks = tuple(stale(check))
    last = [Part("baseline", remarks=remarks)] if remarks else []
    whose = title(check.models[0].run) if len(check.models) == 1 else "models"
    parts = [*made, *last]
    return pages.render(Page("check", whose, ([summary(check)],), (), parts, check.versions))


def _model(model: CheckedModel, view: View) -> Iterator[Part]:
    line = verdict(model)
    yield Part(
        line.lead.removesuffix(":"),
        line.text,
        items=(*items(error_lines(model.error)), *finding_items(model.findings)),
        remarks=tuple(notes(model)),
    )
    for table in precision_tables(model.precision, view.top):
        yield (
            table_part(table)
            if table.rows
            else Part(table.title, table.caption, remarks=table.legend)
        )
    if model.precision:
        yield Part("terms", remarks=PRECISION_LEGEND)


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
    """Return the annotations for the findings of one run."""
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
    escaped = (f"{key}={_data(value)}" for key, value in properties.items())
    written = ",".join(one.replace(":", "%3A").replace(",", "%2C") for one in escaped)
    return f"::{level} {written}::{_data(chr(10).join(text))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(report: Report, view: View) -> str:
    """Return the SARIF document for the findings of one run."""
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
    # Code scanning refuses results without a file: without one, the model's name is used.
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
