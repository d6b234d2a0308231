"""The training scripts of ``scripts/``, run plainly, under gradscope and under the tracer.

Each is run once in a way, however many tests ask, also of several workers of pytest. Where what a
script imports allows, its process is a copy of one that has imported torch and gradscope already.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import processes
import pytest
from filelock import FileLock

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"


def cxx() -> str | None:
    """The C++ compiler that inductor needs on a CPU; None without one."""
    return shutil.which(os.environ.get("CXX") or "g++")


@dataclass(frozen=True, slots=True)
class Script:
    """``words`` are its command line; ``needs`` the packages without which it cannot be run.

    ``by_default`` scripts are also observed with gradscope's default options. ``first`` of all it
    asks what is imported: it always needs an interpreter that has imported nothing. A ``fresh`` one
    is observed in such an interpreter, as a user starts it, though the plain run is a copy.
    """

    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    by_default: bool = False
    first: bool = False
    fresh: bool = False

    @property
    def param(self) -> Any:
        missing = [package for package in self.needs if importlib.util.find_spec(package) is None]
        if "--backend=inductor" in self.words and not cxx():
            missing.append("a C++ compiler")
        reason = f"not installed: {', '.join(missing)}"
        marks = [pytest.mark.skip(reason=reason)] if missing else []
        return pytest.param(self, id=self.name, marks=marks)


def _of(
    name: str,
    *arguments: str,
    needs: tuple[str, ...] = (),
    by_default: bool = False,
    first: bool = False,
    fresh: bool = False,
) -> Script:
    words = (f"{name}.py", *arguments)
    name = "-".join([name, *(a.strip("-") for a in arguments)])
    return Script(name, words, needs, by_default, first, fresh)


ALL = [
    _of("accelerate_loop", needs=("accelerate",)),
    _of("actor_critic"),
    _of("at_exit"),
    _of("catches_everything"),
    _of("char_gpt"),
    _of("char_gpt_fp16", by_default=True),
    _of("checkpointing"),
    _of("compiled", by_default=True),
    _of("compiled", "--ways=module", "--backend=inductor"),
    _of("cross_validation"),
    _of("dcgan", by_default=True),
    _of("exits_with_3"),
    _of("forward_forward"),
    _of("gat"),
    _of("hf_trainer", needs=("transformers", "accelerate")),
    # Of all it imports most.
    _of("lightning_module", needs=("lightning",), fresh=True),
    _of("loader_fork"),
    _of("loader_spawn"),
    _of("looks_at_itself"),
    _of("looks_at_itself", "--hooks"),
    _of("mnist", "--batch-size", "80"),
    _of("raises"),
    _of("siamese"),
    _of("swaps", by_default=True),
    _of("time_sequence"),
    _of("timm_style", needs=("timm",)),
    Script("trainpkg", ("-m", "trainpkg", "--lr", "0.004", "-m", "words")),
    _of("two_optimizers_one_loss"),
    _of("unet"),
    _of("vae"),
    _of("warned", by_default=True),
    _of("warned", "--always"),
    _of("warned", "--recorded"),
    _of("wgan_gp"),
    _of(
        "where_am_i",
        "--every",
        "3",
        "-o",
        "x.db",
        "--select",
        "GS101",
        "--",
        "-m",
        "words",
        first=True,
    ),
    _of("word_lm"),
]


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a run: exit code, output, final weights, the file beside them."""

    code: int
    stdout: bytes
    stderr: bytes
    weights: Path
    out: Path


def plain(script: Script, folder: Path) -> Ran:
    """``python SCRIPT``."""
    return _once(script, folder, "plain", [])


#: Options of most that ``run`` can do: every step is sampled, and one is searched for leaks.
EVERYTHING = ("--every", "1", "--leaks")


def observed(script: Script, folder: Path, *options: str) -> Ran:
    """``gradscope run OPTIONS SCRIPT``; ``out`` is the run file."""
    words = ["-m", "gradscope", "run", "-o", "OUT", *options]
    way = "-".join(["observed", *options])
    return _once(script, folder, way, words, fresh=script.fresh)


def traced(script: Script, folder: Path) -> dict[str, Any]:
    """Return the tracer's record."""
    ran = _once(script, folder, "traced", [str(HERE / "tracer.py"), "OUT"])
    traced: dict[str, Any] = json.loads(ran.out.read_text(encoding="utf-8"))
    return traced


def _once(
    script: Script, folder: Path, way: str, before: Sequence[str], *, fresh: bool = False
) -> Ran:
    fresh = fresh or script.first
    place = folder / script.name / re.sub(r"\W+", "-", way)
    place.mkdir(parents=True, exist_ok=True)
    done = place / "ran.pickle"
    with FileLock(place / "lock"):
        if not done.exists():
            out = place / ("trace.json" if way == "traced" else "run.db")
            words = [str(out) if word == "OUT" else word for word in before]
            ran = run([*words, *script.words], place / "weights.pt", out, fresh=fresh)
            done.write_bytes(pickle.dumps(ran))
    found: Ran = pickle.loads(done.read_bytes())
    return found


def run(words: Sequence[str], weights: Path, out: Path, *, fresh: bool = False) -> Ran:
    """``python WORDS`` in the folder of the scripts, in its own process."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SAVE_WEIGHTS": str(weights),
    }
    if not fresh:
        copied = processes.python(words, cwd=SCRIPTS, env=environment)
        return Ran(copied.returncode, copied.out, copied.err, weights, out)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=SCRIPTS,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=240,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, weights, out)


def during(stderr: bytes) -> bytes:
    """Return the stderr before gradscope's own lines, which come at the end."""
    lines = stderr.splitlines(keepends=True)
    own = next((i for i, line in enumerate(lines) if line.startswith(b"gradscope:")), len(lines))
    return b"".join(lines[:own])
