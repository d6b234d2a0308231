"""Thins samples and step metrics beyond the size that a run file keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gradscope.records.tensors import ParameterNorms
from gradscope.records.training import (
    StepSample,
    TrainingEvent,
    TrainingFinding,
    TrainingRecord,
    TrainingRun,
    TrainingStep,
)
from gradscope.runfile.schema import LEAST_NORMS, MOST_EVENTS, MOST_NORM_BYTES, MOST_STEPS

#: The first samples always stay.
FIRST = 3


def samples_to_drop(counted: Mapping[int, int], referred: Collection[int], keep: int) -> list[int]:
    """Return the steps whose samples are dropped: none, or so many that about three quarters of
    ``keep`` are left.

    Three groups stay: the first three; the last half of ``keep``; and up to a quarter of ``keep``
    that findings or events refer to, from both ends. Of the others, every second one is dropped,
    repeatedly. They are counted in the order of sampling, so the remaining ones are spread evenly.

    Args:
        counted: each sampled step, with the number of samples before it.
        referred: the steps that findings and events refer to.
        keep: the largest number of samples.
    """
    if len(counted) <= keep:
        return []
    steps = sorted(counted)
    stay = {*steps[:FIRST], *steps[-(keep // 2) :]}
    stay.update(outermost([s for s in steps if s in referred and s not in stay], keep // 4))
    others = [step for step in steps if step not in stay]
    room = keep - keep // 2 - keep // 4 - FIRST
    every = 1
    while sum(counted[step] % every == 0 for step in others) > room:
        every *= 2
    return [step for step in others if counted[step] % every]


def outermost(steps: list[int], count: int) -> list[int]:
    """Return the first and the last of the steps, which show the start and the present state."""
    if len(steps) <= count:
        return steps
    return steps[: count - count // 2] + steps[len(steps) - count // 2 :]


def stride(last: int, most: int) -> tuple[int, int]:
    """Return the row number up to which rows are thinned, and the step between kept ones.

    The last half of ``most`` stays complete; before it there is a quarter of ``most`` or less.
    """
    until = last - most // 2
    step = 2
    while until // step > most // 4:
        step *= 2
    return until, step


class KeptNorms:
    """Counts the norms in a run file: the number of rows and bytes, by their list of names.

    Args:
        most: the bytes above which older rows are thinned, for all names alike.
    """

    def __init__(self, most: int = MOST_NORM_BYTES) -> None:
        self.most = most
        self.size = 0
        self._rows: dict[int, tuple[int, int, int]] = {}  # how many, the last number, bytes

    def note(self, record: ParameterNorms) -> None:
        """Note a written row."""
        count, _, size = self._rows.get(record.names, (0, 0, 0))
        self._rows[record.names] = count + 1, record.number, size + record.size
        self.size += record.size

    def to_thin(self) -> Iterator[tuple[int, int, int]]:
        """Yield names, with ``stride``'s numbers for their rows; ``thinned`` must follow."""
        if self.size <= self.most:
            return
        share = self.most / self.size
        for names, (count, last, _) in list(self._rows.items()):
            if count > LEAST_NORMS:
                yield (names, *stride(last, int(count * share)))

    def thinned(self, names: int, gone: int) -> None:
        """Note that so many rows of these names were removed."""
        count, last, size = self._rows[names]
        less = size * gone // count
        self._rows[names] = count - gone, last, size - less
        self.size -= less


class Kept:
    """The facts on a run file's content that thinning needs."""

    def __init__(
        self, keep: int, most_steps: int = MOST_STEPS, most_events: int = MOST_EVENTS
    ) -> None:
        self.keep, self.most_steps, self.most_events = keep, most_steps, most_events
        self.norms = KeptNorms()
        self.rows = self.events = self.last = self._taken = 0
        self._sampled: dict[int, int] = {}
        self._event_steps: set[int] = set()
        self._findings: dict[object, set[int]] = {}

    def note(self, record: TrainingRecord | TrainingRun) -> None:
        """Note a written record."""
        match record:
            case TrainingStep():
                self.rows += 1
                self.last = max(self.last, record.step)
            case ParameterNorms():
                self.norms.note(record)
            case StepSample() if record.step not in self._sampled:
                self._sampled[record.step] = self._taken
                self._taken += 1
            case TrainingEvent():
                self.events += 1
                self._event_steps.add(record.step)
            case TrainingFinding():
                self._findings[record.key] = {step for pair in record.steps for step in pair}

    @property
    def referred(self) -> set[int]:
        """The steps of events, and the first and last steps of findings."""
        return self._event_steps.union(*self._findings.values())

    def drop_samples(self) -> list[int]:
        """Return the steps whose samples must be dropped now; they count as dropped from now on."""
        if len(self._sampled) <= self.keep:
            return []
        steps = samples_to_drop(self._sampled, self.referred, self.keep)
        for step in steps:
            del self._sampled[step]
        return steps
