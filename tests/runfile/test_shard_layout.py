"""Files of several ranks read as one run: norms of wholes from norms of parts, or None."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.records.modules import ParameterStats
from gradscope.records.run import DeviceMesh, ParameterPlacement
from gradscope.records.tensors import TensorStats
from gradscope.records.training import Fingerprints, StepSample, TrainedModel, TrainingStep
from gradscope.runfile.norm_series import Holder, reduced
from gradscope.runfile.rank_file import shared_numbers
from gradscope.runfile.ranks import compare_ranks
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter
from runfile.made import RUN, report


def mesh(rank: int, *shape: int) -> DeviceMesh:
    size = math.prod(shape)
    place, left = [], rank
    for length in reversed(shape):
        place.append(left % length)
        left //= length
    return DeviceMesh(0, (), shape, tuple(range(size)), tuple(reversed(place)))


def holders(shape: tuple[int, ...], *kinds: str) -> dict[int, Holder]:
    return {rank: Holder(mesh(rank, *shape), kinds) for rank in range(math.prod(shape))}


@pytest.mark.parametrize(
    ("shape", "kinds", "norms", "expected"),
    [
        pytest.param((2,), ["S(0)"], [3.0, 4.0], 5.0, id="shards add up"),
        pytest.param((2,), ["R"], [3.0, 3.0], 3.0, id="replicas count once"),
        pytest.param((2,), ["R"], [3.0, 4.0], None, id="replicas that differ have no norm"),
        pytest.param((2,), ["R"], [None, 4.0], 4.0, id="one replica is enough"),
        pytest.param((2,), ["P"], [3.0, 4.0], None, id="a sum that nobody has taken"),
        pytest.param((2,), ["S(0)"], [3.0, None], None, id="a shard that nobody measured"),
        pytest.param((2, 2), ["S(0)", "S(0)"], [2.0] * 4, 4.0, id="two dimensions"),
        pytest.param((2, 2), ["R", "S(1)"], [3.0, 4.0] * 2, 5.0, id="replicas of shards"),
        pytest.param((2, 2), ["S(0)", "R"], [3.0, 3.0, 4.0, 4.0], 5.0, id="shards of replicas"),
        pytest.param((2, 2), ["S(0)", "R"], [3.0, None, 4.0, 4.0], 5.0, id="a replica is missing"),
    ],
)
def test_a_norm_of_the_whole(shape, kinds, norms, expected):
    assert reduced(holders(shape, *kinds)).norm(dict(enumerate(norms))) == expected


def test_a_rank_whose_file_is_missing():
    held = holders((2,), "S(0)")
    del held[1]
    assert reduced(held).fault == "missing"
    assert reduced(held).norm({0: 3.0}) is None


def test_flat_pieces_are_not_put_together():
    """Equal norms make no replicas of them."""
    pieces = {rank: Holder(placements=("F",)) for rank in (0, 1)}
    assert (reduced(pieces).fault, reduced(pieces).norm({0: 3.0, 1: 3.0})) == ("flat", None)


def test_an_empty_shard_is_no_part():
    held = holders((2,), "S(0)")
    held[1] = replace(held[1], elements=0)
    assert reduced(held).norm({0: 3.0, 1: None}) == 3.0


def test_plain_tensors_are_replicas():
    assert reduced({0: Holder(), 1: Holder()}).norm({0: 2.0, 1: 2.0 + 1e-9}) == 2.0


def stats(norm: float, numel: int) -> TensorStats:
    moments = (norm, 1.0, 0.5, -norm, norm)
    return TensorStats((numel,), "float64", numel, *moments, zeros=1, nan=0, inf=0)


def rank_file(folder: Path, rank: int, *, steps: int = 2) -> None:
    """A sharded weight [6], whose shards are [4] and [2], and a bias that is the same in both."""
    writer = RunWriter(folder / f"rank-{rank}.db", replace(RUN, rank=rank, world_size=2))
    norm, numel = ((3.0, 4), (4.0, 2))[rank]
    writer.add(
        mesh(rank, 2),
        ParameterPlacement(0, "w", (6,), (numel,), 0, ("S(0)",), ("S(0)",), 0),
        ParameterPlacement(0, "b", (2,), (2,), norm_group=1),
    )
    for number in range(1, steps + 1):
        parameters = (
            ParameterStats("w", (6,), True, stats(norm, numel), stats(norm, numel)),
            ParameterStats("b", (2,), True, stats(2.0, 2), stats(12.0, 2), 0.5),
        )
        parameters = tuple(replace(p, update_norm=p.value.norm / 2) for p in parameters)
        writer.add(
            StepSample(number, 0, replace(report(calls=1, seed=rank), parameters=parameters)),
            TrainingStep(
                *(number, "", number, number, 1.0, (float(rank),), None, 99.0, 99.0),
                sampled=True,
                norms=((0, norm, norm / 2), (1, 12.0, 6.0)),
            ),
        )
    writer.finish(replace(RUN, rank=rank, world_size=2, ended=RUN.started))


def test_a_folder_is_read_as_the_whole(tmp_path):
    rank_file(tmp_path, 0)
    rank_file(tmp_path, 1)
    with RunFile.open(tmp_path) as run:
        assert [step.gradient_norm for step in run.steps()] == [13.0, 13.0]
        assert [step.clipped_norm for step in run.steps()] == [6.5, 6.5]
        assert [step.loss for step in run.steps()] == [0.5, 0.5]
        series = run.parameter_series()
        weight, bias = series[0, "w"].values, series[0, "b"].values
        assert (weight["grad_norm"], bias["grad_norm"]) == ((5.0, 5.0), (12.0, 12.0))
        assert (weight["update_ratio"], bias["update_ratio"]) == ((0.5, 0.5), (0.5, 0.5))
        assert weight["zeros"] == (2 / 6, 2 / 6)
        (call,) = run.call_series().values()
        assert call.lowest["out_norm"] < call.highest["out_norm"]
        (sample,) = run.sample(1)
        named = {one.name: one for one in sample.report.parameters}
        assert (named["w"].shape, named["w"].value.numel, named["w"].value.norm) == ((6,), 6, 5.0)
        assert named["w"].update_ratio == 0.5
        assert sample.report.totals.gradient_norm == 13.0


def test_one_file_is_its_ranks_own(tmp_path):
    rank_file(tmp_path, 0)
    rank_file(tmp_path, 1)
    with RunFile.open(tmp_path / "rank-1.db") as run:
        assert run.parameter_series()[0, "w"].values["grad_norm"] == (4.0, 4.0)


def test_what_is_missing_is_none(tmp_path):
    rank_file(tmp_path, 0)
    with RunFile.open(tmp_path) as run:
        assert run.parameter_series()[0, "w"].values["grad_norm"] == (None, None)
        assert run.parameter_series()[0, "b"].values["grad_norm"] == (12.0, 12.0)
        assert [step.gradient_norm for step in run.steps()] == [None, None]


def test_a_rank_that_was_killed(tmp_path):
    rank_file(tmp_path, 0, steps=3)
    rank_file(tmp_path, 1, steps=2)
    with RunFile.open(tmp_path) as run:
        assert [step.gradient_norm for step in run.steps()] == [13.0, 13.0, None]
        assert [step.loss for step in run.steps()] == [0.5, 0.5, None]
        assert run.parameter_series()[0, "w"].values["grad_norm"] == (5.0, 5.0, None)


def test_files_from_before_there_were_placements(tmp_path):
    """They have no such tables and columns: plain parameters that agree are replicas."""
    for rank in range(2):
        rank_file(tmp_path, rank)
        with sqlite3.connect(tmp_path / f"rank-{rank}.db") as file:
            file.execute("DROP TABLE mesh")
            file.execute("DROP TABLE placement")
            file.execute("ALTER TABLE step DROP COLUMN norms")
            file.execute("ALTER TABLE parameter DROP COLUMN update_norm")
        file.close()
    with RunFile.open(tmp_path) as run:
        assert [step.gradient_norm for step in run.steps()] == [99.0, 99.0]
        series = run.parameter_series()
        assert series[0, "b"].values["update_ratio"] == (0.5, 0.5)
        assert series[0, "w"].values["grad_norm"] == (None, None)


def test_stages_of_a_pipeline(tmp_path):
    """Each rank has parameters of its own, and the last one the loss."""
    for rank, (name, norm, losses) in enumerate((("in", 3.0, (None,)), ("out", 4.0, (0.25,)))):
        writer = RunWriter(tmp_path / f"rank-{rank}.db", replace(RUN, rank=rank, world_size=2))
        parameter = ParameterStats(name, (2,), True, stats(1.0, 2), stats(norm, 2))
        writer.add(
            ParameterPlacement(0, name, (2,), (2,), norm_group=0),
            StepSample(1, 0, replace(report(calls=1), parameters=(parameter,))),
            TrainingStep(
                *(1, "", 1, 1.0, 1.0, losses, None, norm, norm),
                sampled=True,
                norms=((0, norm, norm),),
            ),
        )
        writer.finish(replace(RUN, rank=rank, world_size=2))
    with RunFile.open(tmp_path) as run:
        assert [(step.gradient_norm, step.loss) for step in run.steps()] == [(5.0, 0.25)]
        series = run.parameter_series()
        assert [series[0, name].values["grad_norm"] for name in ("in", "out")] == [(3.0,), (4.0,)]
        (sample,) = run.sample(1)
        assert [one.name for one in sample.report.parameters] == ["in", "out"]


def test_losses_of_ranks_with_other_numbers_of_backwards(tmp_path):
    """It is the sums whose mean is taken then, and no backward is left out of them."""
    for rank, losses in enumerate(((1.0, 1.0, 1.0, 1.0), (2.0, 2.0))):
        run = replace(RUN, rank=rank, world_size=2)
        writer = RunWriter(tmp_path / f"rank-{rank}.db", run)
        writer.add(TrainingStep(1, "", 1, 1.0, 1.0, losses, None, 1.0, 1.0))
        writer.finish(run)
    with RunFile.open(tmp_path) as run:
        assert [step.loss for step in run.steps()] == [4.0]


def test_replicas_that_differ_are_said(tmp_path):
    rank_file(tmp_path, 0)
    rank_file(tmp_path, 1)
    with sqlite3.connect(tmp_path / "rank-1.db") as file:
        file.execute("UPDATE parameter SET value_norm = 7 WHERE name = 'b' AND step = 2")
    file.close()
    with RunFile.open(tmp_path) as run:
        bias = run.parameter_series()[0, "b"]
        assert (bias.values["value_norm"], bias.fault) == ((2.0, None), "differs")


def test_more_ranks_than_a_process_may_open_files_by_default(tmp_path):
    """Of 1,024 on most systems; here of few more than are open now."""
    resource = pytest.importorskip("resource")
    for rank in range(40):
        run = replace(RUN, rank=rank, world_size=40)
        RunWriter(tmp_path / f"rank-{rank}.db", run).finish(replace(run, ended=1.0))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (tmp_path / "free").open("w") as file:
        few = file.fileno() + 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
        with RunFile.open(tmp_path) as run:
            assert len(run.runs) == 40
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def models_of(folder: Path, rank: int, *names: str) -> None:
    """One rank's file, whose models are numbered from 1: the norm of each is its name's length."""
    writer = RunWriter(folder / f"rank-{rank}.db", replace(RUN, rank=rank, world_size=2))
    for number, name in enumerate(names, start=1):
        norm = float(len(name))
        weight = ParameterStats("w", (2,), True, stats(norm, 2), stats(norm, 2))
        writer.add(
            TrainedModel(number, name, "Net", len(name), len(name), 1),
            ParameterPlacement(number, "w", (2,), (2,), norm_group=number),
            StepSample(1, number, replace(report(calls=1), parameters=(weight,))),
            Fingerprints(1, number, "parameter", "", f"digest of {name}", {"w": name}),
        )
    norms = tuple((number, float(len(name)), 1.0) for number, name in enumerate(names, start=1))
    writer.add(TrainingStep(1, "", 1, 1.0, 1.0, (0.5,), sampled=True, norms=norms))
    writer.finish(replace(RUN, rank=rank, world_size=2))


@pytest.mark.parametrize("alone", [0, 1])
def test_a_model_of_one_rank_alone_does_not_shift_the_others(tmp_path, alone):
    """As an average of the weights that rank 0 keeps: what comes after it has another number."""
    models_of(tmp_path, alone, "gen", "average", "discriminator")
    models_of(tmp_path, 1 - alone, "gen", "discriminator")
    with RunFile.open(tmp_path) as run:
        names = {model.id: model.name for model in run.models}
        assert sorted(names.values()) == ["average", "discriminator", "gen"]
        series = run.parameter_series()
        assert {names[model]: one.values["grad_norm"] for (model, _), one in series.items()} == {
            name: (float(len(name)),) for name in names.values()
        }
        assert {names[one.model]: one.report.totals.gradient_norm for one in run.sample(1)} == {
            name: float(len(name)) for name in names.values()
        }
        assert {names[model] for model, *_ in run.call_series()} == set(names.values())
        (step,) = run.steps()
        assert step.gradient_norm == math.hypot(*map(len, names.values()))
        assert compare_ranks(run.files).differences == ()


def test_a_model_that_has_another_name_is_known_by_its_make():
    """The copy on rank 0 took the name that the model has on the others."""
    copy = TrainedModel(1, "Net", "Net", 8, 8, 1)
    model = TrainedModel(2, "Net#2", "Net", 8, 8, 1, wrapper="DDP")
    other = TrainedModel(3, "Other", "Other", 5, 5, 1, wrapper="DDP")
    on_others = [replace(model, id=1, name="Net"), replace(other, id=2)]
    assert shared_numbers(on_others, [copy, model, other]) == {1: 2, 2: 3}
    assert shared_numbers(on_others, [copy]) == {1: 3, 2: 2}


def test_flat_pieces_of_another_size_are_the_same_model():
    """Of FSDP1 each rank counts its own."""
    whole = TrainedModel(1, "net", "Net", 8, 8, 1, wrapper="FSDP")
    assert shared_numbers([replace(whole, id=2, parameters=7)], [whole]) == {2: 1}
