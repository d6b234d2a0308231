"""Damaged files of gradscope's own: reports, graphs, answers, comparisons, runs, caches."""

from __future__ import annotations

import contextlib
import json
import tempfile
from functools import cache
from pathlib import Path

from hostile.commands import gradscope
from hypothesis import strategies as st

from fuzz.attempts import Attempt
from fuzz.values import damaged, trees
from gradscope import demo

_FORMATS = st.sampled_from(["terminal", "json", "csv", "markdown", "github", "sarif"])
#: How each kind is made, and the commands that read it from the file `saved`.
_KINDS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "report": (("inspect", "demo"), (("show", "saved"), ("diff", "saved", "saved"))),
    "check": (("check", "demo:lecture"), (("show", "saved"),)),
    "graph": (("graph", "demo"), (("graph", "saved"),)),
    "answers": (("why", "demo:lecture"), (("why", "saved"),)),
    "comparison": (("diff", "demo", "demo:lecture"), (("diff", "saved"),)),
}
_DIGITS = Path(demo.__file__).parent / "digits"
_NEIGHBOURS = (
    *("features", "neighbors", str(_DIGITS / "digit-1.png"), str(_DIGITS), "-m", "demo"),
    *("-o", "made.json", "--cache", "made.safetensors"),
)
_READERS_OF_RUNS = [
    ("show", "saved.db"),
    ("show", "saved.db", "-f", "json"),
    ("show", "saved.db", "--step", "1"),
    ("why", "saved.db"),
    ("diff", "saved.db", "saved.db"),
    ("export", "saved.db", "--to", "csv", "made.csv"),
]


@cache
def _saved(kind: str) -> str:
    return gradscope([*_KINDS[kind][0], "-f", "json"]).out


@cache
def _run() -> bytes:
    from commands import run_files

    with tempfile.TemporaryDirectory() as folder:
        return run_files.with_findings(Path(folder, "run.db")).read_bytes()


@cache
def _cache() -> bytes:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        gradscope(_NEIGHBOURS)
        return Path("made.safetensors").read_bytes()


@st.composite
def records(draw: st.DrawFn) -> Attempt:
    """A saved record in which a value or two are something else, or whose bytes are damaged."""
    kind = draw(st.sampled_from(sorted(_KINDS)))
    text = _saved(kind)
    if draw(st.integers(0, 3)):
        content = json.dumps(draw(trees(json.loads(text)))).encode()
    else:
        content = draw(damaged(text.encode()))
    command = draw(st.sampled_from(_KINDS[kind][1]))
    words = (*command, "-f", draw(_FORMATS)) if draw(st.booleans()) else command
    return Attempt("record", words, {"saved": content})


@st.composite
def runs(draw: st.DrawFn) -> Attempt:
    """A run's file whose bytes are damaged."""
    content = draw(damaged(_run()))
    return Attempt("record", draw(st.sampled_from(_READERS_OF_RUNS)), {"saved.db": content})


@st.composite
def baselines(draw: st.DrawFn) -> Attempt:
    """A baseline of findings in which a value or two are something else."""
    content = json.dumps(draw(trees(json.loads(_saved("check")))))
    words = ("check", "demo", "--baseline", "saved")
    return Attempt("record", words, {"saved": content})


@st.composite
def caches(draw: st.DrawFn) -> Attempt:
    """A cache of features whose bytes are damaged."""
    content = draw(damaged(_cache()))
    return Attempt("record", _NEIGHBOURS, {"made.safetensors": content})
