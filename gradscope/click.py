"""Parts of click that typer does not export: the only file that knows their place.

Typer carries its own copy of click, below a private name.
"""

from __future__ import annotations

try:
    from typer._click import Command, Context, HelpFormatter
    from typer._click.exceptions import (
        ClickException,
        MissingParameter,
        NoArgsIsHelpError,
        NoSuchOption,
    )
    from typer._click.shell_completion import CompletionItem, add_completion_class
    from typer._completion_classes import BashComplete
    from typer._completion_shared import COMPLETION_SCRIPT_BASH, _completion_scripts
except ImportError as error:
    import typer

    raise ImportError(
        f"gradscope does not work with typer {typer.__version__}: {error}. "
        "`pip install 'typer~=0.29.0'` installs one that it works with"
    ) from error

#: The scripts that typer writes for shells, by the shell's name.
COMPLETION_SCRIPTS: dict[str, str] = _completion_scripts

__all__ = [
    "COMPLETION_SCRIPTS",
    "COMPLETION_SCRIPT_BASH",
    "BashComplete",
    "ClickException",
    "Command",
    "CompletionItem",
    "Context",
    "HelpFormatter",
    "MissingParameter",
    "NoArgsIsHelpError",
    "NoSuchOption",
    "add_completion_class",
]
