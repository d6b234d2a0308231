"""The processes that gradscope does not observe: those that the script starts, or becomes."""

from __future__ import annotations

import os
import shlex
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gradscope.typeset.numbers import duration

#: Processes that took less together have trained nothing: to import torch takes longer.
_LEAST_SECONDS = 1.0
#: Number of environment variables that are written out in a command.
_MOST_VARIABLES = 4
#: Modules that start workers, imported for that purpose alone.
_STARTERS = {
    "ray": "Ray",
    "multiprocessing.popen_spawn_posix": "multiprocessing (spawn)",
    "multiprocessing.popen_spawn_win32": "multiprocessing (spawn)",
    "multiprocessing.popen_forkserver": "multiprocessing (forkserver)",
    "multiprocessing.popen_fork": "multiprocessing (fork)",
}
_IN_WORKERS = "in the function that trains, put `with gradscope.watch(model):` around the loop"
_IN_COMMAND = "in the command that starts them, put `-m gradscope run` before the script"
#: Launchers, which take gradscope as the module that they start.
_LAUNCHERS = {
    "-m torch.distributed.run": "torchrun [OPTIONS] -m gradscope run SCRIPT.py",
    "-m torch.distributed.launch": "torchrun [OPTIONS] -m gradscope run SCRIPT.py",
    "-m accelerate.commands.launch": "accelerate launch [OPTIONS] -m gradscope run SCRIPT.py",
}


class OtherProcesses:
    """Counts the processes that this one starts from now on."""

    def __init__(self) -> None:
        self._process, self._environment = os.getpid(), dict(os.environ)
        self._before = _seconds_of_children()
        self.forks = 0
        _known.add(self)

    def started(self, script: str) -> str | None:
        """Return how other processes were started, and how to observe them.

        Args:
            script: the script of this process, as on Python's command line: ``-m
            torch.distributed.run``.

        Returns:
            A sentence; None if there were none, or none that did anything.
        """
        if script in _LAUNCHERS:
            return f"the launcher's processes were not observed: use `{_LAUNCHERS[script]}`"
        took = _seconds_of_children() - self._before
        if not self.forks and took < _LEAST_SECONDS:
            return None
        how = next((name for module, name in _STARTERS.items() if module in sys.modules), None)
        help = _IN_WORKERS if how or self.forks else _IN_COMMAND
        how = how or ("os.fork" if self.forks else "subprocess")
        seconds = f"; {duration(took)} of processor time" if took >= _LEAST_SECONDS else ""
        return f"the script's other processes were not observed (by {how}{seconds}): {help}"

    def replaced_by(self, words: Sequence[str], environment: Mapping[str, str]) -> str:
        """Return the sentence that this process was replaced by another, and how to observe that
        one.
        """
        message = (
            f"the script replaced its process by `{shlex.join(words)}`, which was not observed"
        )
        if not words or not Path(words[0]).name.startswith("python"):
            return message
        before = self._environment
        changed = [f"{k}={shlex.quote(v)}" for k, v in environment.items() if before.get(k) != v]
        variables = changed if len(changed) <= _MOST_VARIABLES else []
        script = words if words[1:2] == ["-u"] else words[1:]
        return f"{message}: use `{' '.join([*variables, 'gradscope run', shlex.join(script)])}`"

    def when_ended(self, act: Callable[[int, str | None], None]) -> ExitStack:
        """Call ``act`` if the process ends without ``atexit``, until the stack is closed.

        It gets the exit code, or, if another program replaces the process, a sentence on that.
        """
        patches = ExitStack()

        def leave(original: Callable[[int], Any]) -> Callable[[int], Any]:
            def _exit(status: int) -> Any:
                if os.getpid() == self._process:
                    act(status, None)
                return original(status)

            return _exit

        def become(original: Callable[..., Any]) -> Callable[..., Any]:
            def execute(path: Any, args: Any, *env: Any) -> Any:
                if os.getpid() == self._process and os.access(path, os.X_OK):
                    act(0, self.replaced_by([*map(os.fsdecode, args)], _text(*env)))
                return original(path, args, *env)

            return execute

        for name, make in (("_exit", leave), ("execv", become), ("execve", become)):
            original = getattr(os, name)
            setattr(os, name, make(original))
            patches.callback(setattr, os, name, original)
        return patches


def _text(env: Mapping[Any, Any] | None = None) -> dict[str, str]:
    given = os.environ if env is None else env
    return {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}


def _seconds_of_children() -> float:
    """Return the CPU time of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


#: A handler can be registered once and never taken back.
_known: weakref.WeakSet[OtherProcesses] = weakref.WeakSet()


def _forked() -> None:
    for one in tuple(_known):
        one.forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_forked)
