"""``gradscope why SCRIPT.py``: the script runs for some steps, the verdict is all that is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest

import gradscope
from gradscope.cli import main
from gradscope.commands._trials import ScriptOptions, TrialResult, is_script
from gradscope.errors import OptionError
from gradscope.records import json as record_json
from gradscope.records.answers import WhyReport
from gradscope.runfile.reader import RunFile
from gradscope.training.launch import Script
from gradscope.training.limit import Trial, Tried

HOME = str(Path(gradscope.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": HOME, "OMP_NUM_THREADS": "1"}
ENVIRONMENT.pop("COLUMNS", None)  # a pipe has no width
SCRIPT = """
import argparse
import os
import sys
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.out(self.fc(x).relu())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--end", default="")
    args = parser.parse_args()
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.rate)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=args.workers)
    print(sys.stdin.readline().strip() or "nothing", "is given")
    for epoch in range(args.epochs):
        for (x,) in loader:
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", epoch)
        print("a warning", file=sys.stderr)
    if args.end == "raise":
        raise ValueError("mine")
    if args.end == "os":
        os._exit(0)
    if args.end == "kill":
        os.kill(os.getpid(), 9)
    sys.exit(int(args.end or 0))


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def why(folder: Path, *words: str) -> processes.Completed:
    return processes.gradscope(["why", *words], cwd=folder, env=ENVIRONMENT)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


# ------------------------------------------------------------------------- the verdict


def test_a_script_that_learns(folder: Path) -> None:
    """It ends after fifty steps, says so, and leaves nothing."""
    done = why(folder, "train.py")
    steps, found, more, last = done.stdout.splitlines()
    assert done.returncode == 0
    assert steps.startswith("train.py: 50 steps (ended by `--steps 50`), 18 sampled; cost ")
    assert found.startswith("No problem found; ")
    assert "(--every" not in found
    assert more.startswith("If the loss does not fall: `gradscope experiment train.py` tries ")
    assert last == (
        "not kept: `-o run.db` keeps this run, `gradscope run train.py` records a full one"
    )
    assert done.stderr == (
        "note: `train.py` trains, so it runs as a script. To ask about a model in it: "
        "`gradscope why ./train.py:Net`\n"
    )
    assert left(folder) == ["train.py"]


@pytest.mark.slow
def test_one_that_does_not(folder: Path) -> None:
    words = ("--fail-on", "error", "--", "--rate", "0", "--workers", "2")
    done = why(folder, "train.py", "--steps", "20", *words)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert len(lines) <= 6
    assert lines[0].startswith("train.py --rate 0 --workers 2: 20 steps (ended by `--steps 20`)")
    assert lines[1].startswith("error[GS806] optimizer: the learning rate of `optimizer` is 0 in")
    assert re.fullmatch(r"  at train\.py:\d+", lines[2])
    assert lines[3].startswith("  help: ")
    assert lines[4] == "1 finding follows from it: GS104"
    assert left(folder) == ["train.py"]


@pytest.mark.slow
def test_as_json_it_is_what_why_says_of_a_run(folder: Path) -> None:
    done = why(folder, "train.py", "-f", "json", "--steps", "20", "--", "--rate", "0")
    report = record_json.loads(done.stdout, WhyReport)
    assert (done.returncode, report.status, report.error) == (0, "findings", None)
    cause, symptom = report.answers
    assert (cause.code, cause.name, cause.explained_by) == ("GS806", "optimizer", None)
    assert (symptom.code, symptom.explained_by.code) == ("GS104", "GS806")
    assert json.loads(done.stdout)["schema"] == "gradscope.why/2"


@pytest.mark.slow
def test_of_one_layer(folder: Path) -> None:
    done = why(folder, "train.py", "fc.weight", "--steps", "20", "--every", "1")
    assert done.returncode == 0
    assert "fc.weight: " in done.stdout
    assert "out.weight" not in done.stdout
    assert "in all 20 steps" in done.stdout
    done = why(folder, "train.py", "gone.weight", "--steps", "5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`gone.weight` matches no layer" in done.stderr


@pytest.mark.slow
def test_the_run_is_kept_where_that_is_asked_for(folder: Path) -> None:
    done = why(folder, "train.py", "-o", "kept.db", "--steps", "20")
    assert done.stdout.splitlines()[-1] == "recorded in kept.db: `gradscope show kept.db`"
    assert left(folder) == ["kept.db", "train.py"]
    with RunFile.open(folder / "kept.db") as run:
        assert (run.run.steps, run.run.cut, run.run.script) == (20, "--steps 20", "train.py")
    before = (folder / "kept.db").read_bytes()
    done = why(folder, "train.py", "-o", "kept.db")
    assert (done.returncode, done.stdout) == (2, "")
    assert (folder / "kept.db").read_bytes() == before
    assert why(folder, "train.py", "-o", "kept.db", "--force", "--steps", "5").returncode == 0
    with RunFile.open(folder / "kept.db") as run:
        assert run.run.steps == 5


@pytest.mark.slow
def test_the_answers_are_written_to_a_file(folder: Path) -> None:
    done = why(folder, "train.py", "-o", "why.md", "--steps", "20", "--", "--rate", "0")
    assert (done.returncode, done.stdout) == (0, "")
    assert "**zero-learning-rate, steps 1–20:** optimizer" in (folder / "why.md").read_text()


# ------------------------------------------------------------------------- ends and streams


@pytest.mark.slow
def test_what_the_script_prints_is_shown_where_it_is_asked_for(folder: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "gradscope", "why", "train.py", "--show-output", "--", "--epochs=2"],
        cwd=folder, env=ENVIRONMENT, input="a word\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown = process.stderr.splitlines()[1:]
    assert sorted(shown) == ["a warning", "a warning", "a word is given", "epoch 0", "epoch 1"]
    assert process.stdout.startswith("train.py --epochs=2: 16 steps, 7 sampled; ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code", "said", "shown"),
    [
        ("os", 0, "", ""),
        ("raise", 3, "the script failed: ValueError: mine", "ValueError: mine"),
        ("7", 3, "the script failed: exit code 7", "a warning"),
        ("kill", 3, "the script failed: SIGKILL", "a warning"),
    ],
)
def test_how_the_script_ends(end: str, code: int, said: str, shown: str, folder: Path) -> None:
    done = why(folder, "train.py", "--", "--epochs", "2", "--end", end)
    assert done.returncode == code
    assert (said in done.stdout) and (shown in done.stderr)
    assert ("Traceback" in done.stderr) == (end == "raise")
    assert re.match(r"train\.py .*: \d+ steps?, \d+ sampled", done.stdout)
    assert "epoch 0" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_script_that_refuses_its_arguments_says_why(folder: Path) -> None:
    done = why(folder, "train.py", "-f", "json", "--", "--epoch", "x")
    assert done.returncode == 3
    assert "argument --epochs: invalid int value: 'x'" in done.stderr
    report = record_json.loads(done.stdout, WhyReport)
    assert report.status == "failed"
    assert report.error is not None
    assert (report.error.phase, report.error.message) == ("script", "exit code 2")


@pytest.mark.slow
def test_one_that_comes_to_no_step_in_its_time(folder: Path) -> None:
    """Its time is up as it begins; torch may take longer to import than its usual grace."""
    (folder / "sitecustomize.py").write_text(
        "from gradscope.training.limit import Limit\n"
        "Limit.interrupting.__wrapped__.__defaults__ = (600.0,)\n"
    )
    (folder / "slow.py").write_text(
        "import torch\ntorch.ones(1, requires_grad=True)\n"
        "loss = torch.ones(1, requires_grad=True).sum()\n"
        "while True:\n    loss.backward(retain_graph=True)\n"
    )
    path = os.pathsep.join([str(folder), ENVIRONMENT.get("PYTHONPATH", "")])
    env = {**ENVIRONMENT, "PYTHONPATH": path, processes.FRESH: "1"}
    words = ["why", "slow.py", "--steps", "1000000", "--seconds", "0.001"]
    done = processes.gradscope(words, cwd=folder, env=env)
    assert done.returncode == 0
    assert "(ended by `--seconds 0.001`)" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no groups of processes")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_says_what_it_knows(number: int, code: int, folder: Path) -> None:
    (folder / "slow.py").write_text(
        "import time\nimport torch\nopen('began', 'w').close()\ntime.sleep(600)\nloss.backward()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "gradscope", "why", "slow.py", "--seconds", "600"],
        cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    while not (folder / "began").exists():
        time.sleep(0.05)
    if number == signal.SIGINT:  # as a terminal gives it, to all
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out.startswith("slow.py: 0 steps, 0 sampled\n")
    assert "Traceback" not in err
    assert left(folder) == ["began", "slow.py", "train.py"]


# ------------------------------------------------------------------------- what is a script


def test_which_files_are_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = "import torch\nclass Net(torch.nn.Module): ...\n"
    sources = {
        "trains.py": "loss.backward()\n",
        "calls.py": "from pkg import main\nmain()\n",
        "both.py": f"{model}Net()(x).backward()\n",
        "broken.py": "def (:\n",
        "net.py": model,
        "helpers.py": "def train(net): net(1).backward()\n",
    }
    for name, source in sources.items():
        Path(name).write_text(source, encoding="utf-8")
    assert {name: is_script(name) for name in sources} == {
        "trains.py": True,
        "calls.py": True,
        "both.py": True,
        "broken.py": True,
        "net.py": False,
        "helpers.py": False,
    }
    assert capsys.readouterr().err.count("`gradscope why ./both.py:Net`") == 1
    assert not is_script("gone.py")
    assert not is_script("demo")
    Path("folder.py").mkdir()
    assert not is_script("folder.py")


def command(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["gradscope", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["why", "gone.py"], "there is no file `gone.py`"),
        (["why", "train.py", "--epochs", "3"], "comes after `--`: `gradscope why train.py -- --"),
        (["why", "train.py", "--lr", "3"], "comes after `--`: `gradscope why train.py -- --lr`"),
        (["why", "train.py", "--timeout", "3"], "for a script use `--seconds`"),
        (["why", "train.py", "--allow", "x.*"], "a script may import anything"),
        (["why", "train.py", "--seconds", "0"], "`--seconds 0` is not a time"),
        (["why", "train.py", "-f", "xml"], "unknown format `xml`"),
        (["why", "train.py", "device=cpu"], "`gradscope why train.py` says why"),
        (["why", "--steps", "3", "demo"], "`--steps` is for a training script"),
        (["why", "--show-output", "demo"], "`--show-output` is for a training script"),
        (["check", "train.py"], "`gradscope why train.py` says why it does not learn"),
        (["inspect", "train.py"], "`gradscope run train.py` records it"),
    ],
)
def test_a_mistake_runs_nothing(
    words: list[str],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    code, err = command(words, capsys, monkeypatch)
    assert code == 2
    assert said in err
    assert left(folder) == ["train.py"]


def test_it_is_no_process_of_several(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, err = command(["why", "train.py"], capsys, monkeypatch)
    assert code == 2
    assert "torchrun … -m gradscope run SCRIPT.py" in err


def test_words_behind_dashes_are_names_where_there_is_no_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["why", "demo", "--", "fc1.weight"], capsys, monkeypatch)[0] == 0


# ------------------------------------------------------------------------- the process


def test_the_interval_gives_enough_samples() -> None:
    script = Script("train.py")
    every = [Trial(script, steps).sample_every for steps in (1, 48, 50, 160, 1000)]
    assert every == [3, 3, 3, 10, 62]
    assert Trial(script, 50, every=7).sample_every == 7


def test_the_command_is_that_of_run() -> None:
    words = Trial(Script("train.py", ("--lr", "1")), 20, 1.5).command(Path("run.db"))
    assert words[1:4] == ["-m", "gradscope", "run"]
    assert words[4:] == [
        *("-o", "run.db", "--every", "3", "--steps", "20", "--seconds", "1.5"),
        *("--no-explain-spikes", "--quiet"),
        *("train.py", "--lr", "1"),
    ]
    words = Trial(Script("pkg.train", ("--lr", "1"), is_module=True)).command(Path("run.db"))
    assert words[-4:] == ["-m", "pkg.train", "--lr", "1"]


def test_the_options_of_a_trial() -> None:
    script = Script("train.py")
    assert ScriptOptions().given is None
    assert ScriptOptions(show_output=True).given == "--show-output"
    assert ScriptOptions().trial(script) == Trial(script, 50, 60.0)
    assert ScriptOptions(steps=3, every=2).trial(script) == Trial(script, 3, 60.0, 2)
    with pytest.raises(OptionError, match="is not a time"):
        ScriptOptions(seconds=float("nan")).trial(script)


def test_how_a_process_ended_in_words(tmp_path: Path) -> None:
    endings = [Tried(tmp_path, code).ending for code in (0, 7, -9, -1000)]
    assert endings == ["exit code 0", "exit code 7", "SIGKILL", "exit code -1000"]


def test_of_a_process_that_left_no_run_there_is_no_result(tmp_path: Path) -> None:
    trial = Trial(Script("train.py"))
    assert TrialResult.of(Tried(tmp_path / "run.db", 1), trial, None) is None
    (tmp_path / "run.db").touch()
    assert TrialResult.of(Tried(tmp_path / "run.db", -9), trial, None) is None
