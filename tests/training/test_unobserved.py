"""Ways in which a training escapes: each is observed, or said with what to do."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
from torch import nn

from gradscope.errors import OptionError
from gradscope.runfile.reader import RunFile
from gradscope.training import unobserved
from gradscope.training.launch import Script
from gradscope.training.unobserved import OtherProcesses

TRAIN = """
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def train():
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
"""
#: Beside `test_import_hook`, with torch itself: another finder in front.
FINDER = """
import sys
from importlib.machinery import PathFinder
class Finder:
    def find_spec(self, name, path, target=None):
        return PathFinder.find_spec(name) if name == "torch" else None
sys.meta_path.insert(0, Finder())
"""


def run(
    folder: Path, script: str, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``gradscope run train.py WORDS`` in an interpreter that has imported nothing."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    environment = _environment()
    return subprocess.run(
        [sys.executable, "-m", "gradscope", "run", "-o", "run.db", "train.py", *words],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def copied(folder: Path, script: str) -> processes.Completed:
    """The same in a copy of a process that has imported torch: the import is not the subject."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    words = ["run", "-o", "run.db", "train.py"]
    return processes.gradscope(words, cwd=folder, env={**_environment(), "OMP_NUM_THREADS": "1"})


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}


@pytest.mark.slow
def test_every_step_is_observed_behind_another_finder(tmp_path):
    done = run(tmp_path, f"{FINDER}{TRAIN}train()\n")
    assert done.stderr.startswith("gradscope: 5 steps"), done.stderr
    with RunFile.open(tmp_path / "run.db") as recorded:
        assert [step.step for step in recorded.steps()] == [1, 2, 3, 4, 5]
        assert not recorded.run.notices


@pytest.mark.slow
def test_a_model_is_sampled_though_the_script_freezes_the_heap(tmp_path):
    frozen = TRAIN.replace("optimizer =", "import gc\ngc.freeze()\noptimizer =", 1)
    done = copied(tmp_path, f"{frozen}train()\n")
    assert re.match(r"gradscope: 5 steps, [1-9] sampled", done.stderr), done.stderr


@pytest.mark.slow
def test_a_training_without_a_module_says_so(tmp_path):
    """Its tensors have steps and metrics, and no layers."""
    plain = TRAIN.replace(
        "net = torch.nn.Linear(4, 1)", "weight = torch.ones(4, 1).requires_grad_()"
    )
    plain = plain.replace("net.parameters()", "[weight]").replace("net(torch.ones(2, 4))", "weight")
    done = copied(tmp_path, f"{plain}train()\n")
    assert "gradscope: no `torch.nn.Module` that trains was found" in done.stderr
    assert "5 steps, 0 sampled" in done.stderr


@pytest.mark.slow
def test_torch_may_be_there_before_the_script(tmp_path):
    done = copied(tmp_path, f"import sys\nassert 'torch' in sys.modules\n{TRAIN}train()\n")
    assert done.stderr.startswith("gradscope: 5 steps"), done.stderr


@pytest.mark.slow
def test_a_run_that_begins_late_says_so(tmp_path):
    """The steps before are counted by what the optimizer keeps."""
    late = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "hook, *finders = sys.meta_path\n"
        "sys.meta_path[:] = finders\n"
        + TRAIN.replace("optim.SGD", "optim.Adam")
        + "train()\nsys.meta_path.insert(0, hook)\nimport beside\ntrain()\n"
    )
    (tmp_path / "beside.py").touch()
    done = run(tmp_path, late)
    assert done.stderr.startswith("gradscope: 5 steps"), done.stderr
    assert "without the 5 steps before: gradscope's import hook missed the import" in done.stderr
    with RunFile.open(tmp_path / "run.db") as recorded:
        assert "without the 5 steps before" in recorded.run.notices[0]


@pytest.mark.slow
def test_a_check_from_time_to_time_finds_what_the_import_hook_has_missed(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import gradscope.training.script_run as running\nrunning._CHECK_SECONDS = 0.01\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    script = (
        "import sys, time\n"
        f"hook = sys.meta_path.pop(0)\n{TRAIN}train()\n"
        "while not hasattr(torch.autograd._make_grads, '__wrapped__'):\n    time.sleep(0.01)\n"
        "train()\n"
    )
    done = run(tmp_path, script, env={"PYTHONPATH": path})
    # While torch is imported, or later.
    assert re.match(r"gradscope: ([5-9]|10) steps|gradscope: observed from", done.stderr)


ELSEWHERE = {
    "spawned": (
        "import torch.multiprocessing as mp\n"
        f"{TRAIN}\n"
        "def work(rank):\n    train()\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=1)\n",
        "were not observed (by multiprocessing (spawn)",
        "put `with gradscope.watch(model):` around the loop",
    ),
    "a command": (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import torch'], check=True)\n",
        "were not observed (by subprocess",
        "put `-m gradscope run` before the script",
    ),
    "gradients alone": (
        "import torch\n"
        "w = torch.zeros(3, requires_grad=True)\n"
        "torch.autograd.grad((w - 1).square().sum(), w)\n",
        "gradscope does not count `torch.autograd.grad` as a step",
        "",
    ),
    "hidden": (
        "import sys\nsys.meta_path.pop(0)\n" + TRAIN + "train()\n",
        "gradscope could not observe this script: its import hook missed",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ELSEWHERE)
def test_a_training_that_is_not_seen_is_not_denied(way, tmp_path):
    script, said, help = ELSEWHERE[way]
    done = run(tmp_path, script) if way == "hidden" else copied(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "")
    assert said in done.stderr
    assert help in done.stderr
    with RunFile.open(tmp_path / "run.db") as recorded:
        assert any(said in notice for notice in recorded.run.notices)


def test_a_process_that_becomes_another_says_so(tmp_path):
    again = (
        "import os, sys\n"
        "if 'SETTING' not in os.environ:\n"
        "    print('lost', end='')\n"
        "    os.environ['SETTING'] = 'a b'\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv])\n"
        "print('here')\n"
    )
    done = run(tmp_path, again, "--lr", "1")
    assert (done.returncode, done.stdout) == (0, "here\n")
    first, *others = done.stderr.splitlines()
    assert first.endswith("use `SETTING='a b' gradscope run train.py --lr 1`")
    assert not others


def test_a_process_that_ends_at_once_is_summed_up(tmp_path):
    done = run(tmp_path, "import os\nprint('never written', end='')\nos._exit(7)\n")
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr == "gradscope: the script did not import torch in this process\n"
    with RunFile.open(tmp_path / "run.db") as recorded:
        assert recorded.run.exit == "7"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs `fork`")
def test_a_fork_is_counted():
    others = OtherProcesses()
    assert others.started("train.py") is None
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert others.forks == 1
    assert "were not observed (by" in (others.started("train.py") or "")


def test_children_count_from_a_second_on(monkeypatch):
    seconds = iter([0.0, 0.9, 41.0])
    monkeypatch.setattr(unobserved, "_seconds_of_children", lambda: next(seconds))
    monkeypatch.setattr(unobserved, "_STARTERS", {})
    others = OtherProcesses()
    assert others.started("train.py") is None
    assert "(by subprocess; 41.00 s of processor time)" in (others.started("train.py") or "")


def test_a_launcher_is_told_how_to_start_gradscope():
    said = OtherProcesses().started("-m torch.distributed.run")
    assert said is not None
    assert "`torchrun [OPTIONS] -m gradscope run SCRIPT.py`" in said


def test_what_replaces_the_process_is_named_as_one_types_it():
    others = OtherProcesses()
    environment = dict(os.environ)
    same = others.replaced_by(["/usr/bin/python3", "-m", "pkg.train", "a b"], environment)
    assert same.endswith("use `gradscope run -m pkg.train 'a b'`")
    other = others.replaced_by(["bash", "train.sh"], environment)
    assert other.endswith("by `bash train.sh`, which was not observed")
    many = {**environment, **{f"SETTING_{i}": "1" for i in range(9)}}
    assert "SETTING" not in others.replaced_by(["python", "train.py"], many)


class Unhooked(torch.optim.Adam):
    """Steps past PyTorch's hooks."""


def test_traces_of_a_training_are_not_denied():
    gc.collect()
    gc.freeze()  # of what earlier tests left nothing is found
    net = nn.Linear(2, 1)
    optimizer = Unhooked(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    traces = unobserved._unseen_training() or ""
    assert "of `Linear` got gradients without calling its hooks" in traces
    optimizer.step()
    optimizer.step()
    assert unobserved._unseen_training() == "`Unhooked` made 2 steps without calling its hooks"


def test_a_notebook_is_no_script():
    with pytest.raises(OptionError, match="is a notebook") as caught:
        Script("train.ipynb").check()
    assert "gradscope.watch" in str(caught.value.problems[0].help)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ValueError('no')", "the script raised `ValueError` before its first step"),
        (
            "RuntimeError('InvalidCxxCompiler: No working C++ compiler found')",
            "torch.compile found no C++ compiler: install one, or set CXX to it "
            '(`gradscope doctor` looks for it); `backend="aot_eager"` needs none',
        ),
    ],
)
def test_a_script_that_raises_before_its_first_step(error, said, tmp_path):
    done = copied(tmp_path, f"import torch\nraise {error}\n")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"gradscope: {said}")
