"""Words of `gradscope run`: a script, a module, either of them behind `python`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from gradscope import cli
from gradscope.commands.run import Restart
from gradscope.errors import OptionError
from gradscope.training.launch import Script
from gradscope.training.script_run import ScriptRun

OTHER = f"python{sys.version_info.major}.{sys.version_info.minor + 1}"
SAME = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('trained')\n")
    return tmp_path


def asked(*words: str) -> ScriptRun | Restart:
    made = get_command(cli.app())(["run", *words], standalone_mode=False)
    assert isinstance(made, ScriptRun | Restart)
    return made


@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["--", "train.py"],
        ["python", "train.py"],
        ["python3", "train.py"],
        [SAME, "train.py"],
        [sys.executable, "train.py"],
        [sys.executable, "--", "train.py"],
        ["--", "python", "train.py"],
    ],
    ids=" ".join,
)
def test_a_script(words: list[str]) -> None:
    for own in ([], ["-u", "--every", "3", "python", "-m", "x"]):
        made = asked("--every", "5", *words, *own)
        assert isinstance(made, ScriptRun)
        assert made.script == Script("train.py", tuple(own))
        assert made.settings.every == 5


@pytest.mark.parametrize(
    ("text", "words", "noted"),
    [
        ("opt = SGD(); steps = range(9)", ["--steps", "60", "--every=2"], "`--steps`, `--every`"),
        ("add_argument('--epochs'); steps = 9", ["--steps", "60", "--epochs", "1"], "`--steps`"),
        ("add_argument('--steps')", ["--steps", "60"], None),
        ("parser = made(); range(parser().steps)", ["--steps", "60"], None),
        ("range(9)", ["--epochs", "1", "--help", "steps"], None),
    ],
)
def test_an_option_after_a_script_without_use_for_it_is_noted(
    text: str, words: list[str], noted: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text(text)
    made = asked("train.py", *words)
    assert isinstance(made, ScriptRun)
    assert made.script.arguments == tuple(words)
    error = capsys.readouterr().err
    assert (f"note: the script gets {noted}: options of `" in error) == bool(noted)
    assert bool(error) == bool(noted)


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "pkg.train"],
        ["--", "-m", "pkg.train"],
        ["python", "-m", "pkg.train"],
        ["python", "-mpkg.train"],
        ["--", "python", "-m", "pkg.train"],
    ],
    ids=" ".join,
)
def test_a_module(words: list[str]) -> None:
    made = asked(*words, "-m", "--lr", "1")
    assert isinstance(made, ScriptRun)
    assert made.script == Script("pkg.train", ("-m", "--lr", "1"), is_module=True)


@pytest.mark.parametrize(
    ("words", "python", "behind"),
    [
        (["python", "-u", "train.py", "-u"], [sys.executable, "-u"], ["train.py", "-u"]),
        (
            ["python", "-W", "error", "-Xdev", "train.py"],
            [sys.executable, "-W", "error", "-Xdev"],
            ["train.py"],
        ),
        (["python3", "-um", "pkg", "a"], [sys.executable, "-u"], ["-m", "pkg", "a"]),
        (
            ["python", "--check-hash-based-pycs", "never", "--", "train.py"],
            [sys.executable, "--check-hash-based-pycs", "never"],
            ["train.py"],
        ),
        (["other/python", "train.py"], ["other/python"], ["train.py"]),
        (["other/python3", "-B", "-mpkg"], ["other/python3", "-B"], ["-m", "pkg"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_pythons_own_options_and_other_interpreters_take_over(
    words: list[str], python: list[str], behind: list[str]
) -> None:
    Path("other").mkdir()
    for name in ("other/python", "other/python3"):
        Path(name).touch(mode=0o755)
    made = asked("--every", "5", "-o", "one", *words)
    options = ("-m", "gradscope", "run", "--every", "5", "-o", "one")
    assert made == Restart((*python, *options, *behind))


def test_a_script_that_is_called_python() -> None:
    Path("python").write_text("print('trained')\n")
    made = asked("python", "train.py")
    assert isinstance(made, ScriptRun)
    assert made.script == Script("python", ("train.py",))


@pytest.mark.parametrize(
    ("words", "message", "help"),
    [
        (["python"], "`python` is not a script", "gradscope run train.py"),
        (["python", "-u"], "`python -u` is not a script", "gradscope run train.py"),
        (["python", "-c", "1"], "`python -c` is not a script", "gradscope run train.py"),
        (["python", "-"], "`python -` is not a script", "gradscope run train.py"),
        (["-m"], "`-m` needs a module", "gradscope run -m pkg.train"),
        (["--", "-m"], "`-m` needs a module", "gradscope run -m pkg.train"),
        (["python", "nosuch.py"], "there is no file `nosuch.py`", "gradscope run -m"),
        ([OTHER, "train.py"], f"there is no interpreter `{OTHER}`", "drop it"),
        (
            ["torchrun", "--nproc-per-node", "2", "train.py"],
            "`torchrun` starts processes",
            "torchrun --nproc-per-node 2 -m gradscope run train.py",
        ),
        (
            ["accelerate", "launch", "train.py"],
            "`accelerate` starts processes",
            "accelerate launch -m gradscope run train.py",
        ),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_names_no_script(
    words: list[str], message: str, help: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OptionError) as caught:
        asked(*words)
    (problem,) = caught.value.problems
    assert problem.message.startswith(message)
    assert help in (problem.help or "")


@pytest.mark.parametrize(
    ("path", "then"),
    [
        ("x.html", "`gradscope show x.db -o x.html`"),
        ("runs/x.JSON", "`gradscope show runs/x.db -o runs/x.JSON`"),
        ("x y.csv", "`gradscope show 'x y.db' -o 'x y.csv'`"),
        ("x.png", "`gradscope show x.db --plot x.png`"),
        ("x.parquet", "`gradscope export x.db --to parquet x.parquet`"),
        ("x.pt", None),
        ("-", None),
    ],
)
def test_a_run_is_no_page_and_no_picture(path: str, then: str | None) -> None:
    """A database of that name would be taken for one."""
    with pytest.raises(OptionError, match="a run is a SQLite database") as caught:
        asked("-o", path, "train.py")
    (problem,) = caught.value.problems
    assert problem.help is not None
    assert problem.help.startswith("`gradscope run -o ")
    assert problem.help.endswith(then or "train.py`")


@pytest.mark.parametrize("path", ["one", "one.db", "lr0.01", "run.v2", "x.sqlite"])
def test_other_names_are_a_runs(path: str) -> None:
    made = asked("-o", path, "train.py")
    assert isinstance(made, ScriptRun)
    assert made.settings.out == Path(path)


@pytest.mark.slow
def test_another_start_runs_the_script_as_python_would(folder: Path) -> None:
    Path("train.py").write_text(
        "import sys\nprint(sys.argv, sys.flags.dont_write_bytecode, sys.stdout.write_through)\n"
    )
    plain = [sys.executable, "-uB", "train.py", "a", "-u"]
    run = [sys.executable, "-m", "gradscope", "run", "-o", "one", "python", *plain[1:]]
    outs = [subprocess.run(words, capture_output=True, text=True) for words in (plain, run)]
    assert outs[0].stdout == "['train.py', 'a', '-u'] 1 True\n"
    assert outs[1].stdout == outs[0].stdout
    assert outs[1].returncode == 0
    assert "gradscope: " in outs[1].stderr


@pytest.mark.parametrize("option", ["--no-nan-detector", "--no-sentinel"])
def test_the_nan_detector_is_switched_off(option: str) -> None:
    """Under its old name too, which no help text shows."""
    made, usual = asked(option, "train.py"), asked("train.py")
    assert isinstance(made, ScriptRun) and isinstance(usual, ScriptRun)
    assert (made.settings.nan_detector, usual.settings.nan_detector) == (False, True)


def test_the_help_names_the_new_option_only(capsys: pytest.CaptureFixture[str]) -> None:
    get_command(cli.app())(["run", "--help"], standalone_mode=False)
    text = capsys.readouterr().out
    assert "--no-nan-detector" in text and "sentinel" not in text
