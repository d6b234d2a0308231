"""``gradscope run``: a script under observation, from its launch to the end of the process."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass

from gradscope.errors import message_of
from gradscope.training.import_hook import ImportHook
from gradscope.training.launch import Script
from gradscope.training.processes import OtherProcesses
from gradscope.training.session import RunSettings, Session

#: How often it is checked whether torch was imported past the hook, until it is imported.
_CHECK_SECONDS = 60.0


@dataclass(slots=True)
class Launch:
    """A script that is ready to be run; called, it takes the process to its end.

    It is called where nothing stands around it that deals with exceptions, so that the interpreter
    does with the script's what it always does.

    Args:
        script: what is run.
        settings: how it is looked at.
        summary: what is said at the end.
        judged: whether what was found makes the process fail where the script did not.
    """

    script: Script
    settings: RunSettings
    summary: Callable[[Session], str]
    judged: Callable[[Session], bool]

    def __call__(self) -> None:
        """Run the script."""
        if not self.settings.records_here:
            self.script.run()
            return
        session = Session.begun(self.script.words, tuple(self.script.arguments), self.settings)
        session.others = OtherProcesses()
        ended = "0"
        said: list[bool] = []  # whether the summary is out

        def last() -> None:
            # The first to be registered is the last to run: the script's own may still train.
            session.finish(ended)
            session.print_summary(self.summary)
            said.append(True)

        def at_once(code: int, replaced: str | None) -> None:
            if said:  # what ends a process at the very end may do so by `os._exit`
                return
            if replaced is not None:
                session.unobserved.append(replaced)
            session.finish(str(code))
            session.print_summary(self.summary, flush=False)

        atexit.register(last)
        session.others.when_ended(at_once)
        hook = ImportHook("torch", session.observe)
        hook.install()
        session.call_each(_CHECK_SECONDS, hook.check)
        try:
            self.script.run()
        except SystemExit as stop:
            ended = _code(stop)
            if ended != "0":
                raise
        except BaseException as error:
            ended = f"{type(error).__name__}: {message_of(error)}".rstrip(": ").splitlines()[0]
            session.script_failed(error)
            raise
        if self.judged(session):
            ended = "1"
            raise SystemExit(1)


def _code(stop: SystemExit) -> str:
    if stop.code is None:
        return "0"
    return str(stop.code) if isinstance(stop.code, int) else f"1: {stop.code}"
