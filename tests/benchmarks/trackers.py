"""Measures what ``run --to`` adds to a training: complete processes, with and without it in turn.

``python -m tests.benchmarks.trackers`` trains a GPT of 20 million parameters, of which a step takes
about half a second, and a small MLP of about a millisecond, both under ``gradscope run``. The
script opens a run in the tracker and logs every tenth loss itself. Printed are, for each tracker:

- of the loop, the ratios of the processor's seconds with ``--to`` to those without: of the thread
  that trains, and of the process;
- the share of the loop's time that gradscope's thread for the tracker took of the processor, which
  the system counts; and what all threads but the one that trains took more than without ``--to``,
  also the tracker's own;
- after the loop, what ``--to`` adds until the process has ended: seconds of the processor, and of
  the clock;
- whether weights, losses and the next random numbers are the same bits with ``--to`` and
  without, how many steps were recorded, and how many events the run has on what was not sent.

``--server slow`` answers each of gradscope's requests after 10 s, ``refusing`` with an error,
``killed`` not at all once the loop has begun: of MLflow's server, and of a collector. ``--server
each`` measures all four in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gradscope.runfile.reader import RunFile
from tests.benchmarks.training import _GPT, _HEAD, SCRIPTS

_LOOP = """
import hashlib, json, random, threading
{open}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def threads():
    found = {{}}
    for one in threading.enumerate():
        with open(f"/proc/self/task/{{one.native_id}}/schedstat") as file:
            found[one.name] = int(file.read().split()[0]) / 1e9
    return found
print("loop", flush=True)
before, began = threads(), time.perf_counter()
random.seed(0)
cpu, own, losses = time.process_time(), time.thread_time(), []
for step in range(steps):
    inputs, loss = batch()
    optimizer.zero_grad()
    value = loss(model(inputs))
    value.backward()
    optimizer.step()
    losses.append(value.item())
    if step % 10 == 0:
        {log}
took = {{"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}}
took |= {{"own": time.thread_time() - own, "until": time.process_time()}}
took["threads"] = {{name: now - before.get(name, 0.0) for name, now in threads().items()}}
values = [*losses, random.random(), torch.rand(()).item()]
bits = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
took["result"] = hashlib.sha256(repr(values).encode() + bits).hexdigest()
print(json.dumps(took), flush=True)
"""
_MLP = next(text for name, (text, _) in SCRIPTS.items() if name.startswith("MLP"))
#: A model's script, and its steps.
MODELS = {
    "GPT": (_HEAD + _GPT.replace("d=256", "d=512"), 60),
    "MLP": (_MLP, 20_000),
}
#: What a script does to open a run, and to log.
OPENS = {
    "wandb": (
        "import wandb\nrun = wandb.init(project='p')",
        "run.log({'loss': value.item()})",
    ),
    "mlflow": (
        "import mlflow\nmlflow.start_run()",
        "mlflow.log_metric('loss', value.item(), step=step)",
    ),
    "tensorboard": (
        "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter('logs')",
        "writer.add_scalar('loss', value.item(), step)",
    ),
    "trackio": (
        "import trackio\ntrackio.init(project='p', embed=False, auto_log_gpu=False, "
        "auto_log_cpu=False)",
        "trackio.log({'loss': value.item()})",
    ),
    "otlp": ("", "value.item()"),
}
_OURS = "gradscope to "
_SLOW = 10.0
STATES = ("answering", "slow", "refusing", "killed")
#: Those in front of which a server can be put.
_SERVED = ("mlflow", "otlp")


@dataclass(slots=True)
class Server:
    """In front of a tracker's server: what is gradscope's alone, it answers as its state says."""

    state: str
    behind: int | None = None
    address: str = ""
    began: threading.Event = field(default_factory=threading.Event)

    def answers(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        ours = self.behind is None or handler.path.endswith("/log-batch")
        status, kind, found = 200, "application/json", b"{}"
        if ours and self.state == "killed" and self.began.is_set():
            handler.connection.close()
            return
        if ours and self.state == "slow":
            time.sleep(_SLOW)
        if ours and self.state == "refusing":
            status = 500
        elif self.behind is not None:
            forward = http.client.HTTPConnection("127.0.0.1", self.behind)
            names = {"Content-Type", "Content-Length"} & set(handler.headers)
            headers = {name: handler.headers[name] for name in names}
            forward.request(handler.command, handler.path, body, headers)
            answer = forward.getresponse()
            status, found = answer.status, answer.read()
            kind = answer.headers.get("Content-Type", kind)
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(found)))
        handler.end_headers()
        handler.wfile.write(found)


@contextlib.contextmanager
def listening(server: Server) -> Iterator[Server]:
    """The server on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.answers(self)

        do_GET = do_PUT = do_PATCH = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that has gone, or was sent away."""

    listener = Quiet(("127.0.0.1", 0), Handler)
    server.address = f"127.0.0.1:{listener.server_address[1]}"
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[int]:
    """MLflow's own server; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{folder}/ml.db", "--workers", "1"]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), *store]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, stdout=quiet, stderr=quiet)
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError("MLflow's server ended")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds: of the loop on the clock, of the processor in it, of its thread that trains, of the
    threads that ``--to`` started; after the loop of the processor and on the clock. Then the digest
    of what the script computed, the steps of the run's file, and its events on unsent steps.
    """

    wall: float
    cpu: float
    own: float
    ours: float
    end_cpu: float
    end_wall: float
    result: str
    steps: int
    events: int


def measured(
    words: list[str], folder: Path, env: dict[str, str], began: Callable[[], None]
) -> Measured:
    """Run ``train.py`` in a folder under gradscope."""
    command = [sys.executable, "-m", "gradscope", "run", "--quiet", "-o", "run.db", *words]
    with (folder / "errors.txt").open("w") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        line, ended = "", 0.0
        for one in process.stdout:
            if one == "loop\n":
                began()
            elif one.startswith('{"wall"'):
                line, ended = one, time.perf_counter()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    now = time.perf_counter()
    if process.returncode or not line:
        raise RuntimeError((folder / "errors.txt").read_text()[-2000:])
    found = json.loads(line)
    ours = sum(took for name, took in found["threads"].items() if name.startswith(_OURS))
    total = usage.ru_utime + usage.ru_stime
    figures = (found[name] for name in ("wall", "cpu", "own"))
    with RunFile.open(folder / "run.db") as run:
        steps, events = run.run.steps, sum(one.kind == "not-sent" for one in run.events)
    ends = total - found["until"], now - ended
    return Measured(*figures, ours, *ends, found["result"], steps, events)


def compare(name: str, model: str, steps: int | None, rounds: int, state: str) -> str:
    """A line for a tracker: ``--to`` beside the same script without."""
    text, usual = MODELS[model]
    pairs: list[tuple[Measured, Measured]] = []
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        behind = stack.enter_context(mlflow_server(home)) if name == "mlflow" else None
        server = Server(state, behind)
        if name in _SERVED:
            stack.enter_context(listening(server))
        to = f"otlp://{server.address}" if name == "otlp" else name
        env = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "MLFLOW_TRACKING_URI": f"http://{server.address}",
            "TRACKIO_DIR": str(home / "trackio"),
        }
        opens, log = OPENS[name]
        for number in range(rounds):
            found = []
            for options in ([], ["--to", to]):
                server.began.clear()
                folder = home / f"{number}-{len(options)}"
                folder.mkdir()
                (folder / "train.py").write_text(text + _LOOP.format(open=opens, log=log))
                words = [*options, "train.py", str(steps or usual)]
                found.append(measured(words, folder, env, server.began.set))
            pairs.append((found[0], found[1]))
    return f"{model} {name:<12}{state:<10}{_line(pairs)}"


def _line(pairs: list[tuple[Measured, Measured]]) -> str:
    line = ""
    for label, what in (("training thread", "own"), ("process", "cpu")):
        ratios = [getattr(after, what) / getattr(before, what) for before, after in pairs]
        low, high = min(ratios), max(ratios)
        line += f"  {label} {statistics.median(ratios):.3f} ({low:.3f}–{high:.3f})"
    share = statistics.median(after.ours / after.wall for _, after in pairs)
    beside = statistics.median(
        (after.cpu - after.own) / after.wall - (before.cpu - before.own) / before.wall
        for before, after in pairs
    )
    ends = [
        statistics.median(getattr(after, what) - getattr(before, what) for before, after in pairs)
        for what in ("end_cpu", "end_wall")
    ]
    seconds = statistics.median(before.wall for before, _ in pairs)
    line += f"  its thread {share:.2%}, all others {beside:+.2%} of {seconds:.0f} s"
    line += f"  end +{ends[0]:.2f} s processor, +{ends[1]:.2f} s"
    same = all(before.result == after.result for before, after in pairs)
    last = pairs[-1][1]
    line += f"  {'same' if same else 'DIFFERENT'} bits, {last.steps} steps, {last.events} events"
    return line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each run")
    parser.add_argument("--model", choices=MODELS, help="this one alone")
    parser.add_argument("--only", choices=OPENS, help="this tracker alone")
    parser.add_argument("--server", choices=(*STATES, "each"), default=STATES[0])
    given = parser.parse_args()
    states = STATES if given.server == "each" else (given.server,)
    for model in [given.model] if given.model else MODELS:
        for name in [given.only] if given.only else OPENS:
            if name != "otlp" and importlib.util.find_spec(name) is None:
                print(f"{model} {name:<12}  not installed", flush=True)
                continue
            for state in states:
                if state == STATES[0] or name in _SERVED:
                    print(compare(name, model, given.steps, given.rounds, state), flush=True)


if __name__ == "__main__":
    main()
