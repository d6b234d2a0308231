"""A script under `torchrun`, by the loopback alone: a machine need not find its own name.

A script whose processes wait for each other is ended after an hour, and what it wrote is shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Seconds. On a busy machine a script that does not hang takes minutes.
_HANGS, _ENDS = 3600.0, 60.0


def launched(folder: Path, processes: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """What became of it in a folder, which is made.

    Raises:
        AssertionError: it hangs.
    """
    folder.mkdir(exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={processes}", "--local-addr=localhost"]
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    command = [*launcher, *map(str, words)]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **loopback, "OMP_NUM_THREADS": "1"},
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
