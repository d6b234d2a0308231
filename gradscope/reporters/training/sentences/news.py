"""News of a run in progress: a line for each step, finding and event."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.history import RunHistory
from gradscope.reporters import finding_lines
from gradscope.reporters.finding_lines import Beside
from gradscope.reporters.steps_in_words import stretches
from gradscope.reporters.training.sentences import findings, summary
from gradscope.reporters.training.sentences.step_facts import facts_of_step
from gradscope.reporters.training.tables.naming import qualified
from gradscope.typeset.numbers import count
from gradscope.typeset.text import plain


def news(history: RunHistory, shown: RunHistory | None, *, before: int) -> Iterator[str]:
    """What ``shown`` did not say yet; at the beginning the last steps, and all else.

    At the end of the run lines say what could be judged, and the last one how it ended.
    """
    last = shown.last_step if shown else max(0, history.last_step - before)
    lines = [
        (
            event.step,
            f"event: step {count(event.step)}, {plain(event.kind)}: {plain(event.message)}",
        )
        for event in history.events[len(shown.events) if shown else 0 :]
    ]
    lines += [
        (step.step, f"step {count(step.step)}: {', '.join(facts_of_step(step))}")
        for step in history.steps
        if step.step > last
    ]
    yield from (line for _, line in sorted(lines, key=lambda pair: pair[0]))
    known = {found.key for found in shown.findings} if shown else set()
    keys = [found.key for found in history.findings]
    named = qualified(history)
    for key, found in zip(keys, named.findings, strict=True):
        if key not in known:
            finding = found.finding
            when = Beside(stretches(found.steps))
            lead = finding_lines.lead(finding, lambda _: when)  # noqa: B023 # called at once
            yield f"finding: {lead} {finding_lines.place(finding)}: {plain(finding.message)}"
    if history.run.ended is not None:
        yield from (f"verdict: {line}" for line in findings.verdict(history))
        yield str(summary.end(history))
