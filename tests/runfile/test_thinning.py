"""Samples and step metrics that stay: invariants over random sequences."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from gradscope.errors import OptionError
from gradscope.records.training import TrainingEvent, TrainingFinding
from gradscope.runfile import database, schema, writer
from gradscope.runfile.database import FIRST, Kept
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter
from runfile.made import EVENTS, FINDINGS, RUN, sample, step


def test_what_is_not_too_much_stays():
    assert database.samples_to_drop({s: s for s in range(16)}, (), 16) == []


@pytest.mark.parametrize("seed", range(30))
def test_samples_over_random_sequences(seed):
    draw = random.Random(seed)
    keep = draw.choice((16, 17, 31, 64, 200))
    kept, held, number = Kept(keep), set(), 0
    first: list[int] = []
    taken: list[int] = []
    referred: set[int] = set()
    for _ in range(draw.randrange(3 * keep, 20 * keep)):
        number += draw.choice((1, 1, 10, 100))
        one = sample(number, calls=0, parameters=0)
        if draw.random() < 0.02:
            kept.note(TrainingEvent(number, 0.0, "note", "text"))
            referred.add(number)
        if draw.random() < 0.01:  # one finding, that goes on
            kept.note(TrainingFinding(FINDINGS[0].finding, ((5, number),)))
        kept.note(one)
        held.add(number)
        taken.append(number)
        first = first or taken[:FIRST] if len(taken) >= FIRST else []
        gone = set(kept.drop_samples())
        assert gone <= held
        held -= gone
        assert len(held) <= keep
        assert held >= {*first, *taken[-(keep // 2) :]}
        if len(referred) <= keep // 4 - 2:
            assert held >= referred
    older = sorted(taken.index(s) for s in held)[FIRST:]
    gaps = [b - a for a, b in itertools.pairwise(older)]
    # Evenly spread: with a power of two between neighbours, and no hole.
    assert max(gaps) <= 16 * len(taken) / keep


def test_the_first_and_the_last_of_many_referred_samples_stay():
    counted = {step: step for step in range(1, 102)}
    gone = database.samples_to_drop(counted, range(4, 60), 100)
    stay = set(counted) - set(gone)
    assert stay >= {*range(1, 4), *range(4, 17), *range(40, 52), *range(52, 102)}
    assert len(stay) <= 100


@pytest.mark.parametrize("keep", [-1, 0, 15])
def test_too_few_to_keep_are_refused(keep, tmp_path):
    with pytest.raises(OptionError, match="leaves too few"):
        RunWriter(tmp_path / "run.db", RUN, keep=keep)
    assert list(tmp_path.iterdir()) == []


def test_a_file_holds_what_was_kept(tmp_path):
    one = RunWriter(tmp_path / "run.db", RUN, keep=16)
    one.add(EVENTS[0])
    for number in range(1, 301):
        one.add(step(number, sampled=True), sample(number), sample(number, 1))
        if number == 40:
            one.add(TrainingEvent(37, 5.0, "note", "text"))
        if number % 10 == 0:
            one.add(step(number))
    one.finish(RUN)
    assert one.failure is None
    with RunFile.open(one.path) as file:
        sampled = file.sampled
        assert len(sampled) <= 16
        assert set(sampled) >= {1, 2, 3, *range(293, 301)}
        assert len(file.steps()) == 300
        assert {s.step for s in file.steps() if s.sampled} <= set(sampled)
        for number in sampled:
            assert file.sample(number) == (sample(number), sample(number, 1))
        for series in (*file.call_series().values(), *file.parameter_series().values()):
            assert series.steps == sampled


def test_step_metrics_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "Kept", lambda keep: Kept(keep, most_steps=1000))
    one = RunWriter(tmp_path / "run.db", RUN)
    one.add(TrainingEvent(77, 5.0, "note", "text"))
    for number in range(1, 5001):
        wanted = number in (10, 55, 1001)
        one.add(step(number, sampled=wanted), *[sample(number)] * wanted)
        if number % 200 == 0:  # a commit, and with it perhaps a thinning
            one._now.set()
            one._some.set()
    one.finish(RUN)
    assert one.failure is None
    with RunFile.open(one.path) as file:
        numbers = [s.step for s in file.steps()]
    assert len(numbers) <= 1000
    assert set(numbers) >= {1, 2, 3, 10, 55, 77, 1001, *range(4501, 5001)}
    older = [n for n in numbers if n < 4000]
    assert max(b - a for a, b in itertools.pairwise(older)) <= 32


def test_events_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "Kept", lambda keep: Kept(keep, most_events=100))
    one = RunWriter(tmp_path / "run.db", RUN)
    for number in range(1, 1001):
        one.add(TrainingEvent(number, number / 8, "skipped", "a scaler skipped the step"))
    one.finish(RUN)
    with RunFile.open(one.path) as file:
        steps = [event.step for event in file.events]
    assert len(steps) <= 100
    assert set(steps) >= {1, 2, 3, *range(951, 1001)}


@pytest.mark.slow
def test_a_long_run_takes_no_more_room(tmp_path):
    """Dropped rows make room for new ones: the file stops growing."""
    one = RunWriter(tmp_path / "run.db", RUN, keep=16)
    sizes = []
    for number in range(1, 401):
        one.add(step(number, sampled=True), sample(number, calls=20, parameters=20))
        if number in (100, 400):
            one.pause()  # writes at least a part
            one.resume()
            while one._waiting:
                one._now.set()
                one._some.set()
            sizes.append(pages(one.path))
    one.finish(RUN)
    assert sizes[1] < 2 * sizes[0], "of four times as many steps"


def pages(path: Path) -> int:
    """The pages of the database, those in the journal too."""
    with RunFile.open(path) as file:
        ((count,),) = file.files[0]._connection.execute("PRAGMA page_count")
        return int(count)


def test_the_documented_numbers():
    assert (schema.KEEP, schema.MOST_STEPS, schema.MOST_EVENTS) == (512, 200_000, 10_000)
