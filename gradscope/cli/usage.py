"""Mistakes on the command line, in the form of all other errors, each with what was meant."""

from __future__ import annotations

import sys

from gradscope import plugins
from gradscope.click import ClickException, MissingParameter, NoSuchOption
from gradscope.errors import Problem, did_you_mean

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
    """What is wrong, and how to write it."""
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
    """That an option after a script may be the script's own."""
    scripts = [word for word in words if word.endswith(".py")]
    if path != ["gradscope", "why"] or not scripts:
        return None
    return f"an option of the script comes after `--`: `gradscope why {scripts[0]} -- {option}`"


def _meant(error: NoSuchOption) -> str | None:
    """The option whose name is close, or the key of the config that goes by this one."""
    word = error.option_name.lstrip("-").lower().replace("_", "-")
    if word in _KEYS and _takes_keys(error):
        return f"it is a key of the config: write `{_KEYS[word]}`, without dashes"
    # Without the dashes: any two options are alike in these.
    options = {option.lstrip("-"): option for option in _options(error)}
    close = did_you_mean(word, options)
    return None if close is None else close.replace("`", "`--", 1)


def _options(error: NoSuchOption) -> list[str]:
    """The long options of the command."""
    if error.ctx is None:
        return []
    return [
        name
        for param in error.ctx.command.get_params(error.ctx)
        for name in param.opts + param.secondary_opts
        if name.startswith("--")
    ]


def _takes_keys(error: NoSuchOption) -> bool:
    return "--set" in _options(error)
