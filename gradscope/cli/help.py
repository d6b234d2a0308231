"""A command as its ``--help`` shows it: options in panels, examples below them.

The panel of an option is beside it in ``commands/``; the examples are a command file's
``EXAMPLES``, each a command line and what it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from gradscope.cli.contradictions import refuse_contradictions
from gradscope.click import Context, HelpFormatter

#: A command line, and what it does.
Example = tuple[str, str]
#: The panel of ``--help``, beside what else helps.
PANEL = "Help"


class Command(TyperCommand):
    """A command with examples, whose options do not contradict themselves."""

    examples: Sequence[Example] = ()

    def get_params(self, ctx: Context) -> list[Any]:
        """Arguments and options, flags without a value."""
        params = [_shown(param) for param in super().get_params(ctx)]
        for param in params:
            if "--help" in param.opts:
                param.rich_help_panel = PANEL
        return params

    def make_parser(self, ctx: Context) -> Any:
        """The parser; an option that is given twice with two values is refused."""
        parser = super().make_parser(ctx)
        if not ctx.resilient_parsing:
            refuse_contradictions(parser)
        return parser

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Print the help, and the examples below it."""
        super().format_help(ctx, formatter)
        print_examples(self.examples)


class Group(TyperGroup):
    """The command line itself, before a command is named."""

    examples: Sequence[Example] = ()

    def get_params(self, ctx: Context) -> list[Any]:
        """The options, flags without a value."""
        return [_shown(param) for param in super().get_params(ctx)]

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Print the help, and the examples below it."""
        super().format_help(ctx, formatter)
        print_examples(self.examples)


def print_examples(examples: Iterable[Example]) -> None:
    """Command lines to copy: each on its own line, which nothing breaks."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    lines = [Text(" Examples")]
    for command, what in examples:
        lines += [Text(f"   # {what}", "dim"), Text(f"   {command}", "bold")]
    for line in lines if len(lines) > 1 else ():
        console.print(line, soft_wrap=True)


def _shown(param: Any) -> Any:
    """The parameter without the ``<bool>`` and ``<list[str]>`` that typer shows where it can."""
    if isinstance(param, TyperArgument):
        param.display_type_rich = _no_type  # type: ignore[method-assign]
    elif param.is_flag and param.metavar is None:
        param.metavar = ""
    return param


def _no_type(ctx: Context) -> str | None:
    return None
