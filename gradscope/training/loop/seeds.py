"""Finds a seed that is set in many steps, so that each step draws the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import script_line


@dataclass(slots=True)
class _Seed:
    """The first line that set the seed, the number of steps that set it, and the last of these
    steps."""

    line: str | None
    steps: int = 0
    latest: int = -1


class Seeds:
    """Counts the steps in which ``torch.manual_seed`` was called with each seed.

    A new seed for each step, or a seed for each epoch, does not count.
    """

    #: More seeds than these are one for each step.
    MOST = 16

    def __init__(self) -> None:
        self._seeds: dict[int, _Seed] = {}

    def seeded(self, seed: object, step: int) -> None:
        """Note a call of ``torch.manual_seed`` after step ``step``."""
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
        """Yield the facts on seeds, each with the number of its steps."""
        for seed, one in self._seeds.items():
            if one.steps > 1:
                figures = (float(seed),)
                yield LoopFact("seeded", count=one.steps, figures=figures, location=one.line)
