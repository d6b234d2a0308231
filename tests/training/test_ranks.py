"""Findings that need several ranks: faults in real processes, each beside a mended twin."""

from __future__ import annotations

import json
import os
from pathlib import Path

import processes
import pytest
import torch
from collector import collecting
from filelock import FileLock

from gradscope import cli
from gradscope.api.reading import read_history
from gradscope.records.training import RunHistory, TrainingFinding
from gradscope.reporters.run import qualified
from gradscope.runfile.reader import RunFile
from gradscope.runfile.tracking import KeySelection, Unsent
from training.ranks.launched import launched, side_by_side

SCRIPTS = Path(__file__).with_name("ranks")
pytestmark = pytest.mark.slow

#: By the model, in the order of the script: the rule, the severity, the place, and the steps in
#: which it held. The size of batches is the run's.
PLANTED = {
    1: ("GS701", "warning", "0.weight", (1, 4)),
    2: ("GS701", "error", "3.bias", (7, 8)),
    3: ("GS702", "error", "0.weight", (10, 12)),
    4: ("GS703", "info", "1.running_mean", (13, 16)),
    5: ("GS704", "warning", "", (17, 20)),
    None: ("GS705", "warning", "", (26, 26)),
}


def recorded(folder: Path, script: str, *arguments: str) -> RunHistory:
    """The run of a script in two processes, recorded once for all workers of pytest."""
    run = folder / "-".join([script, *arguments])
    with FileLock(f"{run}.lock"):
        if not run.exists():
            _launch(run, script, *arguments)
    with RunFile.open(run) as file:
        return read_history(file)


def _launch(run: Path, script: str, *arguments: str) -> None:
    """Under ``torchrun`` where it ends one process because another has failed."""
    words = ("-m", "gradscope", "run", "--every", "1", "-o", run, SCRIPTS / f"{script}.py")
    start = launched if (script, *arguments) == ("unused",) else side_by_side
    done = start(run.parent / f"{run.name}-began", 2, *words, *arguments)
    assert run.exists(), done.stderr


def between_ranks(history: RunHistory) -> list[TrainingFinding]:
    return [one for one in history.findings if one.finding.code.startswith("GS7")]


def test_each_fault_is_found_at_its_name_and_step(runs: Path) -> None:
    history = recorded(runs, "faults")
    found = {
        one.model: (one.finding.code, one.finding.severity, one.finding.name, *one.steps)
        for one in between_ranks(history)
    }
    assert found == PLANTED
    assert len(between_ranks(history)) == len(PLANTED)


def test_nothing_is_found_in_the_mended_twins(runs: Path) -> None:
    assert between_ranks(recorded(runs, "faults", "mended")) == []
    assert between_ranks(recorded(runs, "unused", "mended")) == []


def test_nothing_is_found_in_honest_trainings(tmp_path: Path) -> None:
    """But for GS707, which is of the machine's time."""
    done = side_by_side(tmp_path, 2, SCRIPTS / "honest.py")
    assert done.returncode == 0, done.stderr
    found = {}
    for folder in sorted(tmp_path.glob("*.run")):
        with RunFile.open(folder) as file:
            several = between_ranks(read_history(file))
        found[folder.stem] = [one.finding.code for one in several if one.finding.code != "GS707"]
    names = ("accumulated", "dropped", "four", "graphs", "noise", "one", "padded", "unshuffled")
    assert found == {name: [] for name in names}


def test_of_shards_only_copies_of_the_same_are_compared(runs: Path) -> None:
    found = {
        (one.model, one.finding.code, one.finding.name, *one.steps)
        for one in between_ranks(recorded(runs, "meshes"))
    }
    assert found == {(3, "GS701", "3.bias", (11, 12)), (3, "GS704", "", (9, 12))}
    assert between_ranks(recorded(runs, "meshes", "mended")) == []


def test_a_parameter_that_one_rank_does_not_use(runs: Path, monkeypatch, capsys) -> None:
    history = recorded(runs, "unused")
    (one,) = between_ranks(history)
    assert (one.finding.code, one.finding.name, one.steps) == ("GS706", "block.gate", ((2, 2),))
    assert one.finding.location is not None
    file, _, line = one.finding.location.rpartition(":")
    lines = (Path.cwd() / file).read_text(encoding="utf-8").splitlines()
    assert "self.gate(x)" in lines[int(line) - 1]
    # Rank 1 ends with DDP's error, and rank 0, which waits for it, with that of the connection, or
    # by the launcher, which ends all where one has failed.
    assert "finished reduction" in (history.ranks[1].exit or "")
    assert history.ranks[0].exit != "0"
    monkeypatch.setattr(
        "sys.argv", ["gradscope", "why", str(runs / "unused"), "--fail-on", "error"]
    )
    with pytest.raises(SystemExit) as caught:
        cli.main()
    shown = capsys.readouterr().out
    assert caught.value.code == 1
    assert "block.gate" in shown
    assert f"unused.py:{line}" in shown


def test_stages_of_a_pipeline_are_one_run(tmp_path: Path) -> None:
    """Norms are those of one process on the full batch, and names of both stages stay apart."""
    script = SCRIPTS / "stages.py"
    plain = side_by_side(tmp_path / "plain", 2, script)
    assert plain.returncode == 0, plain.stderr
    words = ("-m", "gradscope", "run", "--every", "1", "-o", "run", script)
    side_by_side(tmp_path / "watched", 2, *words)
    for rank in (0, 1):
        one, other = (
            torch.load(tmp_path / how / f"weights-{rank}.pt") for how in ("plain", "watched")
        )
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    alone = json.loads((tmp_path / "watched" / "alone.json").read_text(encoding="utf-8"))
    with RunFile.open(tmp_path / "watched" / "run") as run:
        history = qualified(read_history(run, calls=True))
    assert not [event for event in history.events if event.kind == "failed"]
    for step, truth in zip(history.steps, alone, strict=True):
        norms = {
            one.name.replace("#2", ""): one.values["grad_norm"][one.steps.index(step.step)]
            for one in history.parameters
            if step.step in one.steps
        }
        assert norms == pytest.approx(truth["norms"], rel=1e-6)
        assert step.gradient_norm == pytest.approx(truth["total"], rel=1e-6)
        assert step.clipped_norm == pytest.approx(0.05, rel=1e-4)
        assert len(step.losses) == 4
    assert [model.name for model in history.models[:2]] == ["stage0", "stage1"]
    # A call for each microbatch, and none for the one with which the schedule asks for shapes.
    calls = {one.name: 0 for one in history.calls}
    for one in history.calls:
        calls[one.name] += 1
        assert None not in one.values["grad_out_norm"]
    assert {name: calls[name] for name in ("stage0.2", "stage1.2")} == {
        "stage0.2": 4,
        "stage1.2": 4,
    }
    for rank in (0, 1):
        with RunFile.open(tmp_path / "watched" / "run" / f"rank-{rank}.db") as run:
            assert [model.name for model in run.models] == [f"stage{rank}", f"stage{rank}#2"]


def test_a_rank_that_is_not_to_record_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n", encoding="utf-8")
    for rank, files in ((1, []), (0, ["rank-0.db"])):
        words = ["run", "--ranks", "0,2", "-o", "run", "train.py", "a"]
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}
        done = processes.gradscope(words, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "['train.py', 'a']\n"
        assert sorted(file.name for file in (tmp_path / "run").glob("*")) == files


def test_one_process_sends_the_numbers_of_all(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AVERAGED)
    run, start = tmp_path / "run", tmp_path / "began"
    with collecting() as collector:
        words = ("-m", "gradscope", "run", "--every", "1", "--to", collector.address, "-o", run)
        done = side_by_side(start, 2, *words, tmp_path / "train.py")
        assert done.returncode == 0, done.stderr
        points = collector.points()
    assert "not sent" not in done.stderr
    with RunFile.open(run) as file:
        rows = Unsent(KeySelection(200)).read(file, complete=True).rows
        assert [one for one in file.events if one.kind == "not-sent"] == []
    assert {row.step for row in rows} == set(range(1, 9))
    assert {len(some) for some in points.values()} == {8}  # each step once
    for key in points.keys() - {"gradscope/step"}:
        sent = [value for _, value in sorted(points[key])]
        assert sent == [row.values[key] for row in rows]
    assert points.keys() - {"gradscope/step"} == {key for row in rows for key in row.values}


#: The two processes differ in their losses, and the second one is the slower.
AVERAGED = """
import os, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
torch.manual_seed(dist.get_rank())
for _ in range(8):
    x = torch.randn(16, 4)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
time.sleep(dist.get_rank())
"""


@pytest.mark.parametrize("words", ["", "a", "0,", "-1", "0-3"])
def test_what_are_no_ranks(words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = processes.gradscope(["run", f"--ranks={words}", "train.py"], cwd=tmp_path)
    assert (done.returncode, "write `0,1`, or `all`" in done.stderr) == (2, True)


def test_runs_are_compared_as_wholes_or_by_one_rank(runs: Path, monkeypatch, capsys) -> None:
    recorded(runs, "faults")
    recorded(runs, "faults", "mended")

    def parted(a: str, b: str, *words: str) -> tuple[int, str]:
        command = ["gradscope", "diff", str(runs / a), str(runs / b), *words]
        monkeypatch.setattr("sys.argv", command)
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return caught.value.code or 0, out + err

    # Replicas of the first model differ: there is no whole, which says nothing of NaN.
    code, shown = parted("faults", "faults-mended")
    assert (code, "A has no statistics" in shown, "not finite" in shown) == (0, True, False)
    code, shown = parted("faults", "faults-mended", "--rank", "0")
    assert (code, "no statistics" in shown) == (0, False)
    assert "GD106" in parted("faults", "faults-mended", "--rank", "1", "--fail-on", "error")[1]
    assert "it has those of 0, 1" in parted("faults", "faults-mended", "--rank", "7")[1]
    assert parted("faults/rank-0.db", "faults/rank-1.db", "--rank", "0")[0] == 2


def test_one_rank_alone(runs: Path, monkeypatch, capsys) -> None:
    recorded(runs, "faults")
    for words, shown in (
        (["show", "--rank", "1"], "note: rank 1 of 2"),
        (["show", "--rank", "1", "--step", "3"], "step 3"),
        (["why", "--rank", "1"], "in all 26 steps"),
        (["live", "--rank", "1"], "finished: exit code 0"),
    ):
        monkeypatch.setattr("sys.argv", ["gradscope", words[0], str(runs / "faults"), *words[1:]])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        assert (caught.value.code or 0, err) == (0, "")
        assert shown in out
        assert "GS701" not in out
    monkeypatch.setattr("sys.argv", ["gradscope", "show", str(runs / "faults"), "--rank", "2"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "it has those of 0, 1" in capsys.readouterr().err
