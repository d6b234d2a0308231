"""``python -m tests.zoo`` runs every model; ``--resume FILE`` keeps results and goes on from them.

Each model runs in a worker process with random weights and small inputs: twice plainly, once under
gradscope, once as a twin that takes every number by other means. Printed are totals by group and
kind, how many plain steps repeat bit for bit, and each failure with its reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # truth and guards, as the tests have them

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zoo.entries import GROUPS, Entry, all_entries, matching
from zoo.own_failures import OWN
from zoo.running import CHECK, DIAGNOSE, Guard, known, run
from zoo.tables import print_results


def main() -> int:
    """Run, print, and say by the exit code whether all held."""
    arguments = _arguments()
    entries = matching(all_entries(arguments.group or GROUPS), arguments.only)
    if arguments.list:
        with contextlib.suppress(BrokenPipeError):
            for entry in entries:
                print(f"{entry.label:<60} {entry.kind:<20} {entry.family}", flush=True)
        return 0
    if not entries:
        print("no model fits the patterns; --list shows them all", file=sys.stderr)
        return 2
    results = collect(entries, arguments)
    console = Console(width=160, soft_wrap=True)  # nothing is cut in a pipe either
    print_results([results[e.label] for e in entries if e.label in results], _own(results), console)
    return int(not all(map(_sound, results.values())))


def _sound(row: dict[str, Any]) -> bool:
    """All held, or the failure is the model's own; and a healthy model has no error."""
    held = row.get("outcome", "ok") == "ok"
    found = row.get("diagnosis", {"outcome": "ok"})
    healthy = found["outcome"] == "ok" and not found.get("errors")
    return (held and healthy) or row["label"] in OWN


def _own(results: dict[str, Any]) -> dict[str, str]:
    """Return the results of reproducing this run's failures in plain PyTorch."""
    failed = [label for label, row in results.items() if row.get("outcome", "ok") != "ok"]
    return {label: OWN[label]() for label in failed if label in OWN}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--group", action="append", choices=GROUPS, help="may be repeated")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="name, family or kind"
    )
    parser.add_argument("--list", action="store_true", help="name the models and run none")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="JSON lines, read and written")
    parser.add_argument("--retry", action="store_true", help="run again what failed in FILE")
    parser.add_argument(
        "--findings", action="store_true", help="only ask what the rules say of each fresh model"
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one model")
    parser.add_argument("--memory", type=float, default=12.0, help="GiB for the worker")
    return parser.parse_args()


def _done(row: dict[str, Any], part: str, retry: bool) -> bool:
    """Return True if the file has this part of the model's results, and it need not run again."""
    if part not in row:
        return False
    outcome = row["diagnosis"]["outcome"] if part == "diagnosis" else row["outcome"]
    return outcome == "ok" or not retry


def _line(entry: Entry, diagnosis: dict[str, Any]) -> dict[str, Any]:
    facts = {"label": entry.label, "group": entry.group, "kind": entry.kind}
    return {**facts, "family": entry.family, "diagnosis": diagnosis}


def collect(
    entries: list[Entry], arguments: argparse.Namespace, **options: Guard
) -> dict[str, dict[str, Any]]:
    """The results by label: those in the file, and those of the models that are run now."""
    file, part = arguments.resume, "diagnosis" if arguments.findings else "outcome"
    wanted = {entry.label for entry in entries}
    results = {k: v for k, v in (known(file) if file else {}).items() if k in wanted}
    left = [e for e in entries if not _done(results.get(e.label, {}), part, arguments.retry)]
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    console = Console(stderr=True, soft_wrap=True)
    shown = sys.stderr.isatty()
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not shown) as progress:
        task = progress.add_task("zoo", total=len(entries), completed=len(entries) - len(left))
        limits = {"timeout": arguments.timeout, "memory": arguments.memory}
        attempt = DIAGNOSE if arguments.findings else CHECK
        for entry, row in zip(left, run(left, attempt=attempt, **limits, **options), strict=True):
            data = _line(entry, row) if arguments.findings else row
            results[entry.label] = results.get(entry.label, {}) | data
            if file:
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(data) + "\n")
            if row["outcome"] != "ok":
                console.print(f"{entry.label}: {row['outcome']}: {row['reasons'][0]}")
            progress.update(task, advance=1, description=entry.label)
    return results


if __name__ == "__main__":
    sys.exit(main())
