"""What ``gradscope run`` says when the script has ended: a few lines, for standard error."""

from __future__ import annotations

from collections.abc import Sequence

from gradscope.reporters.verdict import Verdict


def summary(
    verdict: Verdict,
    path: str | None,
    *,
    failure: str | None = None,
    unobserved: Sequence[str] = (),
) -> str:
    """The lines, each with the name of the tool before it.

    Args:
        verdict: on the run as it ended, or as far as it came.
        path: of its file, or of the folder with those of all ranks; None where there is none.
        failure: what went wrong with gradscope itself.
        unobserved: what of the script was not observed, and what to do about it.
    """
    run = verdict.run
    first = [str(verdict.steps())] if run.steps else []
    lines = [*first, *unobserved] or ["no step was seen so far"]
    lines += map(str, verdict.lines())
    if failure is not None:
        lines.append(f"error: {failure}")
    if path is not None:
        lines.append(str(verdict.more_about(path)))
    name = f"gradscope: rank {run.rank}:" if run.world_size > 1 else "gradscope:"
    return "".join(f"{name} {line}\n" for line in lines)
