"""Loads the rules from the files of this folder: a new file is a new rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gradscope import plugins
from gradscope.errors import OptionError, did_you_mean
from gradscope.records.loop import LoopRecord
from gradscope.records.ranks import RanksRecord
from gradscope.records.report import Finding, Report
from gradscope.records.training import TrainingFinding
from gradscope.rules._history import SampleHistory, StepHistory
from gradscope.rules._rule import Limits, Rule
from gradscope.rules._severity import SEVERITIES
from gradscope.rules._words import either

Find = Callable[[Report, Limits], Iterator[Finding]]
Wants = Callable[[Report, Limits], Iterable[str]]
OverSteps = Callable[[StepHistory, Limits], Iterator[Finding]]
OverSamples = Callable[[SampleHistory, Limits], Iterator[Finding]]
InLoop = Callable[[LoopRecord, Limits], Iterator[TrainingFinding]]
OverRanks = Callable[[RanksRecord, Limits], Iterator[TrainingFinding]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule's documentation and its functions; None for a function that its file lacks.

    ``find`` reads the record of one step; ``wants`` names the full sample that it needs. In a
    training run, whose steps have no full sample, ``find_sampled`` replaces ``find``.
    ``find_in_loop`` reads the training loop's actions at every step, and replaces both in a run.
    ``find_over_steps`` and ``find_over_samples`` read the history of a training run, and
    ``find_over_ranks`` the files of its processes.
    """

    rule: Rule
    find: Find | None = None
    wants: Wants | None = None
    find_sampled: Find | None = None
    find_over_steps: OverSteps | None = None
    find_over_samples: OverSamples | None = None
    find_over_ranks: OverRanks | None = None
    find_in_loop: InLoop | None = None

    @property
    def in_runs(self) -> Find | None:
        """Return the function that judges a sampled step of a training run."""
        if self.rule.runs is None or self.find_in_loop is not None:
            return None
        return self.find_sampled or self.find


#: Functions that a rule's file may have, by name.
FUNCTIONS = (
    *("find", "wants", "find_sampled", "find_in_loop"),
    *("find_over_steps", "find_over_samples", "find_over_ranks"),
)


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return the entry of every file in this folder, by code."""
    found: dict[str, Entry] = {}
    for name in plugins.names("gradscope.rules"):
        module = plugins.load("gradscope.rules", name)
        functions = {one: getattr(module, one, None) for one in FUNCTIONS}
        assert any(functions.values()), f"{name}: nothing that finds"
        entry = Entry(module.RULE, **functions)
        code = entry.rule.code
        assert entry.rule.severity in SEVERITIES, f"{name}: no severity `{entry.rule.severity}`"
        assert code not in found, f"two rules have the code {code}"
        assert name == f"{code.lower()}-{entry.rule.name}", f"`{name}` is not its rule's name"
        found[code] = entry
    return tuple(found[code] for code in sorted(found))


def rule_book() -> tuple[Rule, ...]:
    """Return every rule's documentation, by code."""
    return tuple(entry.rule for entry in entries())


def lookup(code_or_name: str) -> Rule:
    """Return the rule of ``GS101``, ``gs101`` or ``vanishing-gradient``.

    Raises:
        OptionError: there is none; the message suggests the closest.
    """
    word = code_or_name.strip().lower().replace("_", "-")
    for rule in rule_book():
        if word in (rule.code.lower(), rule.name, f"{rule.code.lower()}-{rule.name}"):
            return rule
    raise OptionError(f"unknown rule `{code_or_name}`", help=closest(code_or_name))


@functools.cache
def chosen(word: str) -> frozenset[str]:
    """Return the codes that a word of ``select`` or ``ignore`` names: a code, its beginning, or a
    name.

    Raises:
        OptionError: it names none; the message suggests the closest.
    """
    start = word.strip().upper()
    codes = {rule.code for rule in rule_book() if start and rule.code.startswith(start)}
    if start in ("ALL", "*"):
        codes = {rule.code for rule in rule_book()}
    return frozenset(codes) or frozenset({lookup(word).code})


def closest(word: str) -> str:
    """Suggest a rule for a word that names none."""
    book, word = rule_book(), word.strip()
    names = did_you_mean(word.lower().replace("_", "-"), [rule.name for rule in book])
    # Codes are numbers, so only codes of the same hundred are suggested.
    near = [rule.code for rule in book if rule.code[:3] == word.upper()[:3]]
    codes = f"did you mean {either(f'`{code}`' for code in near)}?" if near else None
    return names or codes or "`gradscope rules` lists them"
