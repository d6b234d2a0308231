"""``gradscope show`` of saved comparisons and answers: as ``diff`` and ``why`` show them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradscope import cli, plugins
from gradscope.records import json as record_json
from gradscope.records.answers import Answer, WhyReport
from gradscope.records.diff import CallDiff, DiffReport, TensorDiff
from gradscope.records.graph import AutogradGraph
from gradscope.records.run import RunInfo

Command = Callable[..., tuple[int, str, str]]
RUN = RunInfo("net", "cpu", "float32", "train", seed=0, steps=1, loss="sum")
GAP = TensorDiff(error=0.5, cosine=0.9, largest=1.0)
CALLS = tuple(CallDiff(name, "Linear", 0, "", (2, 2), GAP, GAP) for name in ("stem", "head"))
RECORDS = {
    "diff.json": DiffReport("ok", RUN, RUN, calls=CALLS),
    "why.json": WhyReport(RUN, checked=1, answers=(Answer("stem", "parameter", "zero", "why"),)),
}


@pytest.fixture
def gradscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    monkeypatch.chdir(tmp_path)
    for name, record in RECORDS.items():
        Path(name).write_text(record_json.dumps(record), encoding="utf-8")

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gradscope", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    return command


@pytest.mark.parametrize("file", RECORDS)
def test_it_is_shown_in_every_format(file: str, gradscope: Command) -> None:
    room = f"gradscope.reporters.{'answers' if file == 'why.json' else 'diff'}"
    for format in plugins.names(room):
        code, out, err = gradscope("show", file, "-f", format)
        assert (code, err) == (0, "")
        assert out.strip() or format == "github"
    assert gradscope("show", file, "-f", "json")[1] == Path(file).read_text(encoding="utf-8")
    assert "stem" in gradscope("show", file)[1]


def test_a_comparison_takes_its_own_options_of_tables(gradscope: Command) -> None:
    assert "head" in gradscope("show", "diff.json")[1]
    assert "head" not in gradscope("show", "diff.json", "--top", "1")[1]
    assert "unknown table" in gradscope("show", "diff.json", "--table", "cals")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["diff.json", "--sort", "norm"], "`--sort` is for a report, and this is a comparison"),
        (["why.json", "--top", "3"], "`--top` is for a report, and this is a set of answers"),
        (["why.json", "--plot", "x.png"], "`--plot` draws reports and runs, not a check, answers"),
        (["why.json", "-f", "csv"], "unknown format `csv`"),
    ],
)
def test_what_it_has_no_use_for(words: list[str], message: str, gradscope: Command) -> None:
    code, out, err = gradscope("show", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_each_file_has_a_command_that_shows_it(gradscope: Command) -> None:
    """No help leads back to the command that refused it."""
    Path("graph.json").write_text(record_json.dumps(AutogradGraph(run=RUN, status="ok")))
    assert "show it with `gradscope graph graph.json`" in gradscope("show", "graph.json")[2]
    help = "show it with `gradscope show diff.json`"
    for words in (["diff", "diff.json", "diff.json"], ["why", "diff.json"], ["graph", "diff.json"]):
        assert help in gradscope(*words)[2]
