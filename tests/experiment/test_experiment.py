"""``gradscope experiment`` end to end: arms in processes of their own, verdicts, bad scripts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

import gradscope
from gradscope import plugins
from gradscope.experiment import arm_runs
from gradscope.experiment.arms import BY_NAME
from gradscope.experiment.interventions.other_seed import SHIFT
from gradscope.records.experiment import CAUSES, ArmResult, ExperimentReport
from gradscope.reporters.views import TextView
from gradscope.training.limit import Trial, Tried

as_json = plugins.load("gradscope.reporters.experiment", "json")
html = plugins.load("gradscope.reporters.experiment", "html")
markdown = plugins.load("gradscope.reporters.experiment", "markdown")
terminal = plugins.load("gradscope.reporters.experiment", "terminal")

HOME = str(Path(gradscope.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": HOME, "OMP_NUM_THREADS": "1"}
PROGRAMS = Path(__file__).parent / "programs"
TWO = ["as-it-is", "other-seed"]

SCRIPT = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 4)
y = (x[:, :1] - x[:, 1:2]).tanh()
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(60):
    i = torch.randint(0, 256, (16,))
    loss = nn.functional.mse_loss(model(x[i]), y[i])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


@contextlib.contextmanager
def from_the_server(trial: Trial) -> Iterator[Tried]:
    """``tried``, whose process is a copy of one that has imported torch."""
    with tempfile.TemporaryDirectory() as folder:
        found = Tried(Path(folder) / "run.db")
        assert trial.folder is not None
        done = processes.gradscope(
            trial.command(found.run)[3:],
            cwd=trial.folder,
            env={**ENVIRONMENT, **trial.environment},
        )
        found.code, found.errors = done.returncode, done.stderr
        yield found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_runs, "tried", from_the_server)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def experiment(folder: Path, script: str, *arms: str, **options: int) -> ExperimentReport:
    (folder / "train.py").write_text(script, encoding="utf-8")
    return gradscope.experiment("train.py", arms=arms or TWO, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_as_it_is_is_the_plain_script_to_the_last_bit(quick: None, folder: Path) -> None:
    report = experiment(folder, SCRIPT)
    plain = processes.python(["train.py"], cwd=folder, env=ENVIRONMENT)
    printed = [float.fromhex(line) for line in plain.stdout.splitlines()]
    one, other = report.arms
    assert list(one.losses) == printed
    assert list(other.losses) != printed
    assert sorted(path.name for path in folder.iterdir()) == ["train.py"]


def test_another_seed_is_set_before_torch_is_imported(tmp_path: Path) -> None:
    """Settings such as ``OMP_NUM_THREADS`` in the script must come first."""
    program = f"""
import random, sys
from pathlib import Path
from gradscope.experiment.arm_process import ArmProcess
from gradscope.experiment.arms import OTHER_SEED
folder = Path({str(tmp_path)!r})
ArmProcess(OTHER_SEED, folder / "notes.json", folder, folder).begin()
random.seed(0)
print(random.getrandbits(30), "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{random.Random(SHIFT).getrandbits(30)} False\n"


def program(cause: str, kind: str) -> str:
    lines = (PROGRAMS / f"{cause.replace('-', '_')}.py").read_text(encoding="utf-8").splitlines()
    other = "mended" if kind == "broken" else "broken"
    own = (line for line in lines if not line.endswith(f"# {other}"))
    return "\n".join(line.removesuffix(f"  # {kind}") for line in own)


#: Each broken script, and the mended ones. The two without one are the script of
#: ``input-unused-mended`` with fewer parts, and have fewer arms.
CASES = [(cause, "broken") for cause in CAUSES if cause != "precision"]
CASES += [(one, "mended") for one in ("input-unused", "targets-unrelated", "regularisation")]


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "kind"), CASES)
def test_the_cause_of_a_script_that_does_not_learn(
    cause: str, kind: str, quick: None, folder: Path
) -> None:
    report = experiment(folder, program(cause, kind), *BY_NAME)
    assert report.cause == (cause if kind == "broken" else None), str(report)


@pytest.mark.slow
def test_a_record_in_every_format(quick: None, folder: Path) -> None:
    report = experiment(folder, SCRIPT, "one-batch", "no-clipping", steps=60)
    view = TextView()
    text = terminal.render(report, view)
    assert "no cause: none of these within 60 steps" in text
    assert "left-out: clipping changed no gradient" in text
    data = json.loads(as_json.render(report, view))
    assert data["schema"] == "gradscope.experiment/1"
    assert {"name", "intervention", "steps", "losses", "verdict"} <= set(data["arms"][0])
    assert data["cause"] is None
    assert "one-batch" in markdown.render(report, view)
    assert "<svg" in html.render(report, view)
    assert repr(report) == "<gradscope.ExperimentReport of train.py: no cause>"
    assert [chart.title for chart in report.plot().charts] == ["batch and input"]


def test_a_chart_for_each_kind_of_arm() -> None:
    names = ("as-it-is", "one-batch", "learning-rate-x10", "targets-later", "no-dropout")
    arms = tuple(ArmResult(name, "", steps=2, losses=(2.0, 1.0)) for name in names)
    charts = ExperimentReport("train.py", arms=arms).plot().charts
    titles = ["batch and input", "learning rate", "targets of neighbours", "without a part"]
    assert [chart.title for chart in charts] == titles


def test_a_verdict_that_is_undetermined_says_so_once() -> None:
    report = ExperimentReport("train.py", message="undetermined: 3 steps with a loss")
    text = terminal.render(report, TextView())
    assert "undetermined: 3 steps with a loss" in text
    assert "no cause" not in text
    assert "**undetermined:** 3 steps" in markdown.render(report, TextView())


BAD = {
    "ends before the first step": ("print('nothing')", "no optimizer stepped"),
    "raises": (SCRIPT.replace("print(loss", "print(los"), "NameError: name 'los' is not defined"),
    "needs a terminal": ("input('ready? ')\n" + SCRIPT, "it reads standard input"),
    "writes outside": (
        "open('PROJECT/log.txt', 'w')\n" + SCRIPT,
        "writes outside of the scratch copy",
    ),
    "saves outside": (
        SCRIPT + "torch.save(model, 'PROJECT/model.pt')\n",
        "writes outside of the scratch copy",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_a_script_that_cannot_be_compared_says_why(case: str, quick: None, folder: Path) -> None:
    script, words = BAD[case]
    report = experiment(folder, script.replace("PROJECT", str(folder)))
    assert report.status == "failed"
    assert words in report.message
    assert (report.advice is None) == (case == "ends before the first step")
    assert report.advice is None or report.advice in terminal.render(report, TextView())
    assert [path.name for path in folder.iterdir()] == ["train.py"]


@pytest.mark.parametrize(("overdue", "words"), [(True, "`--seconds` allows more"), (False, "no")])
def test_an_arm_whose_time_was_too_short_for_a_step_says_so(overdue: bool, words: str) -> None:
    ended = Tried(Path("run.db"), code=0, overdue=overdue)
    fault = arm_runs._fault(BY_NAME["as-it-is"], ended, None, {})
    assert fault is not None
    assert fault.startswith("no step with a loss")
    assert words in fault
    assert ("--seconds" in fault) == overdue


@pytest.mark.slow
def test_weights_that_the_script_moves_itself(quick: None, folder: Path) -> None:
    """No arm may seem to have run that cannot change anything."""
    itself = SCRIPT.replace("optimizer = torch.optim.Adam(model.parameters(), lr=0.02)\n", "")
    itself = itself.replace("optimizer.zero_grad()", "model.zero_grad()").replace(
        "optimizer.step()", "[p.data.sub_(0.02 * p.grad) for p in model.parameters()]"
    )
    assert "optimizer" not in itself
    report = experiment(folder, itself)
    for one in report.arms:
        if one.state == "ran":
            assert one.name in ("as-it-is", "other-seed")
        elif one.name.startswith(("learning-rate", "one-batch", "no-input", "mismatched")):
            assert one.verdict == "no optimizer makes the steps"
    assert report.cause is None


@pytest.mark.slow
def test_an_arm_that_fails_does_not_end_the_others(quick: None, folder: Path) -> None:
    picky = SCRIPT.replace("    loss.backward()", "    assert loss < 50\n    loss.backward()")
    picky = picky.replace("lr=0.02", "lr=0.02, weight_decay=0.01")
    report = experiment(folder, picky, "learning-rate-x100", "no-weight-decay")
    assert [one.name for one in report.arms][2:] == ["learning-rate-x100", "no-weight-decay"]
    states = {one.name: one.state for one in report.arms}
    assert states.pop("learning-rate-x100") == "failed"
    assert set(states.values()) == {"ran"}


@pytest.mark.slow
def test_what_a_script_writes_is_gone(quick: None, folder: Path) -> None:
    report = experiment(folder, SCRIPT + "torch.save(model.state_dict(), 'best.pt')\n", steps=100)
    assert {one.state for one in report.arms} == {"ran"}
    assert not (folder / "best.pt").exists()


@pytest.mark.slow
def test_two_losses_are_said_and_not_judged(quick: None, folder: Path) -> None:
    script = """
import torch
from torch import nn

one, two = nn.Linear(2, 1), nn.Linear(2, 1)
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, two)]
for step in range(40):
    for net, optimizer in zip((one, two), optimizers):
        optimizer.zero_grad()
        net(torch.ones(4, 2)).square().mean().backward()
        optimizer.step()
"""
    report = experiment(folder, script, "one-batch")
    assert report.cause is None
    assert "have a loss each" in report.message
    assert [one.state for one in report.arms if one.name == "one-batch"] == ["left-out"]
    rows = [one for one in report.arms if one.name == "as-it-is"]
    assert [one.optimizer is None for one in rows] == [False, False]
    assert all(one.verdict.startswith("the loss falls from ") for one in rows)
    assert "2 arms with a loss" in terminal.render(report, TextView())


@pytest.mark.slow
def test_the_command_and_an_interrupt(folder: Path) -> None:
    """In fresh interpreters: an arm is ended by Ctrl-C, and leaves nothing behind."""
    (folder / "train.py").write_text(SCRIPT + "import time\ntime.sleep(600)\n", encoding="utf-8")
    temporary = folder.parent / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "gradscope", "experiment", "--steps", "1000", "train.py"],
        cwd=folder,
        env={**ENVIRONMENT, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(temporary.glob("gradscope-*/run.db")) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "up to 16 arms of 1,000 steps" in err
    assert "interrupted" in out
    assert not list(temporary.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arms", "one-bach", "train.py"], "there is no arm `one-bach`"),
        (["--arms", "", "train.py"], "there is no arm ``"),
        (["--seconds", "0", "train.py"], "`--seconds 0` is not a time"),
        (["missing.py"], "there is no file `missing.py`"),
        (["--plot", "losses.txt", "train.py"], "is not a picture file"),
        (["python", "-O", "train.py"], "without options of the interpreter"),
    ],
    ids=["arm", "empty", "seconds", "script", "plot", "interpreter"],
)
def test_wrong_options_are_refused_before_anything_runs(
    words: list[str], message: str, folder: Path
) -> None:
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    done = processes.gradscope(["experiment", *words], cwd=folder, env=ENVIRONMENT)
    assert done.returncode == 2
    assert message in done.stderr
    assert not done.stdout
