"""The command line: every file in ``commands/`` is a command; the process ends rightly here.

A command's file is imported when the command is asked for. Help and completion read the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, NoReturn, TextIO

import typer

# Typer carries its own copy of click, and exports only some of it.
from typer._click import Command, Context
from typer._click.exceptions import (
    ClickException,
    MissingParameter,
    NoArgsIsHelpError,
    NoSuchOption,
)
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gradscope import plugins
from gradscope.errors import GradscopeError, Problem, did_you_mean
from gradscope.version import __version__

_COMMANDS = "gradscope.commands"
_INTERRUPTED = 130
_BUG = """\
error: gradscope itself failed: {name}: {error}
  = note: this is a bug in gradscope, not in your model
  = help: run again with --debug and report the traceback"""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gradscope {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """See what flows through a PyTorch model, forward and backward, and where it stops.

    MODEL is a YAML config or a spec: `torchvision:resnet18`, `timm:NAME`, `hf:FOLDER_OR_ID`,
    `./net.py:Net`, `pkg.mod:Net`, or `demo`.
    """


class _Commands(TyperGroup):
    """The commands, listed from their files' text; the one that is asked for is imported."""

    @cached_property
    def names(self) -> list[str]:
        return plugins.names(_COMMANDS)

    def list_commands(self, ctx: Context) -> list[str]:
        return self.names

    def get_command(self, ctx: Context, cmd_name: str) -> TyperCommand | None:
        """A command as help and completion show it: its name, and the docstring of its ``run``."""
        if cmd_name not in self.names:
            return None
        help = plugins.docstring(_COMMANDS, cmd_name, "run")
        return TyperCommand(cmd_name, help=help, rich_markup_mode="markdown")

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """The command to run, with its options."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else _imported(args[0]), rest


def _imported(name: str) -> Command:
    """The command behind a name, as typer makes it of the ``run`` in its file."""
    app = typer.Typer(
        add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
    )
    module = plugins.load(_COMMANDS, name)
    app.command(name, cls=getattr(module, "Parser", None))(module.run)
    return get_command(app)


def build() -> typer.Typer:
    """The app with one command per file of ``gradscope/commands``."""
    app = typer.Typer(
        name="gradscope",
        cls=_Commands,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app


def main() -> NoReturn:
    """Run a command and end with the exit code that the README lists."""
    debug = "--debug" in sys.argv
    launch: Callable[[], None] | None = None
    try:
        # Not the app itself: that sets `sys.excepthook`, which a script under `run` would see.
        code = get_command(build())(standalone_mode=False)
        if callable(code):  # somebody else's program, for whose errors nothing here stands
            launch, code = code, 0
        if sys.stdout is not None:  # closed by whoever started the process
            sys.stdout.flush()
        if code == _INTERRUPTED:  # typer turns Ctrl-C into this code, and says nothing
            _say("interrupted")
    except NoArgsIsHelpError:  # the help itself has been printed by now
        code = 0
    except ClickException as error:
        _say(_usage(error).render())
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
        # Typer ends the process with 1 where a pipe was closed, and that is no failure.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        _leave_pipe(sys.stdout)
        code = 0
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        code = _INTERRUPTED
    except OSError as error:
        # Standard output could not be written: a full disk behind it, say.
        if debug:
            _traceback()
        _say(
            f"error: {error.strerror or error}"
            + (f": `{error.filename}`" if error.filename else "")
        )
        code = 2
    except Exception as error:
        if debug:
            _traceback()
        _say(_BUG.format(name=type(error).__name__, error=error))
        code = 4
    if launch is not None:
        launch()
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: ClickException) -> Problem:
    """A mistake on the command line, in the form of all other errors."""
    commands = plugins.names(_COMMANDS)
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    command = words[0] if words and words[0] in commands else None
    lists = f"`{' '.join(filter(None, ['gradscope', command]))} --help` lists what there is"
    if isinstance(error, NoSuchOption):
        close = did_you_mean(error.option_name, error.possibilities or ())
        return Problem(f"unknown option `{error.option_name}`", help=close or lists)
    if isinstance(error, MissingParameter) and error.param is not None:
        return Problem(f"`{error.param.metavar or error.param.name}` is missing", help=lists)
    if words and command is None:
        close = did_you_mean(words[0], commands)
        help = close or f"the commands are {', '.join(commands)}; a MODEL comes after one of these"
        return Problem(f"unknown command `{words[0]}`", help=help)
    return Problem(error.format_message().rstrip("."), help=lists)


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except BrokenPipeError:
        _leave_pipe(sys.stderr)


def _traceback() -> None:
    import traceback

    traceback.print_exc()


def _leave_pipe(stream: TextIO) -> None:
    # Python flushes its streams once more at exit, and would complain about the closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
