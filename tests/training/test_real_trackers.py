"""``--to`` with the trackers themselves: they keep what the file has, and what the script logs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from wandb_endpoint import listening

from gradscope.runfile.exports.mlflow import name_of
from gradscope.runfile.reader import RunFile
from gradscope.runfile.tracking import Alert, KeySelection, MetricRow, Unsent

pytestmark = pytest.mark.slow

#: A network whose first layer gets no gradient: there is a finding.
TRAINING = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(20):
    x = torch.randn(32, 8)
    loss = (net[2](net[:2](x).detach()) - x.sum(1, keepdim=True)).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    LOG
print(loss.item())
"""
Values = dict[tuple[str, int], float]


def run(script: str, folder: Path, *to: str, env: dict[str, str] | None = None) -> str:
    """Run a script plainly, or under gradscope; its output."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    words = ["run", "--every", "1", "-o", "run.db", *to, "train.py"]
    ran = (
        processes.gradscope(words, cwd=folder, env=variables)
        if to
        else processes.python(["train.py"], cwd=folder, env=variables)
    )
    assert ran.returncode == 0, ran.stderr
    assert "not sent" not in ran.stderr, ran.stderr
    return ran.stdout


def of_file(folder: Path) -> tuple[Values, tuple[Alert, ...]]:
    with RunFile.open(folder / "run.db") as opened:
        assert [one.message for one in opened.events if one.kind == "not-sent"] == []
        news = Unsent(KeySelection(200)).read(opened, complete=True)
    assert news.alerts
    found = {(key, row.step): value for row in news.rows for key, value in row.values.items()}
    return found, news.alerts


def records(path: Path) -> Iterator[Any]:
    """The records of W&B's file: a LevelDB log after 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        if kind == 0:
            return
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def history(folder: Path) -> tuple[list[dict[str, Any]], list[Any], list[Any]]:
    """The rows of a run, its alerts and its artifacts."""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    rows, alerts, artifacts = [], [], []
    for one in records(path):
        kind = one.WhichOneof("record_type")
        if kind == "history":
            items = one.history.item
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
        elif kind == "alert":
            alerts.append(one.alert)
        elif kind == "artifact":
            artifacts.append(one.artifact)
    return rows, alerts, artifacts


def own(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the script's logged rows, with its steps."""
    found = [
        {key: v for key, v in row.items() if not key.startswith(("gradscope/", "_t", "_r"))}
        for row in rows
    ]
    return [row for row in found if set(row) != {"_step"}]


def numbers(rows: list[dict[str, Any]]) -> Values:
    """Our numbers in the rows of W&B, each of which is there once."""
    found = [
        ((key, row["gradscope/step"]), value)
        for row in rows
        for key, value in row.items()
        if key.startswith("gradscope/") and key != "gradscope/step"
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


WANDB = {
    "with its own steps, and finish()": (
        "import wandb\nwandb.init(project='p')\n{}wandb.finish()\n",
        "wandb.log({'loss': loss.item()}, step=10 * i)",
    ),
    "with an x-axis for all": (
        "import wandb\nrun = wandb.init(project='p')\n"
        "run.define_metric('*', step_metric='i', step_sync=True)\n{}",
        "run.log({'loss': loss.item(), 'i': i})",
    ),
    "in parts, and left open": (
        "import wandb\nrun = wandb.init(project='p')\n{}",
        "run.log({'loss': loss.item()}, commit=False); run.log({'i': i}) if i % 2 else None",
    ),
}


@pytest.mark.parametrize(("frame", "log"), WANDB.values(), ids=WANDB)
def test_wandb_keeps_the_scripts_own_rows(frame, log, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    script = frame.format(TRAINING.replace("LOG", log))
    env = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    assert run(script, tmp_path / "a", env=env) == run(
        script, tmp_path / "b", "--to", "wandb", env=env
    )
    plain, _, _ = history(tmp_path / "a")
    rows, alerts, artifacts = history(tmp_path / "b")
    assert own(rows) == own(plain)
    assert len(own(rows)) in (10, 20)
    expected, findings = of_file(tmp_path / "b")
    assert numbers(rows) == expected  # every step was sampled
    assert {one.title for one in alerts} == {one.title[:63] for one in findings}
    assert any("train.py:" in one.text or "cause" in one.text for one in alerts)
    assert [one.type for one in artifacts] == ["gradscope"]


def test_ctrl_c_ends_the_process_as_it_does_without(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    frame, log = WANDB["with an x-axis for all"]
    script = frame.format(TRAINING.replace("LOG", log))
    (tmp_path / "train.py").write_text(f"{script}import os; os.kill(os.getpid(), 2)\n")
    env = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"}
    for words in (["train.py"], ["-m", "gradscope", "run", "--to", "wandb", "train.py"]):
        ended = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True)
        assert ended.returncode == -signal.SIGINT, ended.stderr.decode()


def test_wandbs_server_counts_the_scripts_own_steps_and_our_keys(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    frame, log = WANDB["with its own steps, and finish()"]
    script = frame.format(TRAINING.replace("LOG", log)).replace(
        "project='p'", "project='p', entity='e'"
    )
    with listening() as endpoint:
        env = {
            "WANDB_BASE_URL": endpoint.address,
            "WANDB_API_KEY": 40 * "a",
            "WANDB_SILENT": "true",
        }
        run(script, tmp_path / "a", "--to", "wandb", env=env)
    steps = [row["_step"] for row in endpoint.rows if "loss" in row]
    assert steps == [10 * i for i in range(20)]
    expected, findings = of_file(tmp_path / "a")
    assert numbers(endpoint.rows) == expected
    # One more, if the cause was found later.
    assert endpoint.asked.count("notifyScriptableRunAlert") >= len(findings)
    assert endpoint.asked.count("createArtifact") == 1


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{folder}/ml.db"]
    store += ["--artifacts-destination", str(folder / "artifacts"), "--workers", "1"]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), *store]
    server = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert server.poll() is None, server.stderr and server.stderr.read()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health"):
                break
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait()


def test_an_mlflow_server_has_the_files_numbers(tmp_path):
    pytest.importorskip("mlflow.server", reason="mlflow and its server are not installed")
    import mlflow

    plain = run(TRAINING.replace("LOG", "print(loss.item())"), tmp_path / "a")
    log = "mlflow.log_metric('loss', loss.item(), step=i)"
    body = TRAINING.replace("LOG", log).replace("\n", "\n    ")
    script = f"import mlflow\nwith mlflow.start_run():\n    {body}\n"
    with mlflow_server(tmp_path) as address:
        env = {"MLFLOW_TRACKING_URI": address}
        run(script, tmp_path / "b", "--to", "mlflow", env=env)
        client = mlflow.MlflowClient(address)
        (observed,) = client.search_runs(["0"])
        assert observed.info.status == "FINISHED"
        losses = client.get_metric_history(observed.info.run_id, "loss")
        assert [(one.step, str(one.value)) for one in losses] == [
            *enumerate(plain.splitlines()[:-1])
        ]
        expected, findings = of_file(tmp_path / "b")
        found = {
            (key, one.step): one.value
            for key in observed.data.metrics
            if key != "loss"
            for one in client.get_metric_history(observed.info.run_id, key)
        }
        assert found == expected
        tags = [key for key in observed.data.tags if "gradscope" in key]
        assert tags == [name_of(f"gradscope/{one.title}") for one in findings]
        (page,) = client.list_artifacts(observed.info.run_id, "gradscope")
        assert page.path == "gradscope/gradscope.html"
        # The finished run as a new one.
        words = ["export", "run.db", "--to", "mlflow", "again"]
        done = processes.gradscope(words, cwd=tmp_path / "b", env={**os.environ, **env})
        assert done.returncode == 0, done.stderr
        experiment = client.get_experiment_by_name("again").experiment_id
        (again,) = client.search_runs([experiment])
        assert again.data.metrics == {k: v for k, v in observed.data.metrics.items() if k != "loss"}
        assert again.info.status == "FINISHED"


def test_a_dead_mlflow_server_draws_no_random_number():
    """MLflow's client draws one before it tries again; what the script draws must stay the same."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    from gradscope.runfile.exports.mlflow import MlflowRun

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    state = random.getstate()
    tracker = MlflowRun(mlflow.MlflowClient(address), "run", own=False)
    with pytest.raises(mlflow.exceptions.MlflowException):
        tracker.send([MetricRow(1, 1.0, {"gradscope/loss": 1.0}, False)], ())
    assert random.getstate() == state


def test_tensorboard_shows_a_run_beside_the_scripts_own(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra `export` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # It trains in another working directory; TensorBoard's writer opens its file anew to write.
    log = "os.chdir('..'); writer.add_scalar('loss', loss.item(), i); writer.flush(); "
    log += "os.chdir('other')"
    script = (
        "import os\nfrom torch.utils.tensorboard import SummaryWriter\n"
        "writer = SummaryWriter('logs')\nwriter.flush(); os.mkdir('other'); os.chdir('other')\n"
        f"{TRAINING.replace('LOG', log)}os.chdir('..'); writer.close()\n"
    )
    assert run(script, tmp_path / "a") == run(script, tmp_path / "b", "--to", "tensorboard")

    def scalars(folder: Path) -> Values:
        (file,) = folder.glob("events.out.tfevents.*")
        events = EventAccumulator(str(file), {"scalars": 0, "tensors": 0}).Reload()
        tags = events.Tags()
        assert any("gradscope/GS" in tag for tag in tags["tensors"]) == (folder.name == "gradscope")
        return {
            (tag, one.step): one.value for tag in tags["scalars"] for one in events.Scalars(tag)
        }

    assert scalars(tmp_path / "b" / "logs") == scalars(tmp_path / "a" / "logs")
    expected, _ = of_file(tmp_path / "b")
    found = scalars(tmp_path / "b" / "logs" / "gradscope")
    as_float32 = {key: struct.unpack("f", struct.pack("f", v))[0] for key, v in expected.items()}
    assert found == as_float32


def test_trackio_keeps_the_scripts_own_steps(tmp_path):
    pytest.importorskip("trackio", reason="trackio is not installed")
    log = "trackio.log({'l': loss.item()})"
    script = (
        "import trackio\ntrackio.init(project='p', name='r', embed=False, auto_log_gpu=False, "
        "auto_log_cpu=False)\n"
        f"{TRAINING.replace('LOG', log)}trackio.finish()\n"
    )
    rows = {}
    for name, to in (("a", ()), ("b", ("--to", "trackio"))):
        folder = tmp_path / f"trackio-{name}"
        env = {**os.environ, "TRACKIO_DIR": str(folder)}
        said = run(script, tmp_path / name, *to, env=env).replace(str(folder), "")
        code = "import json\nfrom trackio.sqlite_storage import SQLiteStorage as kept\n"
        code += "print(json.dumps(kept.get_logs('p', 'r')))"
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        rows[name] = said, json.loads(done.stdout)
    (said, plain), (also_said, found) = rows["a"], rows["b"]
    assert also_said == said

    def own_of(logs: list[dict[str, Any]]) -> list[tuple[int, float]]:
        return [(row["step"], row["l"]) for row in logs if "l" in row]

    assert own_of(found) == own_of(plain)
    assert [step for step, _ in own_of(found)] == list(range(20))
    expected, findings = of_file(tmp_path / "b")
    ours = {
        (key, row["gradscope/step"]): value
        for row in found
        for key, value in row.items()
        if key.startswith("gradscope/") and key not in ("gradscope/step", "gradscope/finding")
    }
    assert ours == expected
    assert sum("gradscope/finding" in row for row in found) == len(findings)
