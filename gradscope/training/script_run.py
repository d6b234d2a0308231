"""``gradscope run``: a script under observation, from its launch to the end of the process."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gradscope.errors import message_of
from gradscope.training.import_hook import ImportHook
from gradscope.training.launch import Script
from gradscope.training.session import RunSettings, Session
from gradscope.training.unobserved import OtherProcesses

#: Seconds between checks if torch was imported past the hook, until it is.
_CHECK_SECONDS = 60.0


class Change(Protocol):
    """A change in a script's process, as an arm of an experiment makes it."""

    def begin(self) -> None:
        """Called before the script starts; torch is not imported yet."""

    def install(self) -> None:
        """Called when the script has imported torch."""

    def end(self) -> None:
        """Called when the script and its record have ended."""


@dataclass(slots=True)
class ScriptRun:
    """Runs a script to the end of the process when called.

    No exception handler may be around the call, so that the interpreter handles the script's
    exceptions as usual.

    Args:
        script: the script.
        settings: the settings of its observation.
        summary: makes the lines for the end.
        judged: True if the findings make the process fail although the script succeeded.
        change: a change in the process; None: no change.
    """

    script: Script
    settings: RunSettings
    summary: Callable[[Session], str]
    judged: Callable[[Session], bool]
    change: Change | None = None

    def __call__(self) -> None:
        """Run the script."""
        if not self.settings.records_here:
            self.script.run()
            return
        session = Session.begun(self.script.words, tuple(self.script.arguments), self.settings)
        session.others = OtherProcesses()
        ended, interrupted = "0", False
        printed: list[bool] = []  # whether the summary is out

        def finish(code: str) -> None:
            # Ctrl-C ends a wait for a tracker; the script has ended.
            with contextlib.suppress(KeyboardInterrupt):
                session.finish(code)

        def last() -> None:
            # The first to be registered is the last to run: the script's own may still train.
            finish(ended)
            session.print_summary(self.summary)
            printed.append(True)
            if self.change is not None:
                self.change.end()
            if interrupted:
                _end_by_signal()

        def at_once(code: int, replaced: str | None) -> None:
            if printed:  # what ends a process at the very end may do so by `os._exit`
                return
            if replaced is not None:
                session.unobserved.append(replaced)
            finish(str(code))
            session.print_summary(self.summary, flush=False)
            if self.change is not None:
                self.change.end()

        atexit.register(last)
        session.others.when_ended(at_once)

        def imported(late: bool) -> None:
            session.observe(late)
            if self.change is not None:
                self.change.install()

        if self.change is not None:
            self.change.begin()
        hook = ImportHook("torch", imported)
        hook.install()
        session.call_each(_CHECK_SECONDS, hook.check)
        try:
            with session.limit.interrupting():
                self.script.run()
        except BaseException as error:
            # An error after gradscope ended the script early is no failure of the script.
            if session.limit.reached is None:
                ended, interrupted = _ended(error), type(error) is KeyboardInterrupt
                if not isinstance(error, SystemExit):
                    session.script_failed(error)
                if ended != "0":
                    raise
        if self.judged(session):
            ended = "1"
            raise SystemExit(1)


def _end_by_signal() -> None:
    """Have Python end the process by SIGINT, as it does after an unhandled Ctrl-C.

    Python forgets that Ctrl-C was not handled if it runs code from text, as the definition of a
    dataclass does; and the end of a run imports a tracker's package and its page.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


def _ended(error: BaseException) -> str:
    """Return the exit code, or the exception."""
    if not isinstance(error, SystemExit):
        return f"{type(error).__name__}: {message_of(error)}".rstrip(": ").splitlines()[0]
    if error.code is None:
        return "0"
    return str(error.code) if isinstance(error.code, int) else f"1: {error.code}"
