"""A script that is ended before its end: after so many steps or seconds."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from processes import Completed, gradscope

from gradscope.runfile.reader import RunFile
from gradscope.training.limit import Limit


class Clock:
    """Tells what it is set to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_limit_a_script_goes_on() -> None:
    limit = Limit()
    assert not any(limit.step_ended(number) for number in range(10_000))
    assert not any(limit.backward_begins(0) for _ in range(10_000))
    assert limit.reached is None


def test_it_ends_with_the_step_of_that_number() -> None:
    limit = Limit(steps=50)
    assert [limit.step_ended(number) for number in (1, 49, 50, 51)] == [False, False, True, True]
    assert limit.reached == "--steps 50"


def test_without_a_step_backwards_count() -> None:
    limit = Limit(steps=2)
    assert [limit.backward_begins(0) for _ in range(21)] == [False] * 20 + [True]
    assert limit.reached == "--steps 2"
    # Before the step of an accumulation of many batches there are as many.
    stepping = Limit(steps=2)
    assert not any(stepping.backward_begins(1) for _ in range(100))


def test_it_ends_at_the_first_moment_after_the_time() -> None:
    clock = Clock()
    limit = Limit(steps=50, seconds=1.5, clock=clock)
    assert not limit.step_ended(1)
    clock.now += 1.4
    assert not limit.backward_begins(1)
    clock.now += 0.1
    assert limit.backward_begins(1)
    assert limit.step_ended(2)
    assert limit.reached == "--seconds 1.5"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to a thread")
def test_a_script_that_comes_to_no_step_is_interrupted() -> None:
    limit = Limit(seconds=0.0)
    with pytest.raises(KeyboardInterrupt), limit.interrupting(grace=0.01):
        threading.Event().wait(60)
    assert limit.reached == "--seconds 0"


def test_one_that_ends_in_time_is_not() -> None:
    limit = Limit(seconds=1000.0)
    with limit.interrupting():
        assert any(isinstance(one, threading.Timer) for one in threading.enumerate())
    assert limit.reached is None
    with Limit(steps=1).interrupting():
        pass


SCRIPT = """
import sys
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
loader = torch.utils.data.DataLoader(torch.randn(256, 4), batch_size=8)
try:
    for epoch in range(10):
        for x in loader:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            print("step")
        scheduler.step()
finally:
    print("end")
    if "fails" in sys.argv:
        raise RuntimeError("it was not meant to end")
"""


def run(folder: Path, *options: str, arguments: tuple[str, ...] = ()) -> Completed:
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    words = ["run", "-o", "run.db", *options, "train.py", *arguments]
    return gradscope(words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("arguments", [(), ("fails",)])
def test_the_end_is_no_failure_of_the_script(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Not of one that fails in what it does at its end, either."""
    done = run(tmp_path, "--steps", "7", arguments=arguments)
    assert (done.returncode, done.stdout.split()) == (0, ["step"] * 6 + ["end"])
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("gradscope: 7 steps (ended by `--steps 7`), 4 sampled")
    with RunFile.open(tmp_path / "run.db") as file:
        assert (file.run.steps, file.run.exit, file.run.cut) == (7, "0", "--steps 7")
        # A schedule in epochs has not come to its first step.
        assert [one.code for one in file.findings] == []


def test_findings_make_the_exit_code_all_the_same(tmp_path: Path) -> None:
    done = run(tmp_path, "--steps", "7", "--fail-on", "info", "--select", "GS505")
    assert done.returncode == 0
    (tmp_path / "run.db").unlink()
    source = SCRIPT.replace("lr=0.1", "lr=0.0")
    (tmp_path / "broken.py").write_text(source, encoding="utf-8")
    words = ["run", "-o", "run.db", "--steps", "7", "--fail-on", "error", "--quiet", "broken.py"]
    done = gradscope(words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_script_that_ends_before_is_not_ended(tmp_path: Path) -> None:
    done = run(tmp_path, "--steps", "1000", "--seconds", "1000")
    assert (done.returncode, done.stdout.split()[-1]) == (0, "end")
    with RunFile.open(tmp_path / "run.db") as file:
        assert (file.run.steps, file.run.cut) == (320, None)


def test_stopped_at_a_finding_is_ended_too(tmp_path: Path) -> None:
    source = SCRIPT.replace("net(x).square()", "(net(x) / 0).square()")
    (tmp_path / "nan.py").write_text(source, encoding="utf-8")
    done = gradscope(["run", "-o", "run.db", "--stop-on", "nan", "nan.py"], cwd=tmp_path)
    assert done.returncode == 1
    with RunFile.open(tmp_path / "run.db") as file:
        assert (file.run.exit, file.run.cut) == ("1", "--stop-on nan")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_what_is_no_time(seconds: str, tmp_path: Path) -> None:
    done = run(tmp_path, "--seconds", seconds)
    assert done.returncode == 2
    assert f"`--seconds {seconds}` is not a time" in done.stderr
