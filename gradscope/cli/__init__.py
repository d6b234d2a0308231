"""The command line: every file in ``commands/`` is a command; exit codes are set here.

Only the requested command's file is imported. Help and completion read the text of the others.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from types import FrameType
from typing import Annotated, NoReturn, TextIO

import typer
from typer.core import TyperCommand
from typer.main import get_command

from gradscope import plugins
from gradscope.cli import completion
from gradscope.cli.help import Command, Example, Group, problem_of
from gradscope.click import ClickException, Context, NoArgsIsHelpError
from gradscope.click import Command as AnyCommand
from gradscope.errors import GradscopeError, Terminated, is_out_of_memory, message_of, visible
from gradscope.references import as_written
from gradscope.version import __version__

_COMMANDS = "gradscope.commands"
_EXAMPLES: Sequence[Example] = (
    ("gradscope inspect", "Activations and gradients of the bundled digit network."),
    ("gradscope inspect torchvision:resnet18 --depth 1", "A ResNet, a row for each stage."),
    ("gradscope why ./net.py:Net", "Why parameters of your own network have no gradient."),
    ("gradscope why train.py", "Why a training script does not learn, from its first 50 steps."),
    ("gradscope run train.py", "Record the full training: NaN and Inf, loss, gradients."),
    ("gradscope init && gradscope check model.yaml", "Write a first config, then check it."),
)
_INTERRUPTED = 130
_BUG = """\
error: internal error in gradscope: {name}: {error}
  = note: this is a bug in gradscope, not in your model
  = help: run again with --debug and report the traceback"""

_MEMORY = """\
error: there is not enough memory
  = help: use less: a smaller batch or model, fewer layers (`-l`); `--device meta` shows shapes
    without memory"""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gradscope {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Find out why a PyTorch model does not train: gradients, NaN, loss, data, training loop.

    MODEL is a YAML config or a spec: `torchvision:resnet18`, `timm:NAME`, `hf:FOLDER_OR_ID`,
    `./net.py:Net`, `pkg.mod:Net`, or `demo`.
    """


class _Commands(Group):
    """The commands of a package, listed from their files' text; only the requested one is imported.

    A folder in the package is a command with subcommands.
    """

    room = _COMMANDS

    @cached_property
    def names(self) -> list[str]:
        return plugins.commands(self.room)

    def list_commands(self, ctx: Context) -> list[str]:
        return self.names

    def get_command(self, ctx: Context, cmd_name: str) -> TyperCommand | None:
        """Return a command for help and completion: its name, and the docstring of its ``run``."""
        if cmd_name not in self.names:
            return None
        help = plugins.docstring(self.room, cmd_name, "run")
        return TyperCommand(cmd_name, help=help, rich_markup_mode="markdown")

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, AnyCommand | None, list[str]]:
        """Return the command to run, with its options."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else _imported(self.room, args[0]), rest


@cache
def _imported(room: str, name: str) -> AnyCommand:
    """Return the command of a name, which typer makes from the ``run`` in its file.

    A process that runs several commands, as tests do, makes each once.
    """
    if name in plugins.folders(room):
        inner = f"{room}.{name.replace('-', '_')}"
        folder = importlib.import_module(inner)
        return get_command(_group(name, inner, folder.run, folder.EXAMPLES))
    single = typer.Typer(
        add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
    )
    file = plugins.load(room, name)
    parser = getattr(file, "Parser", None)  # for a command with its own parser
    kind = Command if parser is None else type("Command", (parser, Command), {})
    single.command(name, cls=kind)(file.run)
    command = get_command(single)
    assert isinstance(command, Command)
    command.examples = file.EXAMPLES
    return command


def _group(
    name: str, room: str, run: Callable[..., None], examples: Sequence[Example]
) -> typer.Typer:
    """Return the app with one command per file of a package."""
    made = typer.Typer(
        name=name,
        cls=type("Commands", (_Commands,), {"room": room, "examples": examples}),
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=room == _COMMANDS,
    )
    made.callback()(run)
    return made


def app() -> typer.Typer:
    """Return the app with one command per file of ``gradscope/commands``."""
    return _group("gradscope", _COMMANDS, _root, _EXAMPLES)


def main() -> NoReturn:
    """Run a command and end with one of the exit codes in the README."""
    debug = "--debug" in sys.argv
    launch: Callable[[], None] | None = None
    ending = _Ending()
    try:
        # Not the app: that sets `sys.excepthook`, which a script under `run` would notice.
        command = get_command(app())
        completion.install()  # after typer's own, which it replaces
        code = command(standalone_mode=False)
        if callable(code):  # another program, whose errors are its own
            launch, code = code, 0
        if sys.stdout is not None:  # closed by the caller that started the process
            sys.stdout.flush()
        if code == _INTERRUPTED:  # typer turns Ctrl-C into this code, and says nothing
            _say(ending.words)
    except NoArgsIsHelpError:  # the help itself has been printed by now
        code = 0
    except ClickException as error:
        _say(problem_of(error).render())
        code = 2
    except GradscopeError as error:
        if debug:
            _traceback()
        _say(error.render())
        code = error.exit_code
    except BrokenPipeError:
        _leave_pipe(sys.stdout)
        code = 0
    except SystemExit as stop:
        if _users(stop):
            code = 3
        # If a pipe was closed, Typer ends the process with 1, although that is no failure.
        elif isinstance(stop.__context__, BrokenPipeError):
            _leave_pipe(sys.stdout)
            code = 0
        else:
            raise
    except (KeyboardInterrupt, typer.Abort):
        _say(ending.words)
        code = _INTERRUPTED
    except BaseException as error:
        if debug:
            _traceback()
        code = _unforeseen(error)
    ending.put_back()
    if launch is not None:
        launch()
    code = code if isinstance(code, int) else 0
    sys.exit(ending.code if code == _INTERRUPTED else code)


class _Ending:
    """Ends the process at a signal as at Ctrl-C, so that no file stays half written."""

    of_command_line = True

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        self._numbers = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
        for number in self._numbers:
            signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        raise Terminated(f"ended by {self.received.name}")

    def put_back(self) -> None:
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)

    @property
    def code(self) -> int:
        """Exit code of an interrupted process, as shells define it."""
        return _INTERRUPTED if self.received is None else 128 + self.received

    @property
    def words(self) -> str:
        """Message at the end of an interrupted process."""
        return "interrupted" if self.received is None else f"ended by {self.received.name}"


def _unforeseen(error: BaseException) -> int:
    """Report an unforeseen error, and return the exit code."""
    if _users(error):
        return 3
    if isinstance(error, OSError):
        # Standard output could not be written: for example a full disk.
        file = f": `{error.filename}`" if error.filename else ""
        _say(f"error: {error.strerror or error}{file}")
        return 2
    if is_out_of_memory(error):
        _say(_MEMORY)
        return 2
    _say(_BUG.format(name=type(error).__name__, error=message_of(error)))
    return 4


def _users(error: BaseException) -> bool:
    """Report the error if the user's code raised it; return True if so."""
    if "torch" not in sys.modules:  # nothing of the user's can have run
        return False
    try:
        from gradscope.api.failing import users_problem
    except MemoryError:  # there was none to import what runs a model
        return False

    problem = users_problem(error)
    if problem is not None:
        _say(problem.render())
    return problem is not None


def _say(text: str) -> None:
    try:
        print(visible(as_written(text)), file=sys.stderr)
    except OSError:  # a closed pipe, or the user's code closed the descriptor
        _leave_pipe(sys.stderr)


def _traceback() -> None:
    import traceback

    _say(traceback.format_exc().rstrip())


def _leave_pipe(stream: TextIO) -> None:
    # Python flushes its streams again at exit, and would complain about the closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
