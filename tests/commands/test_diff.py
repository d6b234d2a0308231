"""``gradscope diff`` from end to end: what is A and what is B, formats, exit codes, refusals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands.run_files import written

import gradscope as package
from gradscope import cli, plugins
from gradscope.errors import OptionError
from gradscope.records import json as record_json
from gradscope.records.diff import DiffReport
from gradscope.rules import COMPARISONS

PORT = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8, eps=eps)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.stem(x))))

class Raises(Net):
    def forward(self, x):
        raise RuntimeError("not today")
"""


@pytest.fixture
def gradscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """A command as the process runs it: exit code, standard output, standard error."""

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gradscope", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    return command


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("port.py").write_text(PORT, encoding="utf-8")
    Path("a.yaml").write_text("model: ./port.py:Net\ninput: {shape: [3, 4]}\n", encoding="utf-8")
    Path("b.yaml").write_text(
        "model: {_target_: ./port.py:Net, eps: 1e-3}\ninput: {shape: [3, 4]}\n", encoding="utf-8"
    )
    return tmp_path


def data(out: str) -> DiffReport:
    return record_json.loads(out, DiffReport)


SAME = {
    "two configs": ("a.yaml", "a.yaml"),
    "one, and nothing behind the dashes": ("a.yaml", "--"),
    "the same key for both": ("a.yaml", "b.yaml", "model.eps=0.01"),
    "a key on each side": ("a.yaml", "seed=3", "--", "seed=3"),
    "a set key": ("a.yaml", "--set", "seed=3", "--"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_what_is_the_same_on_both_sides(name, port, gradscope):
    code, out, _ = gradscope("diff", *SAME[name], "-f", "json", "--fail-on", "error")
    assert (code, data(out).status) == (0, "ok")


OTHER = {
    "two configs": ("a.yaml", "b.yaml"),
    "a key behind the dashes": ("a.yaml", "--", "model.eps=0.001"),
    "a key on either side": ("b.yaml", "--", "model.eps=0.00001"),
    "a config behind them": ("a.yaml", "--", "b.yaml"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER)
def test_the_layer_that_differs(name, port, gradscope):
    code, out, _ = gradscope("diff", *OTHER[name], "-f", "json", "--fail-on", "error")
    assert code == 1
    assert [finding.name for finding in data(out).findings] == ["norm", "norm"]
    assert gradscope("diff", *OTHER[name])[0] == 0


def test_options_may_stand_behind_the_dashes(port, gradscope):
    _, out, _ = gradscope("diff", "a.yaml", "--", "dtype=float64", "--top", "1", "-f", "json")
    report = data(out)
    assert (report.a.dtype, report.b.dtype, report.status) == ("float32", "float64", "ok")


@pytest.mark.slow
def test_every_format_has_the_findings(port, gradscope):
    _, out, _ = gradscope("diff", "a.yaml", "b.yaml", "-f", "json", "-o", "diff.json")
    found = data(Path("diff.json").read_text(encoding="utf-8"))
    for format in plugins.names("gradscope.reporters.diff"):
        code, out, err = gradscope("diff", "a.yaml", "b.yaml", "-f", format, "--table", "findings")
        assert (code, err) == (0, "")
        assert "GD101" in out
        assert "GD102" in out
    rows = list(csv.DictReader(io.StringIO(gradscope("diff", "a.yaml", "b.yaml", "-f", "csv")[1])))
    assert [row["name"] for row in rows] == [row.name for row in found.calls]
    assert float(rows[1]["activation_error"]) == found.calls[1].activation.error
    results = json.loads(gradscope("diff", "a.yaml", "b.yaml", "-f", "sarif")[1])
    assert [one["ruleId"] for one in results["runs"][0]["results"]] == ["GD101", "GD102"]
    rules = results["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [rule.code for rule in COMPARISONS]
    assert all(rule["help"]["text"] for rule in rules)


@pytest.mark.slow
def test_a_reference_is_in_every_format(port, gradscope):
    words = ("diff", "a.yaml", "--", "dtype=bfloat16", "--reference", "float64")
    report = data(gradscope(*words, "-f", "json")[1])
    assert report.reference == "float64"
    worst = max(row.activation.reference_b for row in report.calls)
    for format in ("terminal", "markdown", "html"):
        out = gradscope(*words, "-f", format)[1]
        assert f"{worst:.1e}" in out
        assert "A is closer in" in out


REFUSED = {
    "one model": (("a.yaml",), "nothing to compare: give two models"),
    "three models": (("a.yaml", "b.yaml", "demo"), "two MODELs, please"),
    "dashes twice": (("a.yaml", "--", "seed=1", "--", "seed=2"), "given twice"),
    "no such key": (("a.yaml", "--", "sed=1"), "unknown key `sed`"),
    "no such file": (("a.yaml", "c.yaml"), "c.yaml"),
    "no such severity": (("a.yaml", "--", "--fail-on", "eror"), "unknown severity"),
    "no such reference": (("a.yaml", "--", "--reference", "float16"), "unknown reference"),
    "no such table": (("a.yaml", "--", "--table", "cals"), "unknown table"),
    "no such format": (("a.yaml", "--", "-f", "svg"), "unknown format"),
    "a name of neither": (("a.yaml", "b.yaml", "--match", "x=y"), "fits no parameter"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared(name, port, gradscope):
    words, message = REFUSED[name]
    code, out, err = gradscope("diff", *words)
    assert (code, out) == (2, "")
    assert message in err


#: What was saved of both models, by the name of the file.
_saved: dict[str, str] = {}


@pytest.fixture
def reports(port: Path, gradscope) -> None:
    """Of both models, on one batch: with sketches, and without."""
    if not _saved:
        for name in ("a", "b"):
            gradscope("inspect", f"{name}.yaml", "--sketch", "-o", f"{name}.json")
            gradscope("inspect", f"{name}.yaml", "-o", f"plain_{name}.json")
        _saved.update({path.name: path.read_text(encoding="utf-8") for path in port.glob("*.json")})
    for name, text in _saved.items():
        Path(name).write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("plain", ["", "plain_"])
def test_saved_reports_are_compared(plain, reports, gradscope):
    files = f"{plain}a.json", f"{plain}b.json"
    code, out, err = gradscope("diff", *files, "-f", "json", "--fail-on", "error")
    assert (code, err) == (1, "")
    report = data(out)
    assert [(f.code, f.name) for f in report.findings] == [("GD101", "norm")]
    assert report.measured == ("statistics" if plain else "sketches")
    assert (report.a.file, report.b.file) == files
    assert gradscope("diff", files[0], files[0], "--fail-on", "error")[0] == 0


@pytest.mark.slow
def test_every_format_has_the_findings_of_saved_reports(reports, gradscope):
    for format in plugins.names("gradscope.reporters.diff"):
        words = ("diff", "a.json", "b.json", "-f", format, "--table", "findings")
        code, out, err = gradscope(*words)
        assert (code, err) == (0, "")
        assert "GD101" in out


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_of_saved_reports_is_wider_than_asked(width, reports, gradscope):
    for plain in ("", "plain_"):
        _, out, _ = gradscope("diff", f"{plain}a.json", f"{plain}b.json", "--width", width)
        assert max(map(len, out.splitlines())) <= width


@pytest.mark.slow
def test_the_first_departure_is_all_that_is_claimed(reports, gradscope):
    """Gradients follow what forward does otherwise: nothing is reported of backward alone."""
    out = gradscope("diff", "a.json", "b.json")[1]
    assert "forward: diverges first in `norm`" in out
    assert "backward: diverges because forward does" in out


DAMAGED: dict[str, tuple[Callable[[str], str], str]] = {
    "half of it": (lambda text: text[: len(text) // 2], "ends in the middle"),
    "nothing": (lambda text: "", "is empty"),
    "another version": (lambda text: text.replace("report/2", "report/9"), "another version"),
    "no report": (lambda text: "{}", "not a gradscope report"),
    "a check": (lambda text: text.replace("gradscope.report", "gradscope.check"), "but a check"),
    "a word for a number": (lambda text: text.replace('"norm": ', '"norm": "x', 1), "json"),
    "a sketch cut short": (lambda text: text.replace('"numbers": "', '"numbers": "A'), "damaged"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_is_no_report(name, reports, gradscope):
    damage, message = DAMAGED[name]
    text = Path("b.json").read_text(encoding="utf-8")
    Path("damaged.json").write_text(damage(text), encoding="utf-8")
    code, out, err = gradscope("diff", "a.json", "damaged.json")
    assert (code, out) == (2, "")
    assert message in err
    assert "damaged.json" in err


NOT_WITH_REPORTS = {
    "a model": (("demo",), "which `demo` is not"),
    "a key": (("b.json", "seed=1"), "which `seed=1` is not"),
    "one alone": ((), "two saved reports, please"),
    "three": (("b.json", "b.json"), "two saved reports, please"),
    "a device": (("b.json", "--device", "cpu"), "cannot run again"),
    "a reference": (("b.json", "--reference", "float64"), "cannot run again"),
    "a name of neither": (("b.json", "--match", "x=y"), "fits no parameter"),
    "no such file": (("c.json",), "there is no file `c.json`"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_WITH_REPORTS)
def test_what_a_saved_report_cannot_be_compared_with(name, reports, gradscope):
    words, message = NOT_WITH_REPORTS[name]
    code, out, err = gradscope("diff", "a.json", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_saved_reports_are_compared_from_python_too(reports, gradscope):
    report = package.diff("a.json", Path("b.json"))
    assert report == data(gradscope("diff", "a.json", "b.json", "-f", "json")[1])
    with pytest.raises(OptionError, match="cannot run again, which `seed` needs"):
        package.diff("a.json", "b.json", seed=1)
    with pytest.raises(OptionError, match="which `demo` is not"):
        package.diff("a.json", "demo")


def test_runs_are_compared(tmp_path, monkeypatch, gradscope):
    monkeypatch.chdir(tmp_path)
    for name in ("a.db", "b.db"):
        written(Path(name))
    code, out, err = gradscope("diff", "a.db", "b.db", "--fail-on", "error")
    assert (code, err) == (0, "")
    assert "40 steps are recorded in both runs and compared, 6 of them by layer" in out
    code, _, err = gradscope("diff", "a.db", "a.json")
    assert code == 2
    assert "is a saved report, which `a.db` is not" in err
    code, _, err = gradscope("diff", "a.db", "c.db")
    assert code == 2
    assert "there is no run `c.db`" in err


def test_a_model_that_raises(port, gradscope):
    code, out, err = gradscope("diff", "a.yaml", "--", "model=./port.py:Raises")
    assert (code, out) == (3, "")
    assert "not today" in err
    assert "of the model" in err


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_asked(width, port, gradscope):
    _, out, _ = gradscope("diff", "a.yaml", "b.yaml", "--width", width)
    assert max(map(len, out.splitlines())) <= width
