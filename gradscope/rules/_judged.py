"""Finds the rules that had enough data in a run, by the needs in ``RULE.runs``.

A rule without a finding means something only if it had enough samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from gradscope.records.answers import Judgement, NotJudged
from gradscope.records.report import Report
from gradscope.records.training import TrainedModel, TrainingStep
from gradscope.records.transformer import PROBES
from gradscope.rules._book import Entry
from gradscope.rules._rule import Limits
from gradscope.rules._settings import RuleSettings
from gradscope.rules._words import plural

#: Samples for which `--every` is advised if only the metrics of steps are lacking.
_PLENTY = 16


@dataclass(slots=True)
class Seen:
    """Counts the data of a run that rules could read so far.

    Data is counted for each optimizer, and for each model in the steps of each optimizer: a rule
    needs enough of all of them.

    Attributes:
        settings: the active rules.
        ranks: True if the files of several processes are read together.
        cut: True if gradscope ended the script before its end.
        probed: True if the calls of compiled models are recorded.
    """

    settings: RuleSettings
    ranks: bool = False
    cut: bool = False
    probed: bool = False
    _metrics: tuple[str, ...] = field(init=False)  # all that rules read
    _read: Callable[[TrainingStep], tuple[object, ...]] = field(init=False)
    #: The number of steps, by optimizer, number of backwards in the loss, and existing metrics.
    _steps: Counter[tuple[str, int, tuple[bool, ...]]] = field(default_factory=Counter)
    _made: dict[str, int] = field(default_factory=dict)
    #: The number of samples by model and optimizer: all ("") and those with attention, experts, ….
    _samples: dict[str, Counter[tuple[int, str]]] = field(default_factory=dict)
    _first: bool = False
    _without_calls: bool = False

    def __post_init__(self) -> None:
        runs = [entry.rule.runs for entry, _ in self.settings.active()]
        read = {name for one in runs if one is not None for name in one.metrics}
        # ``attrgetter`` returns a tuple only for two names or more.
        self._metrics = tuple(sorted(read | {"step", "loss"}))
        self._read = attrgetter(*self._metrics)

    def add_step(self, step: TrainingStep) -> None:
        """Add a recorded step. It runs in every step, so it makes no Python call for each
        metric."""
        optimizer = step.optimizer
        if step.optimizer_step > self._made.get(optimizer, 0):
            self._made[optimizer] = step.optimizer_step
        there = tuple([value is not None and value != () for value in self._read(step)])
        self._steps[optimizer, len(step.summed_losses), there] += 1

    def add_sample(
        self, step: int, model: int, optimizer: str, structures: Iterable[str] = ()
    ) -> None:
        """Add a sample of a model in this step of an optimizer, with its structures."""
        for one in ("", *structures):
            self._samples.setdefault(one, Counter())[model, optimizer] += 1
        self._first = self._first or step == 1

    def add_model(self, model: TrainedModel) -> None:
        """Note a model, and if its calls are not recorded."""
        self._without_calls = self._without_calls or bool(model.compiled and not self.probed)

    @property
    def steps_made(self) -> int:
        """The smallest number of steps of an optimizer, recorded or not."""
        return min(self._made.values(), default=0)

    @property
    def first(self) -> bool:
        """True if step 1 was sampled."""
        return self._first

    @property
    def has_calls(self) -> bool:
        """True if the calls of all models are recorded."""
        return not self._without_calls

    def samples(self, structure: str = "") -> int:
        """Return the smallest number of samples of a model in the steps of one optimizer, for
        models with the structure."""
        return min(self._samples.get(structure, {}).values(), default=0)

    def steps(self, metrics: tuple[str, ...]) -> int | None:
        """Return the number of steps with these metrics, for the optimizer with the fewest; None if
        there are none.

        Losses that are sums of another number of backwards are not comparable.
        """
        places = [self._metrics.index(name) for name in metrics]
        found: dict[str, Counter[int]] = {}
        for (optimizer, backwards, there), count in self._steps.items():
            if all(there[place] for place in places):
                found.setdefault(optimizer, Counter())[backwards] += count
        together = max if "loss" in metrics else sum
        return min((together(counts.values()) for counts in found.values()), default=None)


def structures(report: Report) -> tuple[str, ...]:
    """Return the structures of a sample, as ``Runs.structure`` names them."""
    return tuple(kind for kind in PROBES if getattr(report, kind))


def judgement(seen: Seen) -> Judgement:
    """Return the rules that could be judged, and the needs of the others."""
    judged: list[str] = []
    lacking: list[NotJudged] = []
    for entry, limits in seen.settings.active():
        code = entry.rule.code
        if entry.find_over_ranks is not None:
            judged += [code] if seen.ranks else []
            continue
        if entry.find_in_loop is not None:  # facts of every step, from the first on
            if seen.cut and entry.rule.runs is not None and entry.rule.runs.end:
                lacking.append(NotJudged(code, "end", 1, 0, ""))
            else:
                judged.append(code)
            continue
        needs = list(_needs(entry, limits, seen))
        missed = [one for one in needs if one.seen < one.needs]
        if missed:
            lacking.append(missed[0])
        elif needs:
            judged.append(code)
    return Judgement(tuple(judged), tuple(_helped(lacking, seen.steps_made)))


def _needs(entry: Entry, limits: Limits, seen: Seen) -> Iterator[NotJudged]:
    """Yield a rule's needs with the amount so far; nothing if the rule does not apply."""
    runs, code = entry.rule.runs, entry.rule.code
    if runs is None or (runs.structure and seen.has_calls and not seen.samples(runs.structure)):
        return
    if runs.calls:
        yield NotJudged(code, "calls", 1, int(seen.has_calls), "")
    steps = seen.steps(runs.metrics)
    if runs.over_steps and steps is not None:
        yield NotJudged(code, "steps", runs.steps_needed(limits), steps, "")
        if runs.steps_needed(limits) == 1:  # what a sample shows, each step shows too
            return
    if runs.first:
        yield NotJudged(code, "first-step", 1, int(seen.first), "")
    elif runs.over_samples:
        samples = seen.samples(runs.structure)
        yield NotJudged(code, "samples", runs.samples_needed(limits), samples, "")


def _helped(lacking: Sequence[NotJudged], made: int) -> Iterator[NotJudged]:
    """Add to each need the option that gives enough: one `--every` for all rules with enough steps.

    With `--every`, the metrics of every step are recorded.
    """
    fewest = [one.needs for one in lacking if one.unit == "samples" and one.needs <= made]
    every = max(1, made // max(fewest, default=_PLENTY))
    for one in lacking:
        help = f"--every {every}"
        if one.unit == "calls":
            help = "--compiled"
        elif one.unit == "end":
            help = "run the script to its end"
        elif one.unit == "first-step":
            help = "--first 1"
        elif one.needs > made:
            help = f"a run of {plural(one.needs, 'step')} or more"
        yield replace(one, help=help)
