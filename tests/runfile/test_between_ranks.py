"""Files of several ranks compared with each other: which differ, since when, and in what."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradscope.records.ranks import Difference, RanksRecord, SameInputs, UnevenBatch
from gradscope.records.training import Fingerprints, TrainedModel, TrainingRecord
from gradscope.rules._book import entries
from gradscope.runfile.ranks import compare_ranks
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter
from runfile.made import RUN, sample, step


def compared(folder: Path, *ranks: Sequence[TrainingRecord]) -> RanksRecord:
    """The record of a run whose ranks wrote this."""
    folder.mkdir(exist_ok=True)
    for rank, records in enumerate(ranks):
        run = replace(RUN, rank=rank, world_size=len(ranks))
        writer = RunWriter(folder / f"rank-{rank}.db", run)
        writer.add(TrainedModel(1, "model", "Net", 10, 10, 2), *records)
        writer.finish(replace(run, ended=1.0, steps=max((r.step for r in records), default=0)))
    with RunFile.open(folder) as file:
        return compare_ranks(file.files)


def looks(
    steps: Mapping[int, Mapping[str, object]], kind: str = "parameter", part: str = ""
) -> Iterator[Fingerprints]:
    """Fingerprints of named tensors by step: equal values are equal bits."""
    for number, tensors in steps.items():
        texts = {name: str(value) for name, value in tensors.items()}
        yield Fingerprints(number, 1, kind, part, str(sorted(texts.items())), texts)


def test_the_first_step_and_the_ranks_that_differ_from_most(tmp_path: Path) -> None:
    same = {1: {"a": 1, "b": 1}, 2: {"a": 2, "b": 2}, 4: {"a": 4, "b": 4}, 8: {"a": 8, "b": 8}}
    other = {**same, 4: {"a": 4, "b": 0}, 8: {"a": 0, "b": 0}}
    record = compared(tmp_path, *(list(looks(one)) for one in (same, same, other, same)))
    assert record.differences == (
        Difference(1, "parameter", (4, 8), 2, ("b",), total=2, ranks=(2,), compared=4),
    )


def test_of_two_ranks_the_lowest_is_what_the_other_differs_from(tmp_path: Path) -> None:
    record = compared(tmp_path, list(looks({1: {"a": 1}})), list(looks({1: {"a": 2}})))
    (one,) = record.differences
    assert (one.steps, one.before, one.ranks) == ((1, 1), None, (1,))


def test_only_steps_that_both_looked_at_and_parts_that_both_hold_are_compared(
    tmp_path: Path,
) -> None:
    first = [*looks({1: {"a": 1}, 5: {"a": 5}}, part="0:0"), *looks({1: {"b": 1}}, part="1:0")]
    second = [*looks({1: {"a": 9}, 6: {"a": 6}}, part="0:1"), *looks({1: {"b": 1}}, part="1:0")]
    assert compared(tmp_path, first, second).differences == ()


def test_a_tensor_that_one_rank_lacks_differs(tmp_path: Path) -> None:
    first = looks({1: {"a": 1, "b": 2}}, kind="gradient")
    record = compared(tmp_path, list(first), list(looks({1: {"a": 1}}, kind="gradient")))
    assert [one.names for one in record.differences] == [("b",)]


def test_the_same_data_counts_by_place(tmp_path: Path) -> None:
    def given(place: str, *batches: int) -> list[Fingerprints]:
        return list(looks({n: {"0": b} for n, b in enumerate(batches, 1)}, "input", place))

    ranks = given("0", 1, 2, 3, 4), given("0", 1, 2, 3, 4), given("1", 1, 2, 3, 9)
    (one,) = compared(tmp_path, *ranks).same_inputs
    assert one == SameInputs(1, (0, 1, 2), (1, 3), count=3, sampled=4)


def test_ranks_of_one_place_get_the_same_by_design(tmp_path: Path) -> None:
    same = list(looks({1: {"0": 1}}, "input", "0"))
    assert compared(tmp_path, same, same).same_inputs == ()


def batches(*sizes: int | None) -> list[TrainingRecord]:
    return [replace(step(n), batch=size) for n, size in enumerate(sizes, 1)]


def test_uneven_batches(tmp_path: Path) -> None:
    record = compared(tmp_path, batches(8, 8, 16, 8, 5), batches(8, 8, 16, 8, 8))
    expected = UnevenBatch((5, 5), 1, {0: 5, 1: 8}, {0: 8, 1: 8}, share=0.6, kinds=3)
    assert record.uneven == expected


def test_sizes_that_vary_are_not_uneven(tmp_path: Path) -> None:
    """Sentences of up to 24 words: most are cut, and the others have any length."""
    entry = next(one for one in entries() if one.rule.code == "GS705")
    for number, (last, count) in enumerate([((24, 24, 3), 1), ((7, 15, 3), 0)]):
        record = compared(
            tmp_path / str(number),
            *(batches(24, 24, 24, 24, 24, 24, *last), batches(*[24] * 9)),
        )
        assert len(list(entry.find_over_ranks(record, entry.rule.limits()))) == count


def test_batches_that_are_always_uneven(tmp_path: Path) -> None:
    record = compared(tmp_path, batches(8, 8, 8), batches(4, 4, 4))
    assert record.uneven is not None
    assert (record.uneven.steps, record.uneven.count) == ((1, 3), 3)


def test_even_batches_and_steps_without_one(tmp_path: Path) -> None:
    assert compared(tmp_path, batches(8, 3, None), batches(8, 3, 8)).uneven is None


def test_of_one_process_nothing_is_compared(tmp_path: Path) -> None:
    record = compared(tmp_path, [*looks({1: {"a": 1}}), *batches(8)])
    assert (record.differences, record.same_inputs, record.uneven) == ((), (), None)


def paced(*own: float, looked: Sequence[int] = ()) -> list[TrainingRecord]:
    """Steps of an eighth of a second, of which so much is the rank's own; the first was slow."""
    first = replace(step(1), own_seconds=9.0, seconds=9.0)
    times = itertools.cycle(own)
    later = [replace(step(n), own_seconds=next(times)) for n in range(2, 14)]
    return [first, *later, *map(sample, looked)]


def test_a_straggler(tmp_path: Path) -> None:
    entry = next(one for one in entries() if one.rule.code == "GS707")
    for number, (times, slow) in enumerate(
        [
            (
                (0.02, 0.09),
                "rank 1 of 2 needs 90.00 ms a step before its backward, the others 20.00 ms",
            ),
            ((0.02, 0.03, 0.02, 0.08), "rank 3 of 4"),
            ((0.08, 0.09), None),
            ((0.002, 0.008), None),  # four times as long, and nothing to wait for
            ((0.02, (0.09, 0.02, 0.09)), None),  # now and then, as on a busy machine
        ]
    ):
        of_ranks = [one if isinstance(one, tuple) else (one,) for one in times]
        record = compared(tmp_path / str(number), *(paced(*own) for own in of_ranks))
        found = [one.finding.message for one in entry.find_over_ranks(record, entry.rule.limits())]
        assert len(found) == (slow is not None)
        assert slow is None or slow in found[0]


def test_steps_that_are_looked_at_tell_no_pace(tmp_path: Path) -> None:
    record = compared(tmp_path, *(paced(own, looked=range(2, 14)) for own in (0.02, 0.09)))
    assert record.paces == {}
