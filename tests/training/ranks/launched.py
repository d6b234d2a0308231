"""A script under `torchrun`, by the loopback alone: a machine need not find its own name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def launched(folder: Path, processes: int, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """What became of it in a folder, which is made."""
    folder.mkdir(exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={processes}", "--local-addr=localhost"]
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return subprocess.run(
        [*launcher, *map(str, words)],
        cwd=folder,
        env={**os.environ, **loopback, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
