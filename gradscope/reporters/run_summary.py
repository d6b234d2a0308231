"""The lines that ``gradscope run`` prints to standard error at the end of the script."""

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
        verdict: on the run, finished or not.
        path: its file, or the folder with the files of all ranks; None without one.
        failure: an internal error of gradscope.
        unobserved: which parts of the script were not observed, and what to do.
    """
    run = verdict.run
    first = [str(verdict.steps())] if run.steps else []
    lines = [*first, *unobserved] or ["no step so far"]
    lines += map(str, verdict.lines())
    if failure is not None:
        lines.append(f"error: {failure}")
    if path is not None:
        lines.append(str(verdict.more_about(path)))
    name = f"gradscope: rank {run.rank}:" if run.world_size > 1 else "gradscope:"
    return "".join(f"{name} {line}\n" for line in lines)
