"""What ``gradscope run`` says when the script has ended: a few lines, for standard error."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gradscope.records.judgement import Judgement
from gradscope.records.training import TrainingFinding, TrainingRun
from gradscope.reporters.judged_lines import in_short
from gradscope.typeset.numbers import plural

#: So many findings are told; `gradscope show` tells them all.
_MOST = 5


def summary(
    run: TrainingRun,
    findings: Sequence[TrainingFinding],
    path: str | None,
    *,
    sampled: int,
    failure: str | None,
    judgement: Judgement | None = None,
    unobserved: Sequence[str] = (),
) -> str:
    """The lines, each with the name of the tool before it.

    Args:
        run: as it ended.
        findings: of the whole run.
        path: of its file, or of the folder with those of all ranks; None where there is none.
        sampled: how many steps were looked at.
        failure: what went wrong with gradscope itself.
        judgement: which rules have seen enough.
        unobserved: what of the script was not observed, and what to do about it.
    """
    first = [_looked(run, sampled)] if run.steps else []
    lines = [*first, *unobserved] or ["no step was seen so far"]
    if judgement is not None and run.steps and not findings:
        lines.append(in_short(judgement))
    lines += [_finding(one) for one in findings[:_MOST]]
    if len(findings) > _MOST:
        lines.append(f"and {plural(len(findings) - _MOST, 'more finding')}")
    if failure is not None:
        lines.append(f"error: {failure}")
    if path is not None:
        lines.append(f"show it with `gradscope show {path}`")
        late = [one for one in findings if one.origin is not None and one.steps[0][0] > 1]
        if run.options.get("deep"):
            late = []
        if late:
            step = late[0].steps[0][0]
            words = " ".join([run.script, *map(shlex.quote, run.arguments)])
            lines.append(
                f"every operation of that step: `gradscope run --deep {step - 1}:{step} {words}`"
            )
    name = f"gradscope: rank {run.rank}:" if run.world_size > 1 else "gradscope:"
    return "".join(f"{name} {line}\n" for line in lines)


def _looked(run: TrainingRun, sampled: int) -> str:
    cost = "" if run.cost is None else f"; looking cost {run.cost * 100:.1f} % of the time"
    return f"{plural(run.steps, 'step')}, {sampled:,} looked at{cost}"


def _finding(one: TrainingFinding) -> str:
    found = one.finding
    steps = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in one.steps[:3])
    where = f" {found.name}" if found.name else ""
    more = ", …" if len(one.steps) > 3 else ""
    place = found.location
    at = f" ({place})" if place and place not in found.message else ""
    word = "step" if "," not in steps and "–" not in steps else "steps"
    return f"{found.severity}[{found.code}]{where} at {word} {steps}{more}: {found.message}{at}"
