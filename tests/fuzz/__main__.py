"""``python -m tests.fuzz [COUNT]``: many inputs in one process, and what became of each kind."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile.commands import gradscope
from hypothesis import HealthCheck, Phase, given, settings

from fuzz.attempting import faults
from fuzz.inputs import Attempt, attempts


def main() -> None:
    """Try, count, and end with 1 where the contract was broken."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    saved = gradscope(["inspect", "demo", "-f", "json"]).out
    tried: Counter[str] = Counter()
    broken: list[tuple[Attempt, list[str]]] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(attempts(saved))
    def try_one(attempt: Attempt) -> None:
        tried[attempt.kind] += 1
        found = faults(attempt)
        if found:
            broken.append((attempt, found))
            print(f"{'; '.join(found)}: {attempt!r}", flush=True)

    try_one()
    print(f"{tried.total()} tried:", ", ".join(f"{n} {kind}" for kind, n in sorted(tried.items())))
    print(f"{len(broken)} broke the contract")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
