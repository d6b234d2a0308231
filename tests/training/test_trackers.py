"""``--to``: a tracker gets what the file has, and the training is the same, whatever it answers."""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from collector import Collector, collecting

import gradscope
from gradscope.errors import OptionError
from gradscope.runfile import database
from gradscope.runfile.exports.wandb import WandbRun
from gradscope.runfile.reader import RunFile
from gradscope.runfile.tracking import KeySelection, MetricRow, Unsent
from gradscope.training import session, tracker_thread
from gradscope.training.tracker_thread import Destination, TrackerSettings
from training.test_watch import net, train

STEPS = 12


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a server that never answers."""
    monkeypatch.setattr(tracker_thread, "PATIENCE", 0.2)


@pytest.fixture
def patient(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are answered wait as long as it takes on a busy machine."""
    monkeypatch.setattr(tracker_thread, "PATIENCE", 60.0)


def observed(path: Path, *to: str, **options: Any) -> tuple[list[torch.Tensor], float, str]:
    """The weights after a training, the next random number, and what is said at the end."""
    model = net()
    random.seed(3)
    with gradscope.watch(model, every=1, out=path, to=to, quiet=True, **options) as run:
        train(model, STEPS)
    return [*model.state_dict().values()], random.random(), repr(run)


def assert_unchanged(found: tuple[list[torch.Tensor], float, str]) -> str:
    plain = net()
    random.seed(3)
    train(plain, STEPS)
    weights, drawn, said = found
    assert drawn == random.random()
    for one, other in zip(plain.state_dict().values(), weights, strict=True):
        assert torch.equal(one, other)
    return said


def events(path: Path) -> list[str]:
    with RunFile.open(path) as run:
        assert run.run.steps == STEPS
        return [one.message for one in run.events if one.kind == "not-sent"]


def rows(path: Path, most: int | None = 200) -> dict[tuple[str, int], float]:
    with RunFile.open(path) as run:
        found = Unsent(KeySelection(most)).read(run, complete=True).rows
        times = {row.step: round(row.time * 1e6) * 1000 for row in found}
        return {(key, times[row.step]): v for row in found for key, v in row.values.items()}


@pytest.mark.usefixtures("patient")
def test_what_is_sent_is_what_the_file_has(tmp_path):
    path = tmp_path / "run.db"
    with collecting() as collector:
        said = assert_unchanged(observed(path, collector.address))
        points = collector.points()
    assert "not sent" not in said
    sent = {(key, time): value for key, some in points.items() for time, value in some}
    assert len(sent) == sum(map(len, points.values()))  # each once
    assert len([key for key in points if key == "gradscope/step"]) == 1
    sent = {key: value for key, value in sent.items() if key[0] != "gradscope/step"}
    expected = rows(path)
    assert sent.keys() == expected.keys()
    assert sent == expected
    assert events(path) == []


def test_a_step_has_the_moment_at_which_it_ended(tmp_path, monkeypatch):
    """Its time counts from the start of the run, and not from the import of PyTorch after it."""
    began = session.Session.begun
    moments = []

    def late(*words: Any) -> session.Session:
        made = began(*words)
        made._began -= 100.0  # the import took that long
        moments.append(made.run.started)
        return made

    monkeypatch.setattr(session.Session, "begun", late)
    observed(tmp_path / "run.db")
    with RunFile.open(tmp_path / "run.db") as run:
        assert all(one.time > 100 and one.seconds < 100 for one in run.steps())
    assert len(moments) == 1


@pytest.mark.usefixtures("patient")
def test_at_most_so_many_keys(tmp_path):
    with collecting() as collector:
        observed(tmp_path / "run.db", collector.address, keys=7)
        assert len(collector.points()) <= 8  # and the step


def slow(collector: Collector) -> None:
    collector.answers.clear()


def refusing(collector: Collector) -> None:
    collector.status = 500


@pytest.mark.parametrize("how", [slow, refusing])
def test_a_server_that_does_not_answer_costs_one_event(how, tmp_path):
    path = tmp_path / "run.db"
    with collecting() as collector:
        how(collector)
        said = assert_unchanged(observed(path, collector.address))
        collector.answers.set()
    assert len(events(path)) <= (how is refusing)  # none if the script ends before it is refused
    assert "sent to otlp: " in said
    place = collector.address.replace("otlp", "http")
    assert f"Later: gradscope export {path} --to otlp {place}" in said


@pytest.mark.usefixtures("patient")
def test_a_dead_server_costs_one_event(tmp_path):
    path = tmp_path / "run.db"
    with collecting() as collector:
        pass
    said = assert_unchanged(observed(path, collector.address))
    (event,) = events(path)
    assert event.startswith("sending to otlp failed: URLError: ")
    assert f"{STEPS} steps not sent to otlp: URLError" in said


def test_a_full_disk(tmp_path, monkeypatch):
    """The run file ends, and so does what is sent; the script goes on."""
    path = tmp_path / "run.db"
    thin = database.thin

    def full(connection: sqlite3.Connection, kept: Any) -> None:
        thin(connection, kept)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(database, "thin", full)
    with collecting() as collector, pytest.warns(UserWarning, match="disk is full"):
        said = assert_unchanged(observed(path, collector.address))
    assert "disk is full" in said


class Kept:
    """A tracker in memory."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.pages: list[str] = []
        self.closed = 0
        self.failing = 0

    def send(self, rows: Any, alerts: Any, *, last: bool = False) -> None:
        if self.failing:
            self.failing -= 1
            raise ConnectionError("https://me:secret@host went away")
        self.rows += [row.step for row in rows]

    def attach(self, page: Path) -> None:
        self.pages.append(page.read_text(encoding="utf-8"))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A tracker whose run the script opens at its fifth step."""
    module: Any = ModuleType("gradscope.runfile.exports.csv")
    module.packages, module.WITHOUT = (), "the script opened no run"
    module.tracker, module.calls, module.opens = Kept(), 0, 2

    def joined(place: str, ending: Any) -> Kept | None:
        module.calls, module.ending = module.calls + 1, ending
        return module.tracker if module.calls >= module.opens else None

    module.joined = joined
    monkeypatch.setattr(Destination, "module", property(lambda self: module))
    monkeypatch.setitem(tracker_thread._PLACES, "kept", "NAME")
    return module


@pytest.mark.usefixtures("patient")
def test_a_run_that_is_opened_late_gets_every_step_and_the_page(pretended, tmp_path):
    said = assert_unchanged(observed(tmp_path / "run.db", "kept"))
    assert pretended.calls == 2
    assert pretended.tracker.rows == list(range(1, STEPS + 1))
    assert pretended.tracker.closed == 1
    (page,) = pretended.tracker.pages
    assert "finished" in page or "exit code 0" in page
    assert "sent" not in said


def test_a_script_that_opens_none_is_told(pretended, tmp_path):
    pretended.opens = 100
    said = assert_unchanged(observed(tmp_path / "run.db", "kept"))
    assert pretended.calls == 5  # after 1, 2, 4 and 8 steps, and at the end
    assert "nothing was sent to kept: the script opened no run. Later: " in said


def test_a_run_without_a_step_joins_nothing(pretended, tmp_path):
    with gradscope.watch(net(), out=tmp_path / "run.db", to="kept", quiet=True) as run:
        pass
    assert pretended.calls == 0
    assert "sent" not in repr(run)


@pytest.mark.usefixtures("patient")
def test_ctrl_c_ends_the_wait_and_the_run_is_complete(pretended, tmp_path, monkeypatch):
    def interrupted(self: Any) -> None:
        raise KeyboardInterrupt

    pretended.opens, path, model, answers = 1, tmp_path / "run.db", net(), threading.Event()
    monkeypatch.setattr(tracker_thread.TrackerThread, "_wait", interrupted)
    monkeypatch.setattr(tracker_thread.TrackerThread, "_round", lambda self, last: answers.wait())
    observing = gradscope.watch(model, every=1, out=path, to="kept", quiet=True)
    with pytest.raises(KeyboardInterrupt), observing:
        train(model, STEPS)
    with RunFile.open(path) as run:
        assert (run.run.steps, run.run.exit) == (STEPS, "0")
        (notice,) = run.run.notices
    assert notice.startswith("not all was sent to kept: interrupted. Later: ")
    answers.set()


@pytest.mark.usefixtures("patient")
def test_what_failed_is_sent_later_and_the_event_has_no_password(pretended, tmp_path, monkeypatch):
    monkeypatch.setattr(tracker_thread, "_PAUSE", 0.001)
    pretended.tracker.failing, pretended.opens = 1, 1
    path = tmp_path / "run.db"
    model = net()
    with gradscope.watch(model, every=1, out=path, to="kept", quiet=True):
        train(model, STEPS)
        from runfile.made import until

        until(lambda: not pretended.tracker.failing and bool(pretended.tracker.rows))
    assert pretended.tracker.rows == list(range(1, STEPS + 1))
    assert events(path) == ["sending to kept failed: ConnectionError: https://host went away"]


@pytest.mark.usefixtures("patient")
def test_the_rest_is_sent_before_the_script_ends_its_own_run(pretended, tmp_path):
    pretended.opens = 1
    model = net()
    with gradscope.watch(model, every=1, out=tmp_path / "run.db", to="kept", quiet=True) as run:
        train(model, STEPS)
        pretended.ending()
        assert pretended.tracker.rows == list(range(1, STEPS + 1))
        assert pretended.tracker.closed == 1
        train(model, 3)
    assert pretended.tracker.closed == 1
    assert "3 steps not sent to kept: they came after its run's end. Later: " in repr(run)


@pytest.mark.usefixtures("patient")
def test_the_last_step_is_sent_where_few_are_recorded(pretended, tmp_path):
    pretended.opens = 1
    model = net()
    with gradscope.watch(model, budget=1e-9, out=tmp_path / "run.db", to="kept", quiet=True) as run:
        train(model, 100)
        pretended.ending()
    assert 100 in pretended.tracker.rows
    assert len(pretended.tracker.rows) < 100
    assert "not sent" not in repr(run)


def test_only_a_tracker_that_keeps_files_gets_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr("gradscope.api.watching.run_page", None)  # nobody calls it
    with collecting() as collector:
        observed(tmp_path / "run.db", collector.address)
        assert collector.points()
    assert events(tmp_path / "run.db") == []


@pytest.mark.usefixtures("patient")
def test_several_trackers_share_the_page_of_the_end(pretended, tmp_path, monkeypatch):
    made = []

    def page(run: RunFile, ended: Any) -> str:
        made.append(ended)
        return f"page {len(made)}"

    monkeypatch.setattr("gradscope.api.watching.run_page", page)
    monkeypatch.setattr(Destination, "of", lambda text: Destination(text, ""))
    pretended.opens = 1
    observed(tmp_path / "run.db", "kept", "also")
    assert [ended is not None for ended in made] == [True]
    assert pretended.tracker.pages == ["page 1"] * 2


class Counting:
    """A run of W&B: rows in the making are committed by its own or another's log."""

    def __init__(self) -> None:
        self.step, self.rows, self._making = 0, [], {}

    def define_metric(self, *words: str, **options: Any) -> None: ...

    def log(self, values: dict[str, Any], commit: bool = True) -> None:
        self._making |= values
        if commit:
            self.rows.append(self._making)
            self._making, self.step = {}, self.step + 1


def test_wandb_gets_every_sampled_step_though_the_script_logs_rarely():
    run = Counting()
    tracker = WandbRun(run, own=False)
    for step in range(1, 101):
        tracker.send([MetricRow(step, 0.0, {"gradscope/loss": float(step)}, step % 10 == 0)], ())
        if step % 20 == 0:
            run.log({"own": step})
    tracker.send((), (), last=True)
    assert [row["own"] for row in run.rows[:5]] == [20, 40, 60, 80, 100]
    assert all("own" not in row for row in run.rows[5:])
    got = {row["gradscope/step"]: row["gradscope/loss"] for row in run.rows}
    assert got.items() >= {step: float(step) for step in range(10, 101, 10)}.items()
    assert len(got) == len([row for row in run.rows if "gradscope/step" in row])  # each once


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("wand", "did you mean `wandb`"),
        ("nothing", "unknown tracker `nothing` one of mlflow, otlp, tensorboard, trackio, wandb"),
        ("csv", "`--to csv` is a format of files"),
        ("otlp", "is not a host"),
        ("tensorboard://here", "`tensorboard` takes no address"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(word, said):
    with pytest.raises(OptionError) as caught:
        Destination.of(word)
    problem = caught.value.problems[0]
    assert said in f"{problem.message} {problem.help}"
    with pytest.raises(OptionError), gradscope.watch(net(), to=word):
        raise AssertionError


def test_two_spellings_of_an_address_are_one_target():
    words = ("otlp://h", "otlp://H:4318/", "otlps://h", "tensorboard", "tensorboard")
    to = TrackerSettings.of(words, 200, lambda run, ended: "", quiet=True).to
    assert [one.name for one in to] == ["otlp", "otlp", "tensorboard"]
    assert [one.place for one in to[:2]] == ["http://h:4318", "https://h:4318"]


def test_without_it_nothing_is_imported_or_sent(tmp_path, monkeypatch):
    names = [f"{tracker_thread.ROOM}.{name}" for name in ("wandb", "mlflow", "trackio")]
    for name in names:  # other tests import them
        monkeypatch.delitem(sys.modules, name, raising=False)
    observed(tmp_path / "run.db")
    assert not sys.modules.keys() & set(names)
