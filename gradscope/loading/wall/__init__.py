"""The second wall: what a library may do while it builds what a config names.

The first wall (policy.py, refused_arguments.py) goes by names, and so it is always older than the
libraries. This one asks what is about to happen: Python's audit events (PEP 578) tell of it before
it does. Where the user's own files are called there is no wall. A guard, not a sandbox:
docs/security.md says what gets past it. The questions that
it asks are in events.py.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

from gradscope.errors import ConfigError, Place
from gradscope.loading.wall.code_folders import below, caches, environment
from gradscope.loading.wall.events import QUESTIONS, starts

_walls: list[Wall] = []  # those that are active, the innermost last


class Refused(ConfigError):
    """What a library was about to do; ``started`` where that is a process."""

    started = False


class Wall:
    """A context: what ``name`` stands for is called in it, and may not reach outside the process.

    Args:
        name: what is built, as the config has it.
        place: where the config has it.
        package: of whom the code is, for ``--allow``.
        downloads: whether the config asked for weights or for a model of the hub; then connections
            are made, and the libraries' caches are written.
        owns: whether a file is the user's own, and may be imported.

    Raises:
        ConfigError: at the latest when it ends; says what was about to happen.
    """

    def __init__(
        self,
        name: str,
        place: Place | None = None,
        *,
        package: str = "transformers",
        downloads: bool = False,
        owns: Callable[[Path], bool] = lambda file: False,
    ) -> None:
        self.name, self.place, self.package = name, place, package
        self.downloads, self.owns = downloads, owns
        self.refused: list[Refused] = []

    def __enter__(self) -> None:
        _listen()
        self.frame: FrameType | None = sys._getframe(1)
        # Who runs beside a caller of the Python interface is none of the config's business.
        self.others = {t.ident for t in threading.enumerate()} - {threading.get_ident()}
        self.environment = environment()
        self.caches = caches()
        self.stdin, sys.stdin = sys.stdin, io.StringIO()
        self.offline = _hub_offline(None if self.downloads else True)
        _walls.append(self)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _walls.remove(self)
        sys.stdin, self.frame = self.stdin, None
        _hub_offline(self.offline)
        if not self.downloads and error is not None and _wanted_the_hub(error):
            self.refused.append(self.refusal("connect to the Hugging Face hub"))
        # A library may have caught it: what it came to without it is not what was asked for. Only
        # a program that it starts to look at the machine, such as a compiler, it can do without.
        refusals = [each for each in self.refused if error is not None or not each.started]
        if refusals and not isinstance(error, KeyboardInterrupt):
            raise refusals[0] from (error if error is not refusals[0] else error.__cause__)

    def refusal(self, deed: str) -> Refused:
        """The error for what was about to happen."""
        return Refused(
            f"`{self.name}` was about to {deed}, which no config can make it do",
            place=self.place,
            help="remove the part that needs it; or, only if you trust the config and all that it "
            f"names, lift the wall on the command line: --allow '{self.package}.*'",
            notes=["nothing of it has happened"],
        )

    def may_hold_code(self, path: Path) -> bool:
        """Whether a file is the environment's or the user's own; no cache is."""
        return not below(path, self.caches) and (below(path, self.environment) or self.owns(path))

    def may_write(self, path: Path) -> bool:
        """Whether a file is one of a cache of weights, and weights were asked for."""
        if path == Path(os.devnull):
            return True
        code = below(path, self.caches[:1])
        return self.downloads and not code and below(path, self.caches[1:])


class WalledPartial(functools.partial[Any]):
    """A partial whose call is made within its own wall, whoever calls it."""

    wall: Callable[[], AbstractContextManager[None]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        with self.wall():
            return super().__call__(*args, **kwargs)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _walls or event not in QUESTIONS:
        return
    wall = _walls[-1]
    if threading.get_ident() in wall.others:
        return
    deed = QUESTIONS[event](wall, *args)
    if deed is not None:
        refusal = wall.refusal(deed)
        refusal.started = QUESTIONS[event] is starts
        wall.refused.append(refusal)
        raise refusal


@functools.cache
def _listen() -> None:
    """Once in a process: no audit hook can be taken away again."""
    sys.addaudithook(_hook)


def _hub_offline(wanted: bool | None) -> bool | None:
    """Set whether the hub's client stays offline, and say how it was; None leaves it."""
    constants = sys.modules.get("huggingface_hub.constants")
    before: bool | None = getattr(constants, "HF_HUB_OFFLINE", None)
    if before is not None and wanted is not None:
        constants.HF_HUB_OFFLINE = wanted  # type: ignore[union-attr]
    return before


def _wanted_the_hub(error: BaseException) -> bool:
    """Whether what failed is a file that only the hub has."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if type(cause).__name__ in ("OfflineModeIsEnabled", "LocalEntryNotFoundError"):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False
