"""Norms of parameters at many steps: what is written is read, bounded, also of many ranks."""

from __future__ import annotations

import itertools
import math
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.errors import ConfigError
from gradscope.records.run import DeviceMesh, ParameterPlacement
from gradscope.records.tensors import (
    NONE,
    NormNames,
    NormSeries,
    ParameterNorms,
    merged_table,
    packed,
    unpacked,
)
from gradscope.records.training import TrainedModel
from gradscope.runfile import database, writer
from gradscope.runfile.database import FIRST, Kept, KeptNorms
from gradscope.runfile.norm_series import combined_later
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter
from runfile.made import ENDED, NORM_NAMES, NORMS, RUN, step

NAMES = NormNames(1, 0, ("w", "b"))


def row(number: int, *norms: float, step: int | None = None, names: int = 1) -> ParameterNorms:
    return ParameterNorms(step or number, names, number, packed(norms))


def file_of(folder: Path, *records: NormNames | ParameterNorms) -> RunFile:
    one = RunWriter(folder / "run.db", RUN)
    one.add(*records)
    one.finish(ENDED)
    assert one.failure is None
    return RunFile.open(one.path)


@pytest.mark.parametrize(
    ("norms", "size"),
    [
        ([1.0, 0.0, 3.0e38, 1.2e-38, NONE, math.inf], 4),
        ([1.0, 1e-39], 8),
        ([1.0, 1e39], 8),
        ([], 4),
        ([NONE], 4),
    ],
)
def test_norms_take_four_bytes_where_these_hold_them(norms, size):
    data = packed(norms)
    assert len(data) == size * len(norms)
    assert list(unpacked(data, len(norms))) == pytest.approx(norms, rel=1e-7, abs=0)


def test_bytes_that_are_no_norms_are_refused():
    for data, count in ((b"123", 1), (b"1234" * 3, 2)):
        with pytest.raises(ValueError, match="are not the norms of"):
            unpacked(data, count)


def test_what_is_written_is_read(tmp_path):
    with file_of(tmp_path, *NORM_NAMES, *NORMS) as run:
        found = run.norm_series()
    assert list(found) == [(0, "fc.weight"), (0, "fc.bias"), (1, "weight")]
    weight, bias, other = found.values()
    assert list(weight.steps) == [1, 3, 4, 5]
    assert list(weight.gradient[:2]) == [0.5, 0.75]
    assert math.isnan(weight.gradient[2])
    assert weight.gradient[3] == NONE, "it was not read before clipping"
    assert [*weight.clipped[:2], weight.clipped[3]] == [0.25, 0.75, 1.5]
    assert list(bias.gradient) == [2.0, NONE, math.inf, NONE]
    assert (list(weight.value_steps), list(weight.value)) == ([1], [4.0])
    assert (list(other.steps), list(other.gradient)) == ([2], [1e-50])
    assert other.clipped == other.gradient


def test_samples_and_norms_in_one_table():
    series = NormSeries()
    for step_, norm in ((1, 2.0), (2, NONE), (3, math.nan)):
        series.steps.append(step_)
        series.gradient.append(norm)
        series.clipped.append(norm)
    values = {"grad_norm": (2.5, None), "zeros": (0.5, 0.0)}
    steps, found = merged_table((1, 4), values, series)
    assert steps == (1, 2, 3, 4)
    assert found["grad_norm"] == (2.5, None, None, None), "what a sample says goes first"
    assert found["clipped_norm"] == (2.0, None, None, None)
    assert found["zeros"] == (0.5, None, None, 0.0)
    assert merged_table((1, 4), values, None) == ((1, 4), values)


def test_a_parameter_of_several_lists_is_one_series(tmp_path):
    more = NormNames(2, 0, ("b", "w", "new"))
    both = NormNames(3, 0, ("w",))
    records = [row(1, 1.0, 2.0), row(2, 3.0, 4.0), row(1, 5.0, 6.0, 7.0, step=4, names=2)]
    with file_of(tmp_path, NAMES, more, both, *records, row(1, 8.0, step=3, names=3)) as run:
        found = run.norm_series()
    weight = found[0, "w"]
    assert (list(weight.steps), list(weight.gradient)) == ([1, 2, 3, 4], [1.0, 3.0, 8.0, 6.0])
    assert list(found[0, "b"].gradient) == [2.0, 4.0, 5.0]
    assert list(found[0, "new"].steps) == [4]


def test_what_is_new_is_read_alone(tmp_path):
    with file_of(tmp_path, NAMES, *(row(n, n, 2 * n) for n in range(1, 8))) as run:
        whole, later = run.norm_series(), run.norm_series(4)
        assert list(later[0, "w"].steps) == [5, 6, 7]
        first = {key: NormSeries(*_before(one, 4)) for key, one in whole.items()}
        assert combined_later(first, later) == whole
        assert combined_later(whole, run.norm_series(7)) == whole
        assert combined_later({}, whole) == whole


def _before(one: NormSeries, count: int) -> Sequence[object]:
    every = (one.steps, one.gradient, one.clipped, one.value_steps, one.value)
    return [column[:count] for column in every]


def test_a_file_from_before_there_were_norms_is_read(tmp_path):
    with file_of(tmp_path, NAMES, row(1, 1.0, 2.0)) as run:
        path = run.path
    with sqlite3.connect(path) as file:
        file.execute("DROP TABLE norm")
        file.execute("DROP TABLE norm_names")
    file.close()
    with RunFile.open(path) as run:
        assert run.norm_series() == {}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE norm SET gradient = x'0102'",
        "UPDATE norm SET gradient = 'text'",
        "UPDATE norm SET clipped = zeroblob(12)",
        "UPDATE norm SET step = 'one'",
        "UPDATE norm_names SET names = '[1]'",
        "UPDATE norm_names SET names = 'no list'",
        'UPDATE norm_names SET names = \'["a", "b", "c"]\'',
    ],
)
def test_damage_is_said(statement, tmp_path):
    with file_of(tmp_path, NAMES, row(1, 1.0, 2.0)) as run:
        path = run.path
    with sqlite3.connect(path) as file:
        file.execute(statement)
    file.close()
    with RunFile.open(path) as run, pytest.raises(ConfigError, match="damaged"):
        run.norm_series()


# -------------------------------------------------------------------- how many there are


def test_the_file_is_bounded(tmp_path, monkeypatch):
    def kept(keep: int) -> Kept:
        made = Kept(keep)
        made.norms = KeptNorms(8 * 1000)
        return made

    monkeypatch.setattr(writer, "Kept", kept)
    one = RunWriter(tmp_path / "run.db", RUN)
    one.add(NAMES)
    for number in range(1, 6001):
        one.add(row(number, 1.0, number), step(number))
        if number % 200 == 0:
            one._now.set()
            one._some.set()
    one.finish(RUN)
    assert one.failure is None
    with RunFile.open(one.path) as run:
        steps = list(run.norm_series()[0, "b"].steps)
        assert list(run.norm_series()[0, "b"].gradient) == steps
    assert len(steps) <= 1000
    assert set(steps) >= {1, 2, 3, *range(5601, 6001)}
    older = [n for n in steps if n < 5000]
    assert len(older) > 100
    assert max(b - a for a, b in itertools.pairwise(older)) <= 64


def test_optimizers_that_take_turns_are_thinned_alike():
    """The rows of each list of names are counted, not steps: each keeps its share."""
    kept = KeptNorms(8 * 2000)
    rows: dict[int, list[int]] = {1: [], 2: []}
    for number in range(1, 20_001):
        for names in (1, 2):
            kept.note(row(number, 1.0, 2.0, names=names))
            rows[names].append(number)
        for names, until, stride in kept.to_thin():
            held = [n for n in rows[names] if n <= FIRST or n >= until or n % stride == 0]
            kept.thinned(names, len(rows[names]) - len(held))
            rows[names] = held
    assert rows[1] == rows[2]
    assert 8 * (len(rows[1]) + len(rows[2])) == kept.size <= kept.most
    assert len(rows[1]) > 500


def test_few_rows_stay_however_many_lists_there_are():
    kept = KeptNorms(8 * 100)
    for names, number in itertools.product(range(1, 5), range(1, database.LEAST_NORMS + 1)):
        kept.note(row(number, 1.0, 2.0, names=names))
    assert list(kept.to_thin()) == []


# -------------------------------------------------------------------- several processes


def ranks(
    folder: Path, shards: Sequence[Sequence[tuple[int, float, float]]], placement: str
) -> RunFile:
    """By rank the steps with the norms of a weight that is placed so, and of a plain bias."""
    size = len(shards)
    for rank, steps in enumerate(shards):
        one = RunWriter(folder / f"rank-{rank}.db", replace(RUN, rank=rank, world_size=size))
        one.add(
            TrainedModel(0, "net", "Net", 8, 8, 1),
            DeviceMesh(0, (), (size,), tuple(range(size)), (rank,)),
            ParameterPlacement(0, "w", (6,), (3,), 0, (placement,), (placement,)),
            ParameterPlacement(0, "b", (2,), (2,)),
            NAMES,
        )
        for number, (at, weight, bias) in enumerate(steps, 1):
            norms = packed([weight, bias])
            one.add(ParameterNorms(at, 1, number, norms, value=norms if at == 1 else None))
        one.finish(replace(RUN, rank=rank, world_size=size, ended=RUN.started))
    return RunFile.open(folder)


def test_shards_are_put_together_and_replicas_count_once(tmp_path):
    both = [[(1, 3.0, 2.0), (2, 6.0, 2.5)], [(1, 4.0, 2.0), (2, 8.0, 2.5)]]
    with ranks(tmp_path, both, "S(0)") as run:
        found = run.norm_series()
        assert list(run.files[1].norm_series()[0, "w"].gradient) == [4.0, 8.0]
    assert list(found[0, "w"].gradient) == [5.0, 10.0]
    assert list(found[0, "b"].gradient) == [2.0, 2.5]
    assert (list(found[0, "w"].value_steps), list(found[0, "w"].value)) == ([1], [5.0])


def test_steps_that_a_rank_did_not_read_are_left_out(tmp_path):
    fewer = [[(n, 3.0, 1.0) for n in range(1, 9)], [(n, 4.0, 1.0) for n in range(2, 7, 2)]]
    with ranks(tmp_path, fewer, "S(0)") as run:
        weight = run.norm_series()[0, "w"]
    assert (list(weight.steps), list(weight.gradient)) == ([2, 4, 6], [5.0] * 3)


@pytest.mark.parametrize("placement", ["P", "R", "S(0)"])
def test_what_cannot_be_put_together_is_not_there(placement, tmp_path):
    """A sum that nobody took, replicas that differ, and a shard without a gradient in step 2."""
    odd = [[(1, 3.0, 1.0), (2, 3.0, 1.0)], [(1, 3.0, 1.5), (2, NONE, 1.0)]]
    with ranks(tmp_path, odd, placement) as run:
        found = run.norm_series()
    expected = {"P": [NONE, NONE], "R": [3.0, 3.0], "S(0)": [math.hypot(3, 3), NONE]}
    assert list(found[0, "w"].gradient) == pytest.approx(expected[placement])
    assert list(found[0, "b"].gradient) == [NONE, 1.0]


def test_norms_that_are_not_finite_stay_so(tmp_path):
    both = [[(1, math.nan, 1.0), (2, 3.0, math.inf)], [(1, 4.0, 1.0), (2, 4.0, math.inf)]]
    with ranks(tmp_path, both, "S(0)") as run:
        found = run.norm_series()
    assert math.isnan(found[0, "w"].gradient[0])
    assert found[0, "w"].gradient[1] == 5.0
    assert not math.isfinite(found[0, "b"].gradient[1])


def test_a_model_that_another_rank_numbers_otherwise(tmp_path):
    for rank in range(2):
        one = RunWriter(tmp_path / f"rank-{rank}.db", replace(RUN, rank=rank, world_size=2))
        own = NormNames(1, rank, ("w",))
        one.add(TrainedModel(rank, "net", "Net", 8, 8, 1), own, row(1, 2.0))
        if rank:
            one.add(TrainedModel(0, "average", "Average", 8, 8, 1))
        one.finish(replace(RUN, rank=rank, world_size=2, ended=RUN.started))
    with RunFile.open(tmp_path) as run:
        assert {key: list(one.gradient) for key, one in run.norm_series().items()} == {
            (0, "w"): [2.0]
        }


def test_the_layout_of_a_blob_is_the_documented_one():
    assert packed([0.5, NONE]) == struct.pack("<ff", 0.5, -1.0)
