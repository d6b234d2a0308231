"""Ends of the process: exit codes, closed streams, Ctrl-C. Each test is its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import processes
import pytest

import gradscope
from gradscope.records import json as record_json
from gradscope.records.modules import ModuleCall
from gradscope.records.report import Report
from gradscope.records.run import RunInfo

HOME = str(Path(gradscope.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": HOME}
COMMAND = [sys.executable, "-m", "gradscope"]

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="streams and signals of POSIX"),
    pytest.mark.slow,
]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """More text than a pipe holds, so that the writer notices that nobody reads."""
    run = RunInfo("demo", "cpu", "float32", "train", seed=0, steps=1, loss="sum")
    long = "a_layer_with_a_long_name_in_a_network_of_many_layers"
    calls = tuple(ModuleCall(f"{long}_{i}", "Linear", call=0, order=i) for i in range(1200))
    path = tmp_path / "report.json"
    path.write_text(record_json.dumps(Report("ok", run, calls=calls)), encoding="utf-8")
    return path


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = " ".join(f"'{word}'" for word in COMMAND)
    return subprocess.run(
        ["bash", "-c", line.replace("gradscope", command)],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kilobytes", "words"),
    [
        *((size, "inspect demo") for size in (40_000, 200_000, 1_000_000, 2_000_000, 3_000_000)),
        *((size, "check demo -f json") for size in (200_000, 2_000_000)),
        *((size, "doctor") for size in (40_000, 1_000_000)),
    ],
)
def test_too_little_address_space(kilobytes: int, words: str, tmp_path: Path) -> None:
    """If torch does not fit into memory, there is one message, whatever is full."""
    done = shell(f"ulimit -v {kilobytes}; gradscope {words}", tmp_path)
    if done.returncode == 0:  # a small build of torch
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "memory" in done.stderr or "of address space" in done.stderr


@pytest.mark.parametrize("what", ["show report.json", "show report.json -f json", "--help"])
def test_a_closed_pipe_ends_quietly_with_0(what: str, report: Path) -> None:
    done = shell(f"gradscope {what} | true; echo ${{PIPESTATUS[0]}}", report.parent)
    assert done.stdout == "0\n"
    assert not done.stderr


def test_a_closed_pipe_ends_a_check_quietly(report: Path) -> None:
    """With a finding; JSON and SARIF are written in the same place, and `show` has the terminal."""
    (report.parent / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 2)\n"
        "    def forward(self, x):\n"
        "        return super().forward(x).sigmoid().log()\n"
    )
    line = "gradscope check ./net.py:Net input.shape=[2,4] -f github | true"
    done = shell(f"{line}; echo ${{PIPESTATUS[0]}}", report.parent)
    assert done.stdout == "0\n"
    assert not done.stderr


def test_a_closed_pipe_does_not_hide_a_mistake(report: Path) -> None:
    done = shell("gradscope show nothing.json 2>&1 | true; echo ${PIPESTATUS[0]}", report.parent)
    assert done.stdout == "2\n"
    assert not done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_a_full_disk_is_named(report: Path) -> None:
    done = shell("gradscope show report.json > /dev/full", report.parent)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write to standard output: No space left")
    assert "= help: write to a file elsewhere: `-o FILE`" in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gradscope show report.json >&-", "error: standard output is closed"),
        ("gradscope inspect demo >&-", "error: standard output is closed"),
        ("gradscope schema >&-", "error: standard output is closed"),
        ("gradscope show - <&-", "error: standard input is closed"),
    ],
)
def test_a_closed_stream_is_no_bug(line: str, message: str, report: Path) -> None:
    done = shell(line, report.parent)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert "  = help: " in done.stderr


def test_help_and_version_survive_a_closed_standard_output(report: Path) -> None:
    for what in ("--help", "--version"):
        done = shell(f"gradscope {what} >&-", report.parent)
        assert (done.returncode, done.stderr) == (0, "")


INTERRUPTED = """
import sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
sys.argv = ["gradscope", *{arguments!r}]
from gradscope.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [("typer", ""), ("gradscope.api", "interrupted\n"), ("torch", "interrupted\n")],
)
def test_ctrl_c_while_importing_is_quiet(module: str, said: str, tmp_path: Path) -> None:
    code = INTERRUPTED.format(module=module, arguments=["inspect", "demo"])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


SIGNALS = {
    signal.SIGINT: (130, "interrupted"),
    signal.SIGTERM: (143, "ended by SIGTERM"),
    signal.SIGHUP: (129, "ended by SIGHUP"),
}


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_in_forward_shows_what_was_recorded(
    number: signal.Signals, tmp_path: Path
) -> None:
    code, said = SIGNALS[number]
    (tmp_path / "slow.py").write_text(
        "import sys, time, torch\n"
        "class Wait(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        print('waiting', file=sys.stderr, flush=True)\n"
        "        time.sleep(3600)\n"
        "class Net(torch.nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(torch.nn.Linear(4, 4), Wait())\n"
    )
    words = ["inspect", "./slow.py:Net", "input.shape=[2, 4]", "--columns", "norm"]
    done = processes.interrupted(words, number, "waiting", cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == code
    assert "interrupted, in the forward of 1" in done.stdout
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "1 ¹" in done.stdout and "did-not-return" in done.stdout


def test_what_a_model_prints_does_not_reach_the_report(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os, sys, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 2)\n"
        "        print('built')\n"
        "    def forward(self, x):\n"
        "        print('kept', file=sys.__stdout__)\n"
        "        os.write(1, b'raw')\n"
        "        os.system('echo child')\n"
        "        return super().forward(x)\n"
    )
    words = ["inspect", "./loud.py:Net", "input.shape=[2, 4]", "-f", "json"]
    done = processes.gradscope(words, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 0
    assert record_json.loads(done.stdout, Report).status == "ok"
    for word in ("built", "kept", "raw", "child"):
        assert word in done.stderr
