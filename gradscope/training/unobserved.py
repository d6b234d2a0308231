"""The parts of a script that are not observed, and the messages on them; and the processes that it
starts, or becomes.
"""

from __future__ import annotations

import os
import shlex
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradscope.errors import message_of
from gradscope.typeset.numbers import duration, plural

if TYPE_CHECKING:
    from gradscope.training.observer import Observer

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


_BLIND = "gradscope could not observe this script"
#: The script trains tensors that no module holds.
NO_MODEL = (
    "no `torch.nn.Module` that trains was found: layers are not sampled, and rules on layers cannot"
    " judge this run"
)
#: A framework started the other processes of a distributed training, and this one is rank 0.
ONE_OF_SEVERAL = (
    "only this process was observed; the script started others that train with it. To observe all: "
    "`torchrun --nproc-per-node N -m gradscope run SCRIPT.py`"
)


def attached_late(seconds: float, steps: int) -> str:
    """Return the notice that the run began later than the training."""
    before = f"the {plural(steps, 'step')} before" if steps else "earlier steps"
    return (
        f"observed from {duration(seconds)} on, without {before}: gradscope's import hook missed "
        "the import of torch"
    )


#: In the message of PyTorch's error.
_NO_COMPILER = "InvalidCxxCompiler"


def why_no_step(
    script: str,
    observer: Observer | None,
    others: OtherProcesses | None,
    raised: str | None,
) -> list[str]:
    """Return sentences that explain a run without steps: what happened in this process, and in
    others.

    Args:
        script: as on Python's command line.
        observer: None if gradscope did not see torch imported.
        others: the processes that the script started; None if unknown.
        raised: a sentence on the exception that ended the script; None without one.
    """
    remarks = [raised or _here(observer)]
    started = None if others is None else others.started(script)
    return [*remarks, started] if started else remarks


def raised_early(error: BaseException) -> str:
    """Return the sentence on an error of the script before its first step."""
    if _NO_COMPILER in message_of(error):
        return (
            "torch.compile found no C++ compiler: install one, or set CXX to it (`gradscope doctor`"
            ' looks for it); `backend="aot_eager"` needs none'
        )
    return f"the script raised `{type(error).__name__}` before its first step"


def _here(observer: Observer | None) -> str:
    if observer is None:
        if "torch" not in sys.modules:
            return "the script did not import torch in this process"
        return f"{_BLIND}: its import hook missed the import of torch"
    if observer.backwards:
        return f"no optimizer made a step; `backward` was called {_times(observer.backwards)}"
    unseen = _unseen_training()
    if unseen:
        return f"{_BLIND}: {unseen}"
    if observer.gradients_were_asked:
        return (
            "no optimizer stepped and nothing called `backward`; gradscope does not count "
            "`torch.autograd.grad` as a step"
        )
    return "no step in this process: no optimizer stepped, and nothing called `backward`"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _unseen_training() -> str | None:
    """Return traces of a training that the observer's patches missed."""
    from gradscope.training.discovery import live_optimizers, outermost_modules, steps_made

    for optimizer in live_optimizers():
        steps = steps_made(optimizer)
        if steps:
            return (
                f"`{type(optimizer).__name__}` made {plural(steps, 'step')} without calling its "
                "hooks"
            )
    for module in outermost_modules():
        held = sum(p.grad is not None for p in module.parameters())
        if held:
            name = type(module).__name__
            return (
                f"{plural(held, 'parameter')} of `{name}` got gradients without calling its hooks"
            )
    return None
