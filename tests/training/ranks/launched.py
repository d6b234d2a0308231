"""A script in several processes, by the loopback alone: a machine need not find its own name.

Under `torchrun`, or in copies of a process that has imported torch and gradscope already. Under
`torchrun` a script whose processes wait for each other is ended after an hour, and what it wrote is
shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import processes
from torch.distributed import TCPStore

#: Seconds. On a busy machine a script that does not hang takes minutes.
_HANGS, _ENDS = 3600.0, 60.0


_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


def side_by_side(folder: Path, count: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it in as many copied processes; if one fails, all are ended."""
    folder.mkdir(exist_ok=True)
    # Where the processes meet: as `torchrun` does it, which also gives each these variables.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        **os.environ,
        **_LOOPBACK,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    done = processes.together(
        [*map(str, words)],
        cwd=folder,
        envs=[{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)],
    )
    del store
    code = int(any(one.returncode for one in done))
    out, err = ("".join(texts) for texts in zip(*((d.stdout, d.stderr) for d in done), strict=True))
    return subprocess.CompletedProcess([*map(str, words)], code, out, err)


def launched(folder: Path, count: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it under `torchrun` in a folder, which is created.

    Raises:
        AssertionError: it hangs.
    """
    folder.mkdir(exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={count}", "--local-addr=localhost"]
    command = [*launcher, *map(str, words)]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **_LOOPBACK, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=_HANGS)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends those that it started
            out, err = process.communicate(timeout=_ENDS)
            raise AssertionError(f"{command} hangs:\n{out}\n{err}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)
