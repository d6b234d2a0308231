"""Parts of click that typer does not export.

Typer has its own copy of click under a private name; only this file imports from there.
"""

from __future__ import annotations

try:
    from typer._click import Command as Command
    from typer._click import Context as Context
    from typer._click import HelpFormatter as HelpFormatter
    from typer._click.exceptions import ClickException as ClickException
    from typer._click.exceptions import MissingParameter as MissingParameter
    from typer._click.exceptions import NoArgsIsHelpError as NoArgsIsHelpError
    from typer._click.exceptions import NoSuchOption as NoSuchOption
    from typer._click.shell_completion import CompletionItem as CompletionItem
    from typer._click.shell_completion import add_completion_class as add_completion_class
    from typer._completion_classes import BashComplete as BashComplete
    from typer._completion_shared import COMPLETION_SCRIPT_BASH as COMPLETION_SCRIPT_BASH
    from typer._completion_shared import _completion_scripts
except ImportError as error:
    import typer

    raise ImportError(
        f"gradscope does not work with typer {typer.__version__}: {error}. "
        "`pip install 'typer~=0.29.0'` installs one that it works with"
    ) from error

#: The scripts that typer writes for shells, by the shell's name.
COMPLETION_SCRIPTS: dict[str, str] = _completion_scripts
