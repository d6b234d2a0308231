"""``--plot``: a picture beside what the command writes anyway, refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commands.run_files import written
from PIL import Image
from reporters import report_samples

from gradscope import cli
from gradscope.records import json as record_json
from gradscope.records.report import CheckReport

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gradscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """A command in a folder with a run, a report and a check: exit code, output, errors."""
    written(tmp_path / "run.db")
    for name, record in (("report", report_samples.small()), ("check", CheckReport())):
        (tmp_path / f"{name}.json").write_text(record_json.dumps(record), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gradscope", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    return command


def width(path: Path) -> int:
    with Image.open(path) as image:
        return image.width


@pytest.mark.slow
@pytest.mark.parametrize("words", [("inspect",), ("show", "report.json"), ("show", "run.db")])
def test_the_picture_comes_beside_the_text(words, gradscope, tmp_path):
    code, out, err = gradscope(*words, "--plot", "flow.png")
    assert (code, err) == (0, "")
    assert "parameters" in out
    assert width(tmp_path / "flow.png") == 1400


@pytest.mark.slow
def test_a_histogram_that_was_asked_for_is_drawn_too(gradscope, tmp_path):
    assert gradscope("inspect", "--plot", "one.svg")[0] == 0
    assert gradscope("inspect", "--histogram", "fc1", "--plot", "two.svg")[0] == 0
    one, two = ((tmp_path / f"{name}.svg").stat().st_size for name in ("one", "two"))
    assert two > one


@pytest.mark.slow
def test_a_run_of_one_table_has_the_whole_picture(gradscope, tmp_path):
    gradscope("show", "run.db", "--plot", "all.png")
    gradscope("show", "run.db", "--table", "steps", "-f", "csv", "--plot", "steps.png")
    assert (tmp_path / "all.png").read_bytes() == (tmp_path / "steps.png").read_bytes()


REFUSED = {
    "another suffix": (("inspect", "--plot", "flow.jpg"), "`flow.jpg` is not a picture file"),
    "no suffix": (("show", "report.json", "--plot", "flow"), "use one of `.png`"),
    "the output's own file": (
        ("inspect", "-o", "a.svg", "-f", "json", "--plot", "a.svg"),
        "`a.svg` is given to `-o` and to `--plot`",
    ),
    "a folder that is not there": (("inspect", "--plot", "no/flow.png"), "no such folder"),
    "a file that exists": (("show", "report.json", "--plot", "there.png"), "exists"),
    "a step": (("show", "run.db", "--step", "1", "--plot", "a.png"), "not `--step`"),
    "a check": (("show", "check.json", "--plot", "a.png"), "not a check"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(words, message, gradscope, tmp_path):
    (tmp_path / "there.png").write_bytes(b"kept")
    code, out, err = gradscope(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert [path.name for path in tmp_path.glob("*.png")] == ["there.png"]


def test_a_file_that_exists_is_replaced_with_force(gradscope, tmp_path):
    (tmp_path / "there.png").write_bytes(b"old")
    assert gradscope("show", "report.json", "--plot", "there.png", "--force")[0] == 0
    assert width(tmp_path / "there.png") == 1400


def test_nothing_to_draw_is_said(gradscope, tmp_path):
    report = replace(report_samples.small(), calls=(), parameters=())
    (tmp_path / "empty.json").write_text(record_json.dumps(report), encoding="utf-8")
    code, _, err = gradscope("show", "empty.json", "--plot", "empty.png")
    assert (code, (tmp_path / "empty.png").exists()) == (0, False)
    assert err == "note: nothing to draw: `empty.png` was not written\n"
