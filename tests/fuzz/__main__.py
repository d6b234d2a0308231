"""``python -m tests.fuzz [EACH] [SEED] [-v]``: so many inputs of each kind, and how they ended.

It ends with 1 where the contract was broken. ``-v`` names each attempt before it is made: after a
crash the last one did it.
"""

from __future__ import annotations

import faulthandler
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.attempts import SECONDS, Attempt, faults
from fuzz.configs import MODULES
from fuzz.strategies import STRATEGIES
from fuzz.trying import each


def shown(attempt: Attempt) -> Attempt:
    """An attempt without the modules that the configs name."""
    files = {name: text for name, text in attempt.files.items() if text != MODULES.get(name)}
    return replace(attempt, files=files)


def main() -> None:
    """Make the attempts, count, and print each that broke the contract."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    count, seed = (*numbers, *(200, 0)[len(numbers) :])
    total = broken = 0
    for kind in STRATEGIES:
        made = failed = 0

        def make(attempt: Attempt) -> None:
            nonlocal made, failed
            made += 1
            if "-v" in sys.argv:
                print(shown(attempt), file=sys.stderr, flush=True)
            # What hangs in C hears no signal.
            faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
            found = faults(attempt)
            if found:
                failed += 1
                print(f"{'; '.join(found)}:\n  {shown(attempt)}", flush=True)

        each(kind, make, count=count, seed=seed)
        print(f"{made:5} {kind}, {failed} broke the contract", flush=True)
        total, broken = total + made, broken + failed
    faulthandler.cancel_dump_traceback_later()
    print(f"{total:5} inputs, {broken} broke the contract")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
