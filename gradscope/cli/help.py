"""Prints ``--help``, and explains mistakes on the command line, each with a suggestion."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from gradscope import plugins
from gradscope.click import ClickException, Context, HelpFormatter, MissingParameter, NoSuchOption
from gradscope.click import Command as AnyCommand
from gradscope.errors import OptionError, Problem, did_you_mean


def refuse_contradictions(parser: Any) -> None:
    """Make a parser refuse a second, different value of a single-valued option."""
    seen: dict[str, tuple[str, Any]] = {}
    for option in {*parser._short_opt.values(), *parser._long_opt.values()}:
        if option.action in ("store", "store_const"):
            option.process = partial(_once, option, option.process, seen)


def _once(
    option: Any, process: Any, seen: dict[str, tuple[str, Any]], value: Any, state: Any
) -> None:
    flag = option.action == "store_const"
    given = option.const if flag else value
    name = (option._long_opts or option._short_opts)[0]
    message = name if flag else f"{name} {value}"
    earlier, before = seen.setdefault(option.dest, (message, given))
    if before != given:
        raise OptionError(
            f"`{earlier}` and `{message}` contradict each other", help="give one of them"
        )
    process(value, state)


#: A command line, and what it does.
Example = tuple[str, str]
#: The panel of ``--help`` and other options that help.
PANEL = "Help"


class _WithExamples(AnyCommand):
    """Prints examples below the help."""

    examples: Sequence[Example] = ()

    def get_params(self, ctx: Context) -> list[Any]:
        """Return arguments and options; flags have no value."""
        return [_shown(param) for param in super().get_params(ctx)]

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Print the help and the examples."""
        super().format_help(ctx, formatter)
        print_examples(self.examples)


class Command(_WithExamples, TyperCommand):
    """A command; a contradiction between its options is an error."""

    def get_params(self, ctx: Context) -> list[Any]:
        """Return arguments and options, with ``--help`` in its own panel."""
        params = super().get_params(ctx)
        for param in params:
            if "--help" in param.opts:
                param.rich_help_panel = PANEL
        return params

    def make_parser(self, ctx: Context) -> Any:
        """Return a parser that refuses two different values for one option."""
        parser = super().make_parser(ctx)
        if not ctx.resilient_parsing:
            refuse_contradictions(parser)
        return parser


class Group(_WithExamples, TyperGroup):
    """The command ``gradscope`` itself, without a subcommand."""


def print_examples(examples: Iterable[Example]) -> None:
    """Print command lines to copy, each on an unbroken line."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    lines = [Text(" Examples")]
    for command, what in examples:
        lines += [Text(f"   # {what}", "dim"), Text(f"   {command}", "bold")]
    for line in lines if len(lines) > 1 else ():
        console.print(line, soft_wrap=True)


def _shown(param: Any) -> Any:
    """Return the parameter without the ``<bool>`` or ``<list[str]>`` that typer adds."""
    if isinstance(param, TyperArgument):
        param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
    elif param.is_flag and param.metavar is None:
        param.metavar = ""
    return param


_COMMANDS = "gradscope.commands"
#: Words for keys of the config that people try as options, and what says the same.
_KEYS = {
    "autocast": "autocast=bfloat16",
    "backward": "backward.repeats=2",
    "batch": "input.batch=8",
    "batch-size": "input.batch=8",
    "checkpoint": "checkpoint=FILE",
    "freeze": 'freeze=["**", "!fc.**"]',
    "image": "input.image=FILE",
    "input": "input.shape=[2,3,224,224]",
    "loss": "loss=cross_entropy",
    "lr": "optimizer.lr=0.01",
    "mode": "mode=eval",
    "optimizer": "optimizer=adam",
    "replace": "replace.fc._target_=torch.nn.Identity",
    "shape": "input.shape=[2,3,224,224]",
    "target": "target=[3,7]",
    "text": "input.text=TEXT",
    "weights": "weights=DEFAULT",
}


def problem_of(error: ClickException) -> Problem:
    """Return the problem with the command line, and its remedy."""
    path, room, commands = ["gradscope"], _COMMANDS, plugins.commands(_COMMANDS)
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    while words and words[0] in commands:
        path.append(words.pop(0))
        inner = path[-1] in plugins.folders(room)
        room = f"{room}.{path[-1].replace('-', '_')}"
        commands = plugins.commands(room) if inner else []
    lists = f"`{' '.join(path)} --help` lists them"
    if isinstance(error, NoSuchOption):
        help = _of_script(error.option_name, path, words) or _meant(error) or lists
        return Problem(f"unknown option `{error.option_name}`", help=help)
    if isinstance(error, MissingParameter) and error.param is not None:
        return Problem(f"`{error.param.metavar or error.param.name}` is missing", help=lists)
    if words and commands:
        close = did_you_mean(words[0], commands)
        help = close or f"the commands are {', '.join(commands)}; a MODEL comes after one of these"
        return Problem(f"unknown command `{words[0]}`", help=help)
    return Problem(error.format_message().rstrip("."), help=lists)


def _of_script(option: str, path: list[str], words: list[str]) -> str | None:
    """Return the advice that an option after a script may be the script's own."""
    scripts = [word for word in words if word.endswith(".py")]
    if path != ["gradscope", "why"] or not scripts:
        return None
    return f"an option of the script comes after `--`: `gradscope why {scripts[0]} -- {option}`"


def _meant(error: NoSuchOption) -> str | None:
    """Return the option with a close name, or the config key with this name."""
    word = error.option_name.lstrip("-").lower().replace("_", "-")
    if word in _KEYS and "--set" in _options(error):
        return f"it is a key of the config: write `{_KEYS[word]}`, without dashes"
    # Without the dashes: any two options are alike in these.
    options = {option.lstrip("-"): option for option in _options(error)}
    close = did_you_mean(word, options)
    return None if close is None else close.replace("`", "`--", 1)


def _options(error: NoSuchOption) -> list[str]:
    """Return the long options of the command."""
    if error.ctx is None:
        return []
    return [
        name
        for param in error.ctx.command.get_params(error.ctx)
        for name in param.opts + param.secondary_opts
        if name.startswith("--")
    ]
