"""A run's numbers for other tools: the right ones, whole or not, and nothing overwritten."""

from __future__ import annotations

import csv
import errno
import importlib.util
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradscope import cli, plugins
from gradscope.records.tensors import NormNames, ParameterNorms, packed
from gradscope.records.training import TrainedModel, TrainingStep
from gradscope.runfile.exports import tensorboard
from gradscope.runfile.reader import RunFile
from gradscope.runfile.tracking import MetricRow
from gradscope.runfile.writer import RunWriter
from runfile.made import ENDED, RUN, STEPS, sample

if TYPE_CHECKING:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOM = "gradscope.runfile.exports"
MODEL = TrainedModel(0, "net", "Net", 10, 10, 2)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with samples of two steps, in the working directory."""
    writer = RunWriter(tmp_path / "run.db", RUN)
    writer.add(MODEL, *STEPS, sample(1), sample(3))
    writer.finish(ENDED)
    monkeypatch.chdir(tmp_path)
    return writer.path


def ends(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["gradscope", "export", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_csv_has_every_number(recorded, monkeypatch, capsys):
    assert ends(monkeypatch, "run.db", "--to", "csv", "out.csv") == 0
    assert capsys.readouterr() == ("", "wrote out.csv\n")
    with Path("out.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["table"] for row in found] == ["step"] * 5 + ["call"] * 4 + ["parameter"] * 4
    first, second, third = found[:3]
    assert first["loss"] == "2.5"
    assert (first["name"], first["learning_rate"], first["loss_scale"]) == ("optG", "0.1", "1024.0")
    assert second["loss"] == second["gradient_norm"] == ""
    assert third["nonfinite_kind"] == "nan"
    call = found[6]
    assert (call["step"], call["time"], call["model"]) == ("3", "0.3", "net")
    assert (call["name"], call["call"]) == ("layer0.conv", "0")
    output = sample(3).report.calls[0].outputs[0]
    assert float(call["out_mean"]) == output.activation.mean
    assert float(call["grad_out_norm"]) == output.gradient.norm
    assert call["out_nonfinite"] == "0"
    weight = found[9]
    assert (weight["name"], weight["call"]) == ("layer0.conv.weight", "")
    assert float(weight["update_ratio"]) == sample(1).report.parameters[0].update_ratio
    assert weight["clipped_norm"] == "0.5"


def test_csv_has_the_norms_of_steps_that_were_not_sampled(tmp_path, monkeypatch, capsys):
    """A sample's own numbers stay; the steps between have the norms alone."""
    writer = RunWriter(tmp_path / "run.db", RUN)
    name = sample(1).report.parameters[0].name
    norms = [ParameterNorms(n, 1, n, packed([n / 2]), None, packed([8.0])) for n in (1, 2, 3)]
    writer.add(MODEL, *STEPS, sample(1), sample(3), NormNames(1, 0, (name,)), *norms)
    writer.finish(ENDED)
    assert ends(monkeypatch, str(writer.path), "--to", "csv", "-") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    first, between, last = (row for row in rows if row["name"] == name)
    assert [row["step"] for row in (first, between, last)] == ["1", "2", "3"]
    assert float(first["grad_norm"]) == sample(1).report.parameters[0].gradient.norm
    assert between["update_ratio"] == between["nonfinite"] == ""
    assert (between["grad_norm"], between["clipped_norm"], between["value_norm"]) == (
        *("1.0", "1.0", "8.0"),
    )
    assert last["update_ratio"] != ""


def test_csv_to_standard_output(recorded, monkeypatch, capsysbinary):
    assert ends(monkeypatch, "run.db", "--to", "csv", "out.csv") == 0
    capsysbinary.readouterr()
    assert ends(monkeypatch, "run.db", "--to", "csv", "-") == 0
    assert capsysbinary.readouterr() == (Path("out.csv").read_bytes(), b"")


def test_text_that_a_spreadsheet_would_run_is_not_run(tmp_path, monkeypatch, capsys):
    writer = RunWriter(tmp_path / "run.db", RUN)
    writer.add(TrainingStep(1, "=cmd()", 1, 0.1, 0.1))
    writer.finish(RUN)
    assert ends(monkeypatch, str(writer.path), "--to", "csv", "-") == 0
    assert ",'=cmd()," in capsys.readouterr().out


def test_nothing_is_overwritten_without_force(recorded, monkeypatch, capsys):
    Path("out.csv").write_text("mine", encoding="utf-8")
    assert ends(monkeypatch, "run.db", "--to", "csv", "out.csv") == 2
    assert "add `--force`" in capsys.readouterr().err
    assert Path("out.csv").read_text(encoding="utf-8") == "mine"
    assert ends(monkeypatch, "run.db", "--to", "csv", "out.csv", "--force") == 0
    assert Path("out.csv").read_text(encoding="utf-8").startswith("table,step,")


def test_what_fails_half_way_leaves_nothing(recorded, monkeypatch, capsys):
    def broken(run: RunFile, path: Path) -> None:
        path.write_text("half of", encoding="utf-8")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plugins.load(ROOM, "csv"), "write", broken)
    assert ends(monkeypatch, "run.db", "--to", "csv", "out.csv") == 2
    assert "cannot write `out.csv`: No space left on device" in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["run.db"]


def look_for(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], found: object) -> None:
    """Have Python find this where it looks for packages of these names."""
    look = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: found if name in names else look(name, *more),
    )


MISTAKES = {
    "a format that is none": (("run.db", "--to", "xls", "a"), "unknown export `xls`"),
    "no format": (("run.db",), "`TOOL PLACE` is missing"),
    "half of it": (("run.db", "--to", "csv"), "requires 2 arguments"),
    "no run": (("no.db", "--to", "csv", "a.csv"), "there is no run `no.db`"),
    "a folder that is not there": (("run.db", "--to", "csv", "a/b.csv"), "no such folder: `a`"),
}


@pytest.mark.parametrize(("words", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told(words, said, recorded, monkeypatch, capsys):
    assert ends(monkeypatch, *words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", [name for name in plugins.names(ROOM) if plugins.load(ROOM, name).packages]
)
def test_a_package_that_is_missing_is_named(name, recorded, monkeypatch, capsys):
    export = plugins.load(ROOM, name)
    look_for(monkeypatch, export.packages, None)
    assert ends(monkeypatch, "run.db", "--to", name, "out") == 2
    said = capsys.readouterr().err
    assert f"`--to {name}` needs {export.packages[0]}, which is not installed" in said
    assert "pip install " in said
    assert not Path("out").exists()


def needs_tensorboard() -> None:
    pytest.importorskip("tensorboard", reason="the extra `export` is not installed")


def read(folder: Path) -> EventAccumulator:
    """The one event file of a folder, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = folder.glob(tensorboard.folder)
    return EventAccumulator(str(file), {"scalars": 0, "tensors": 0}).Reload()


def test_tensorboard_gets_a_chart_for_each_number(recorded, monkeypatch):
    needs_tensorboard()
    assert ends(monkeypatch, "run.db", "--to", "tensorboard", "logs") == 0
    events = read(Path("logs"))
    charts: dict[tuple[str, int], tuple[float, float]] = {}
    for tag in events.Tags()["scalars"]:
        for one in events.Scalars(tag):
            assert (tag, one.step) not in charts
            charts[tag, one.step] = one.value, one.wall_time
    assert charts["gradscope/loss/optG", 1] == (2.5, RUN.started + 0.1)
    assert charts["gradscope/learning_rate/optG", 1][0] == as_float32(0.1)
    norm = sample(3).report.calls[1].outputs[0].activation.norm
    assert norm is not None
    out_norm = charts["gradscope/out_norm/net/layer1.conv", 3]
    assert out_norm == (as_float32(norm), RUN.started + 0.3)
    assert charts["gradscope/clipped_norm/net/layer0.conv.weight", 1][0] == 0.5
    assert ("gradscope/out_nonfinite/net/layer1.conv", 3) not in charts


def as_float32(value: float) -> float:
    """TensorBoard keeps 32 bits."""
    (found,) = struct.unpack("f", struct.pack("f", value))
    return float(found)


def test_a_full_disk_leaves_no_half_of_an_event(tmp_path, monkeypatch):
    """What could not be written is sent again, and TensorBoard reads each number once."""
    needs_tensorboard()
    file = tensorboard.EventFile(tmp_path)
    rows = [MetricRow(step, float(step), {"gradscope/loss": step / 2}, False) for step in (1, 2)]
    file.send(rows[:1], ())

    class Full:
        """A disk with room for ten bytes more."""

        def __init__(self, real: Any) -> None:
            self.real, self.room = real, 10

        def write(self, data: memoryview) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room = 0
            return int(self.real.write(data[:10]))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    real = file._file
    monkeypatch.setattr(file, "_file", Full(real))
    with pytest.raises(OSError, match="No space"):
        file.send(rows[1:], ())
    monkeypatch.setattr(file, "_file", real)
    file.send(rows[1:], ())
    file.close()
    found = read(tmp_path).Scalars("gradscope/loss")
    assert [(one.step, one.wall_time, one.value) for one in found] == [(1, 1.0, 0.5), (2, 2.0, 1.0)]


def test_a_folder_keeps_what_else_is_in_it(recorded, monkeypatch, capsys):
    needs_tensorboard()
    Path("logs").mkdir()
    for name in ("events.out.tfevents.1.other", "mine.txt", "events.out.tfevents.0.h.gradscope"):
        Path("logs", name).write_text("old")
    assert ends(monkeypatch, "run.db", "--to", "tensorboard", "logs") == 2
    assert "add `--force`" in capsys.readouterr().err
    assert ends(monkeypatch, "run.db", "--to", "tensorboard", "logs", "--force") == 0
    assert len(read(Path("logs")).Tags()["scalars"]) > 10
    others = [path.name for path in Path("logs").iterdir() if path.suffix != ".gradscope"]
    assert sorted(others) == ["events.out.tfevents.1.other", "mine.txt"]
    assert not [path for path in Path().iterdir() if path.name.startswith(".gradscope")]
    Path("file").touch()
    assert ends(monkeypatch, "run.db", "--to", "tensorboard", "file") == 2
    assert ends(monkeypatch, "run.db", "--to", "tensorboard", "a/b") == 2


@pytest.mark.slow
def test_parquet_itself(recorded, monkeypatch):
    pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
    from pyarrow import parquet

    assert ends(monkeypatch, "run.db", "--to", "parquet", "out.parquet") == 0
    rows = parquet.read_table("out.parquet").to_pylist()
    assert [row["table"] for row in rows] == ["step"] * 5 + ["call"] * 4 + ["parameter"] * 4
    assert rows[0]["loss"] == 2.5
    assert rows[1]["loss"] is None
    assert rows[6]["out_mean"] == sample(3).report.calls[0].outputs[0].activation.mean
