"""A command in this process, as its own process would end, and what no end may show."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from gradscope import cli

#: What a command ends with that is no bug of gradscope's.
CONTRACT = (0, 1, 2, 3, 129, 130, 143)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    def faults(self) -> list[str]:
        """Return the violations of the contract, whatever the input was."""
        found = [] if self.code in CONTRACT else [f"exit code {self.code}"]
        if "Traceback (most recent call last)" in self.err:
            found.append("a traceback")
        if self.code == 2 and self.out:
            found.append("text on standard output beside exit 2")
        if self.code in (2, 3) and "error" not in self.err:
            found.append("no message")
        texts = (("standard output", self.out), ("standard error", self.err))
        return found + [f"{raw!r} on {name}" for name, text in texts for raw in unprintable(text)]


def gradscope(words: Sequence[str], *, encoding: str = "utf-8") -> Outcome:
    """Run ``gradscope WORDS…``, with streams of an encoding."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors, newline="")
        for errors in ("strict", "backslashreplace")
    )
    before = sys.argv
    sys.argv = ["gradscope", *words]
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
        texts = [_text(stream) for stream in (out, err)]
    return Outcome(code if isinstance(code, int) else 0, *texts)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    binary = stream.buffer
    assert isinstance(binary, io.BytesIO)
    return binary.getvalue().decode("utf-8", "surrogateescape")


def unprintable(text: str) -> list[str]:
    """The characters of a text that could drive a terminal or pass for others."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return sorted({c for c in text if c not in "\n\r" and unicodedata.category(c) in hidden})


def deaf(folder: str) -> None:
    """In its own process: a model that hears no interrupt, under a time limit."""
    os.chdir(folder)
    words = ["inspect", "./net.py:Net", "model.kind=Deaf", "input.shape=[2, 1, 28, 28]"]
    with (
        mock.patch("gradscope.commands._running.GRACE", 0.1),
        Path("error").open("w") as sys.__stderr__,
    ):
        gradscope([*words, "--timeout", "2"])
