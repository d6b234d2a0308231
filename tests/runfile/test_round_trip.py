"""Each record is read as it was written; also while the run goes on."""

from __future__ import annotations

import sqlite3
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gradscope.errors import OptionError
from gradscope.records.run import DeviceMesh, ParameterPlacement
from gradscope.records.tensors import NormNames, ParameterNorms, TensorRecord, TensorStats
from gradscope.records.training import (
    StepSample,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)
from gradscope.runfile import schema
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter
from runfile.made import (
    ENDED,
    EVENTS,
    FINDING,
    FINDINGS,
    MESHES,
    MODELS,
    NORM_NAMES,
    NORMS,
    PLACEMENTS,
    RUN,
    STEPS,
    report,
    sample,
    step,
    until,
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A finished run with every record."""
    writer = RunWriter(tmp_path / "run.db", RUN)
    writer.add(*MODELS, *MESHES, *PLACEMENTS, *STEPS, *EVENTS, *FINDINGS)
    writer.add(sample(1), sample(1, 1))
    writer.add(sample(3, 1))
    writer.finish(ENDED)
    assert writer.failure is None
    return writer.path


def test_every_record_comes_back(written):
    with RunFile.open(written) as file:
        assert file.run == replace(ENDED, steps=5)
        assert file.models == MODELS
        assert file.steps() == STEPS
        assert file.events == EVENTS
        assert file.findings == FINDINGS
        assert file.sample(1) == (sample(1), sample(1, 1))
        assert file.sample(3) == (sample(3, 1),)
        assert (file.files[0].meshes, file.files[0].placements) == (MESHES, PLACEMENTS)
        assert (file.sampled, file.last_step) == ((1, 3), 5)


def test_every_field_has_been_written(written):
    """A field that is added to a record later has to be filled here too, or its loss is unseen."""
    kinds = {TrainingRun: [ENDED], TrainedModel: MODELS, TrainingStep: STEPS}
    kinds |= {DeviceMesh: MESHES, ParameterPlacement: PLACEMENTS}
    kinds |= {NormNames: NORM_NAMES, ParameterNorms: NORMS}
    kinds |= {TrainingEvent: EVENTS, TrainingFinding: FINDINGS, StepSample: [sample(1)]}
    for kind, records in kinds.items():
        for field in fields(kind):
            given = {str(getattr(record, field.name)) for record in records}
            assert field.name == "schema" or given - {str(field.default)}, field.name


def test_a_file_from_before_a_loss_was_a_sum_is_read(written):
    with sqlite3.connect(written) as file:
        file.execute("ALTER TABLE step DROP COLUMN summed")
        file.execute("ALTER TABLE model DROP COLUMN autocast")
        file.execute("ALTER TABLE model DROP COLUMN compiled")
    file.close()
    with RunFile.open(written) as file:
        assert file.steps()[4].loss == sum(STEPS[4].losses) == 3.125
        assert {(model.autocast, model.compiled) for model in file.models} == {(None, None)}


def test_a_file_from_before_findings_had_parameters_is_read(written):
    with sqlite3.connect(written) as file:
        file.execute("ALTER TABLE finding DROP COLUMN parameters")
        file.execute("ALTER TABLE run DROP COLUMN cost_seconds")
        file.execute("ALTER TABLE run DROP COLUMN cut")
    file.close()
    with RunFile.open(written) as file:
        assert file.run == replace(ENDED, steps=5, cost_seconds=None, cut=None)
        assert [one.parameters for one in file.findings] == [None, None]


def test_a_part_of_the_run_is_asked_for(written):
    with RunFile.open(written) as file:
        assert file.steps(2, 3) == STEPS[1:3]
        assert file.steps(4) == STEPS[3:]
        assert file.steps(9, 12) == ()
        assert file.sample(1, 1) == (sample(1, 1),)
        assert file.sample(2) == file.sample(1, 7) == ()
        assert file.call_series(7) == {}


def test_a_finished_run_is_one_file(written):
    assert [path.name for path in written.parent.iterdir()] == ["run.db"]


def test_numbers_that_are_not_finite_are_none(tmp_path):
    nan, inf = float("nan"), float("inf")
    bad = TrainingStep(1, "", 1, 0.5, 0.5, (nan, 1.0), "nan", inf, -inf, (nan,), inf)
    writer = RunWriter(tmp_path / "run.db", replace(RUN, cost=nan))
    odd = replace(report(), loss=nan, config={"x": inf, 3: "not a text"})
    writer.add(bad, StepSample(1, 0, odd, {"w": nan}))
    writer.finish(replace(RUN, cost=nan))
    with RunFile.open(writer.path) as file:
        (back,) = file.steps()
        assert (back.losses, back.nonfinite, back.gradient_norm) == ((None, 1.0), "nan", None)
        assert back.learning_rates == (None,)
        (read,) = file.sample(1)
        assert read.report.loss is None
        assert read.report.config == {"x": None, "3": "not a text"}
        assert read.clipped == {"w": None}
        assert file.run.cost is None


def test_names_that_utf8_lacks_are_escaped(tmp_path):
    writer = RunWriter(tmp_path / "run.db", replace(RUN, script="\udcff.py", arguments=("\ud800",)))
    writer.add(TrainingEvent(0, 0.0, "note", "\udcff"))
    writer.finish(replace(RUN, script="\udcff.py", arguments=("\ud800",)))
    with RunFile.open(writer.path) as file:
        assert (file.run.script, file.run.arguments) == ("\\udcff.py", ("\ud800",))
        assert file.events[0].message == "\\udcff"


def test_a_finding_replaces_the_one_with_the_same_key(tmp_path):
    one, other = FINDINGS
    later = TrainingFinding(replace(FINDING, message="worse"), ((1, 9),), 0)
    writer = RunWriter(tmp_path / "run.db", RUN)
    writer.add(one, other)
    writer.add(later)
    writer.add(replace(one, model=1))
    writer.finish(RUN)
    with RunFile.open(writer.path) as file:
        assert file.findings == (later, other, replace(one, model=1))


def test_events_stand_in_the_order_in_which_they_came(tmp_path):
    """Whatever their clock said, which may have been set back."""
    events = tuple(TrainingEvent(step, 9.0 - step, "note", "text") for step in range(1, 5))
    writer = RunWriter(tmp_path / "run.db", RUN)
    writer.add(*events)
    writer.finish(RUN)
    with RunFile.open(writer.path) as file:
        assert file.events == events


def test_series_hold_a_number_for_each_sample(tmp_path):
    writer = RunWriter(tmp_path / "run.db", RUN)
    for number in (1, 2, 5):
        writer.add(step(number, sampled=True), sample(number), sample(number, 1))
    writer.finish(RUN)
    with RunFile.open(writer.path) as file:
        calls, parameters = file.call_series(), file.parameter_series(1)
    assert list(calls) == [(m, f"layer{i}.conv", 0) for m in (0, 1) for i in (0, 1)]
    assert list(parameters) == [(1, "layer0.conv.weight"), (1, "layer1.conv.weight")]
    series = calls[0, "layer1.conv", 0]
    assert series.steps == (1, 2, 5)
    assert tuple(series.values) == schema.CALL_COLUMNS
    outputs = [sample(number).report.calls[1].outputs[0] for number in (1, 2, 5)]
    assert series.values["out_mean"] == tuple(one.activation.mean for one in outputs)
    assert series.values["out_zeros"] == tuple(one.activation.zeros / 25088 for one in outputs)
    assert series.values["grad_out_norm"] == tuple(one.gradient.norm for one in outputs)
    series = parameters[1, "layer0.conv.weight"]
    assert tuple(series.values) == schema.PARAMETER_COLUMNS
    assert series.values["clipped_norm"] == (0.5, 0.5, 0.5)
    other = parameters[1, "layer1.conv.weight"].values
    assert other["clipped_norm"] == other["grad_norm"]


def test_several_outputs_count_as_one_tensor(tmp_path):
    """The statistics of a concatenation, taken by hand: [1, 1, 4] and [2], and one NaN more."""
    first = TensorStats((3,), "float32", 3, 18**0.5, 2.0, 2**0.5, 1.0, 4.0, 0, 0, 0)
    second = TensorStats((2,), "float32", 2, 2.0, 2.0, 0.0, 2.0, 2.0, 0, 1, 0)
    empty = TensorStats((0,), "float32", 0)
    whole = report()
    call = replace(
        whole.calls[0],
        outputs=(
            TensorRecord("0", first),
            TensorRecord("1", second, empty),
            TensorRecord("2", empty),
        ),
    )
    writer = RunWriter(tmp_path / "run.db", RUN)
    writer.add(StepSample(1, 0, replace(whole, calls=(call,))))
    writer.finish(RUN)
    with RunFile.open(writer.path) as file:
        (series,) = file.call_series().values()
    values = {name: value for name, (value,) in series.values.items()}
    assert values["out_norm"] == pytest.approx(22**0.5, rel=1e-15)
    assert values["out_mean"] == 2.0
    assert values["out_std"] == pytest.approx(1.5**0.5, rel=1e-15)
    assert (values["out_min"], values["out_max"]) == (1.0, 4.0)
    assert (values["out_zeros"], values["out_nonfinite"]) == (0.0, 1)
    assert values["grad_out_norm"] is None


def test_it_is_read_while_it_is_written(tmp_path):
    writer = RunWriter(tmp_path / "run.db", RUN)
    with RunFile.open(writer.path) as file:
        assert (file.run, file.steps(), file.last_step) == (RUN, (), 0)
        for number in range(1, 4):
            writer.add(step(number, sampled=True), sample(number))
            until(lambda number=number: file.last_step == number)
            assert file.sampled == tuple(range(1, number + 1))
            assert file.run.steps == number
        writer.finish(ENDED)
        assert writer.failure is None
        assert file.run == ENDED


def test_nothing_is_overwritten_and_two_runs_at_once_are_apart(tmp_path):
    first, second = (RunWriter(tmp_path / "runs" / name, RUN) for name in ("a.db", "b.db"))
    with pytest.raises(OptionError, match="exists"):
        RunWriter(first.path, RUN)
    first.add(step(1))
    second.add(step(2))
    for writer in (first, second):
        writer.finish(RUN)
    with pytest.raises(OptionError, match="exists"):
        RunWriter(first.path, RUN)
    for writer, number in ((first, 1), (second, 2)):
        with RunFile.open(writer.path) as file:
            assert file.steps() == (step(number),)


def test_ranks_are_read_together(tmp_path):
    for rank in (0, 1, 10):
        writer = RunWriter(tmp_path / "run" / f"rank-{rank}.db", replace(RUN, rank=rank))
        writer.add(step(rank + 1), TrainingEvent(1, 1.0 - rank / 16, "note", "hello"))
        writer.add(FINDINGS[0], *FINDINGS[1:] * (rank == 10))
        writer.finish(replace(RUN, rank=rank))
    with RunFile.open(tmp_path / "run") as file:
        assert [run.rank for run in file.runs] == [0, 1, 10]
        assert (file.run.rank, file.steps()) == (0, (step(1),))
        assert [event.details.get("rank") for event in file.events] == [10, 1, None]
        assert file.findings == FINDINGS


def test_the_schema_is_named_in_the_file(written):
    with sqlite3.connect(written) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        assert connection.execute("SELECT schema FROM run").fetchone() == (schema.SCHEMA,)
        assert TrainingRun("a", 0.0).schema == schema.SCHEMA
        assert schema.SCHEMA.endswith(f"/{schema.VERSION}")
    connection.close()


def test_a_file_of_version_1_is_read(written):
    """Its table ``run`` calls the median seconds of a sampled step ``watched``."""
    connection = sqlite3.connect(written)
    with connection:
        connection.execute("ALTER TABLE run RENAME COLUMN sampled_seconds TO watched")
        connection.execute("UPDATE run SET watched = 0.25, schema = 'gradscope.run/1'")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    with RunFile.open(written) as file:
        assert file.run.sampled_seconds == 0.25
