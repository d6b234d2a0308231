"""The command line: every file in ``commands/`` is a command; the process ends rightly here."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

# Typer carries its own copy of click, and exports only some of its exceptions.
from typer._click.exceptions import ClickException

import gradscope
from gradscope import plugins
from gradscope.errors import GradscopeError

_BUG = """\
error: gradscope itself failed: {name}: {error}
  = note: this is a bug in gradscope, not in your model
  = help: run again with --debug and report the traceback"""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gradscope {gradscope.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """See what flows through a PyTorch model, forward and backward, and where it stops.

    MODEL is a YAML config or a spec: `torchvision:resnet18`, `timm:NAME`, `hf:FOLDER_OR_ID`,
    `./net.py:Net`, `pkg.mod:Net`, or `demo`.
    """


def build() -> typer.Typer:
    """The app with one command per file of ``gradscope/commands``."""
    app = typer.Typer(
        name="gradscope",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in plugins.names("gradscope.commands"):
        app.command(name)(plugins.load("gradscope.commands", name).run)
    return app


def main() -> NoReturn:
    """Run a command and end with the exit code that the README lists."""
    debug = "--debug" in sys.argv
    try:
        code = build()(standalone_mode=False)
        sys.stdout.flush()
    except ClickException as error:
        _say(
            f"error: {error.format_message()}\n  = help: `{_command()} --help` lists what there is"
        )
        code = 2
    except GradscopeError as error:
        if debug:
            _traceback()
        _say(error.render())
        code = error.exit_code
    except BrokenPipeError:
        _leave_pipe()
        code = 0
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        code = 130
    except OSError as error:
        # The report itself could not be written: a full disk behind standard output, say.
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
    sys.exit(code if isinstance(code, int) else 0)


def _command() -> str:
    words = [word for word in sys.argv[1:2] if word in plugins.names("gradscope.commands")]
    return " ".join(["gradscope", *words])


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except BrokenPipeError:
        _leave_pipe()


def _traceback() -> None:
    import traceback

    traceback.print_exc()


def _leave_pipe() -> None:
    # Python flushes standard output once more at exit, and would complain about the closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
