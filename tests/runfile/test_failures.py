"""Whatever the disk does: the recording ends, says why, and the script goes on."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope import cli
from gradscope.errors import OptionError
from gradscope.records.training import StepSample
from gradscope.runfile import database, writer
from gradscope.runfile.reader import RunFile
from gradscope.runfile.writer import RunWriter
from runfile.made import RUN, sample, step, until


def test_a_full_disk_ends_the_recording(tmp_path):
    one = RunWriter(tmp_path / "run.db", RUN)
    one.add(step(1), sample(1))
    until(lambda: not one._waiting)
    one._connection.execute("PRAGMA max_page_count = 40")
    number = 1
    while one.failure is None:
        number += 1
        one.add(step(number, sampled=True), sample(number, calls=20))
        time.sleep(0.001)
    assert "ended before step" in one.failure
    assert "full" in one.failure
    one.add(step(number + 1))
    assert not one._waiting
    one.finish(RUN)
    with RunFile.open(one.path) as file:
        assert file.last_step >= 1
        assert len(file.steps()) == file.last_step
        assert file.run.ended is None


FAULTS = {
    "a disk that fails": sqlite3.OperationalError("disk I/O error"),
    "a folder that is gone": OSError(5, "Input/output error"),
    "a fault of gradscope's own": AttributeError("no such field"),
    "no memory": MemoryError(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_injected_fault_ends_the_recording(fault, tmp_path, monkeypatch):
    one = RunWriter(tmp_path / "run.db", RUN)
    one.add(step(1))
    until(lambda: not one._waiting)

    def broken(*args: object) -> None:
        raise fault

    monkeypatch.setattr(database.Batch, "write", broken)
    one.add(step(2))
    until(lambda: one.failure is not None)
    assert str(one.path) in one.failure
    assert str(fault) in one.failure
    for number in range(3, 100):
        one.add(step(number))
    assert not one._waiting
    one.finish(RUN)
    with RunFile.open(one.path) as file:
        assert file.last_step == 1


def test_a_record_that_cannot_be_written_ends_the_recording(tmp_path):
    one = RunWriter(tmp_path / "run.db", RUN)
    one.add(StepSample(1, 0, replace(sample(1).report, config={"x": object()})))
    until(lambda: one.failure is not None)
    assert "TypeError" in one.failure
    one.finish(RUN)


PLACES = {
    "no folder above it": "a/b/run.db",
    "a file for a folder": "file/run.db",
    "a folder of that name": "folder",
    "a name that is too long": "x" * 300,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_place_that_cannot_be_had_is_refused(place, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError):
        RunWriter(tmp_path / place, RUN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    """Injected: whoever runs the tests may be allowed everything."""

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(database.os, "open", refuse)
    with pytest.raises(OptionError, match="Permission denied"):
        RunWriter(tmp_path / "run.db", RUN)


def test_a_disk_full_from_the_start_leaves_no_file(tmp_path, monkeypatch):
    def full(*args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(database, "_insert", full)
    with pytest.raises(OptionError, match="disk is full"):
        RunWriter(tmp_path / "run.db", RUN)
    assert list(tmp_path.iterdir()) == []


def test_samples_that_find_no_room_are_counted_and_step_metrics_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_MOST_WAITING", 20)
    one = RunWriter(tmp_path / "run.db", RUN)
    slow = threading.Lock()
    transaction = database.transaction

    def held(connection: sqlite3.Connection) -> object:
        with slow:
            return transaction(connection)

    monkeypatch.setattr(database, "transaction", held)
    for _ in range(2):
        with slow:
            first = 1 if not one._kept.last else 101
            for number in range(first, first + 100):
                one.add(step(number, sampled=True), sample(number))
            assert one._weight <= 20
        until(lambda: not one._waiting)
    one.finish(RUN)
    assert one.failure is None
    with RunFile.open(one.path) as file:
        assert file.last_step == len(file.steps()) == 200
        (event,) = file.events
        assert event.kind == database.SAMPLES_LEFT_OUT
        assert event.details["samples"] == 200 - len(file.sampled)
        assert {s.step for s in file.steps() if s.sampled} == set(file.sampled)
        assert event.message.startswith(f"{200 - len(file.sampled)} samples")


def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_PATIENCE", 0.05)
    one = RunWriter(tmp_path / "run.db", RUN)
    answer = threading.Event()
    transaction = database.transaction

    def never(connection: sqlite3.Connection) -> object:
        answer.wait()
        return transaction(connection)

    monkeypatch.setattr(database, "transaction", never)
    one.add(step(1))
    one.finish(RUN)
    assert "does not respond" in one.failure
    answer.set()
    one.close()


def test_the_clock_may_jump(tmp_path, monkeypatch):
    clock = iter(range(10**9, 0, -(10**5)))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    one = RunWriter(tmp_path / "run.db", RUN)
    for number in range(1, 50):
        one.add(step(number))
    until(lambda: not one._waiting)
    one.finish(RUN)
    with RunFile.open(one.path) as file:
        assert file.last_step == 49


def test_many_threads_may_add(tmp_path):
    one = RunWriter(tmp_path / "run.db", RUN)

    def add(first: int) -> None:
        for number in range(first, 2001, 4):
            one.add(step(number), *[sample(number)] * (number % 50 == 0))

    threads = [threading.Thread(target=add, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.finish(RUN)
    with RunFile.open(one.path) as file:
        assert [s.step for s in file.steps()] == list(range(1, 2001))
        assert len(file.sampled) == 40
    assert one._weight == 0


def test_a_run_ends_where_no_thread_can_be_started(tmp_path, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    one = RunWriter(tmp_path / "run.db", RUN)
    one.add(step(1))
    one.finish(replace(RUN, exit="0"))
    with RunFile.open(one.path) as file:
        assert (file.last_step, file.run.exit) == (1, "0")


def test_what_is_added_after_the_end_is_passed_over(tmp_path):
    one = RunWriter(tmp_path / "run.db", RUN)
    one.finish(RUN)
    before = Path(one.path).read_bytes()
    one.add(step(1))
    one.finish(replace(RUN, exit="1"))
    one.close()
    assert one.failure is None
    assert Path(one.path).read_bytes() == before


def test_too_few_samples_to_keep_are_refused_before_the_script_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["gradscope", "run", "--keep", "15", "train.py"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "Invalid value for '--keep'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.skipif(sys.platform != "linux", reason="the locks of this process are in /proc")
def test_a_reader_in_the_process_leaves_the_writer_its_lock(tmp_path):
    """POSIX: a process loses its locks of a file as soon as it closes the file anywhere."""
    one = RunWriter(tmp_path / "run.db", RUN)
    number = one.path.stat().st_ino

    def locks() -> list[str]:
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return sorted(" ".join(one[1:]) for one in held if one[5].endswith(f":{number}"))

    before = locks()
    with RunFile.open(one.path) as run:
        assert run.steps() == ()
    assert locks() == before != []
    one.close()
