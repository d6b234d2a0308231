"""A run that nobody names: the newest one, and which one that is; a run by its name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commands.run_files import ENDED, with_findings, written

from gradscope import cli
from gradscope.commands import live
from gradscope.runfile.folder import FOLDER, recorded

Command = Callable[..., tuple[int, str, str]]
OLD, NEW = FOLDER / "old.db", FOLDER / "new.db"


@pytest.fixture
def gradscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """A command as the process runs it, in an empty folder: exit code and both streams."""
    monkeypatch.chdir(tmp_path)

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gradscope", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    return command


@pytest.fixture
def runs(gradscope: Command) -> None:
    """Two runs: the one that began first was written last, as one of many hours is."""
    with_findings(NEW)
    written(OLD, replace(ENDED, started=ENDED.started - 60, script="before.py"))


@pytest.mark.parametrize("command", ["show", "why", "live"])
def test_without_a_name_the_newest_run_and_its_name_first(
    command: str, runs: None, gradscope: Command
) -> None:
    code, out, err = gradscope(command)
    assert (code, err) == (0, "")
    first, _, rest = out.partition("\n")
    assert first == f"newest run: {NEW}"
    assert rest == gradscope(command, NEW)[1]


def test_a_step_of_the_newest_run(runs: None, gradscope: Command) -> None:
    assert gradscope("show", "--step", 20)[1].startswith(f"newest run: {NEW}\ntrain.py")
    assert gradscope("why", "--step", 30)[1].startswith(f"newest run: {NEW}\n")
    code, out, err = gradscope("show", "--step", 99)
    assert (code, out) == (2, "")
    assert err.startswith("error: the run has no step 99")


@pytest.mark.parametrize(
    "words",
    [
        ("show", "-f", "json"),
        ("show", "-f", "csv"),
        ("show", "-f", "markdown"),
        ("why", "-f", "json"),
        ("export", "--to", "csv", "-"),
    ],
    ids=" ".join,
)
def test_what_machines_read_holds_nothing_else(
    words: tuple[str, ...], runs: None, gradscope: Command
) -> None:
    command, *options = words
    code, out, err = gradscope(*words)
    assert (code, err) == (0, f"note: newest run: {NEW}\n")
    assert out == gradscope(command, NEW, *options)[1]


def test_a_file_that_is_written_is_the_same(runs: None, gradscope: Command) -> None:
    _, out, err = gradscope("show", "-o", "page.md")
    assert (out, err) == ("", f"note: newest run: {NEW}\n")
    assert Path("page.md").read_text().startswith("## train.py")
    assert gradscope("export", "--to", "csv", "run.csv")[2] == (
        f"note: newest run: {NEW}\nwrote run.csv\n"
    )


def test_a_name_without_a_model_is_one_of_the_newest_run(runs: None, gradscope: Command) -> None:
    assert gradscope("why", "netG.layer1.conv")[1].startswith(f"newest run: {NEW}\n")
    code, _, err = gradscope("why", "fc1.weight")
    assert code == 2
    assert f"= note: `{NEW}` is the newest run" in err


@pytest.mark.parametrize("words", [["demo"], ["mode=eval"], ["--seed", "1"]], ids=" ".join)
def test_what_only_a_model_takes_is_about_the_demo(
    words: list[str], runs: None, gradscope: Command
) -> None:
    assert gradscope("why", *words)[1].startswith("demo · cpu")


def test_without_a_run_why_is_about_the_demo(gradscope: Command) -> None:
    assert gradscope("why")[1].startswith("demo · cpu")
    assert "no run is given, and `gradscope-runs` has none" in gradscope("why", "--step=2")[2]


@pytest.mark.parametrize("words", [["show"], ["export", "--to", "csv", "-"]], ids=" ".join)
def test_without_a_run_the_error_says_how_to_record_one(
    words: list[str], gradscope: Command
) -> None:
    code, out, err = gradscope(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: no run is given, and `gradscope-runs` has none\n")
    assert "`gradscope run SCRIPT.py` records one" in err
    Path("note.db").write_text("no run")
    written(Path("elsewhere.db"))
    assert f"name one: `gradscope {words[0]} elsewhere.db`" in gradscope(*words)[2]


def test_live_waits_for_the_first_run(
    gradscope: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins while `live` sleeps."""
    monkeypatch.setattr("time.sleep", lambda seconds: FOLDER.exists() or with_findings(NEW))
    live.run()
    out, err = capsys.readouterr()
    assert err == "note: no run in `gradscope-runs` yet: waiting for one to begin (Ctrl-C ends)\n"
    assert out.startswith(f"newest run: {NEW}\nevent: step 7")


class TestDiff:
    def test_the_newest_run_against_the_one_before_it(self, runs: None, gradscope: Command) -> None:
        code, out, err = gradscope("diff")
        assert (code, err) == (0, "")
        heading = f"A: {OLD}, the run before · B: {NEW}, the newest run"
        first, _, rest = out.partition("\n")
        assert first == heading
        assert rest == gradscope("diff", OLD, NEW)[1]
        code, out, err = gradscope("diff", "-f", "json")
        assert (json.loads(out)["schema"], err) == ("gradscope.diff/2", f"note: {heading}\n")

    def test_a_run_alone_is_held_against_the_newest(self, runs: None, gradscope: Command) -> None:
        first, _, rest = gradscope("diff", "old")[1].partition("\n")
        assert first == f"A: {OLD} · B: {NEW}, the newest run"
        assert rest == gradscope("diff", OLD, NEW)[1]

    def test_of_one_run_there_is_nothing_to_compare(self, gradscope: Command) -> None:
        assert "two newest runs in `gradscope-runs`" in gradscope("diff")[2]
        written(NEW)
        code, out, err = gradscope("diff")
        assert (code, out) == (2, "")
        assert f"there is only one run in `gradscope-runs`: `{NEW}`" in err
        assert "two runs, please" in gradscope("diff", "new")[2]

    def test_models_are_still_models(self, runs: None, gradscope: Command) -> None:
        assert "unknown key `sed`" in gradscope("diff", "--", "sed=1")[2]
        assert "nothing to compare" in gradscope("diff", "--set", "seed=1")[2]


@pytest.mark.parametrize("command", ["show", "why", "live", "export"])
@pytest.mark.parametrize("name", ["one", "new", "new.db", "ranks", "runs/two"])
def test_a_run_by_its_name(command: str, name: str, gradscope: Command) -> None:
    """As `run -o one` gives it: the suffix, and the folder of runs, may be left out."""
    paths = {
        "one": Path("one.db"),
        "ranks": FOLDER / "ranks" / "rank-0.db",
        "runs/two": Path("runs/two.db"),
    }
    FOLDER.mkdir()
    path = written(paths.get(name, NEW), replace(ENDED, world_size=2 if name == "ranks" else 1))
    options = ("--to", "csv", "-") if command == "export" else ()
    code, out, err = gradscope(command, name, *options)
    assert (code, err) == (0, "")
    named = path.parent if name == "ranks" else path
    assert out == gradscope(command, named, *options)[1]


def test_a_file_comes_before_a_name(gradscope: Command) -> None:
    written(Path("one"))
    written(Path("one.db"), replace(ENDED, script="other.py"))
    assert gradscope("show", "one")[1].startswith("train.py")
    Path("net.py").write_text("")
    written(Path("demo.db"))
    assert gradscope("why", "demo")[1].startswith("demo · cpu")


def test_what_names_nothing(runs: None, gradscope: Command) -> None:
    assert gradscope("show", "nwe")[2] == (
        "error: no run and no report is named `nwe`\n  = help: did you mean `new`?\n"
    )
    assert "there is no run `missing.db`" in gradscope("show", "missing.db")[2]


def test_the_order_is_that_in_which_they_began(gradscope: Command) -> None:
    for minutes, name in enumerate("bca"):
        began = replace(ENDED, started=ENDED.started + 60 * minutes)
        written(FOLDER / f"{name}.db", began)
    folder = FOLDER / "ranks"
    written(folder / "rank-0.db", replace(ENDED, started=ENDED.started + 90, world_size=2))
    (FOLDER / "notes.txt").write_text("")
    (FOLDER / "empty").mkdir()
    assert [run.stem for run in recorded()] == ["a", "ranks", "c", "b"]
    killed = FOLDER / "killed.db"
    killed.touch()
    os.utime(killed, (ENDED.started + 300,) * 2)
    assert "`gradscope-runs/killed.db` is empty: the run was killed" in gradscope("show")[2]
