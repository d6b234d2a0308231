"""Graphviz as it comes inside the package pygraphviz, with a time limit and clear words."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from dataclasses import dataclass

from gradscope import progress
from gradscope.errors import OptionError

#: Formats that need no layout.
_WITHOUT = "html, dot, mermaid, graphml and json need none"
#: As long as it takes, in seconds: the system's clocks do not take every number.
_LONGEST = 1e6


class TooSlow(Exception):
    """The layout did not end in time."""


class TooLarge(Exception):
    """The drawing ended, but no picture of that size can be shown."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How much of a time limit in seconds is left."""

    end: float

    @classmethod
    def of(cls, seconds: float) -> Clock:
        """A limit that starts now."""
        return cls(time.monotonic() + min(seconds, _LONGEST))

    def left(self) -> float:
        """Seconds until the end, 0 after it."""
        return max(0.0, self.end - time.monotonic())


def require(form: str) -> None:
    """Check that Graphviz is there before anything is computed.

    Raises:
        OptionError: it is not; says how to get it and what works without.
    """
    if importlib.util.find_spec("pygraphviz") is None:
        raise OptionError(
            f"{form} needs Graphviz to lay the graph out, which comes with the package pygraphviz",
            help=f"pip install 'pygraphviz>=2', or choose another format: {_WITHOUT}",
        )


def run(dot: str, form: str, clock: Clock, *, engine: str = "dot") -> bytes:
    """The picture of a DOT text.

    Raises:
        TooSlow: not done in time; the process is ended.
        TooLarge: Graphviz had to shrink the picture, so that nothing in it could be read.
        OptionError: Graphviz failed.
    """
    # -P: neither the working folder nor this one, which has a json.py, may hide a module.
    command = [
        sys.executable,
        "-P",
        "-m",
        "gradscope.diagrams.picture.process",
        engine,
        form,
    ]
    progress.begin("laying out the picture")
    if clock.left() <= 0:
        raise TooSlow
    try:
        done = subprocess.run(
            command, input=dot.encode(), capture_output=True, timeout=clock.left(), check=False
        )
    except subprocess.TimeoutExpired:
        raise TooSlow from None
    complaint = done.stderr.decode(errors="replace").strip()
    if "Scaling by" in complaint:
        raise TooLarge
    if done.returncode or not done.stdout:
        raise _failure(done.returncode, complaint, form)
    return done.stdout


def _failure(code: int, complaint: str, form: str) -> OptionError:
    last = complaint.splitlines()[-1] if complaint else "it wrote nothing"
    why = f"it was ended by signal {-code}" if code < 0 else last
    return OptionError(
        f"Graphviz could not draw this graph as {form}: {why}",
        help=f"--depth 1 draws less; of the other formats, {_WITHOUT}",
        notes=[f"Graphviz said: {last}"] if code < 0 and complaint else (),
    )
