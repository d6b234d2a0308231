"""Seeds that are set again and again: each step then draws the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import script_line


@dataclass(slots=True)
class _Seed:
    """The line that set it first, in how many steps it was set, and the last of these."""

    line: str | None
    steps: int = 0
    latest: int = -1


class Seeds:
    """Counts the steps in which ``torch.manual_seed`` was called with each seed.

    A seed for each step, or one for each epoch, is another each time or comes rarely.
    """

    #: More seeds than these are one for each step.
    MOST = 16

    def __init__(self) -> None:
        self._seeds: dict[int, _Seed] = {}

    def seeded(self, seed: object, step: int) -> None:
        """``torch.manual_seed`` was called between the steps ``step`` and the next."""
        if not isinstance(seed, int) or (seed not in self._seeds and len(self._seeds) >= self.MOST):
            return
        known = self._seeds.get(seed)
        if known is None:
            known = self._seeds[seed] = _Seed(None)
        if known.latest != step:
            known.steps, known.latest = known.steps + 1, step
        if step and known.line is None:  # the first may be the script's own start
            line = script_line()
            known.line = None if line is None else str(line)

    def facts(self) -> Iterator[LoopFact]:
        """The seeds, each with the number of its steps."""
        for seed, one in self._seeds.items():
            if one.steps > 1:
                figures = (float(seed),)
                yield LoopFact("seeded", count=one.steps, figures=figures, location=one.line)
