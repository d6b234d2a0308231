"""Finds options of gradscope that come after the script, so that the script gets them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from gradscope.click import Context
from gradscope.commands._write import say
from gradscope.errors import few
from gradscope.training.launch import Script

#: A script with one of these may read its arguments, or import what does.
_READS = re.compile(r"\b(argv|args|opts|cfg|config|click|typer|fire|hydra|absl|\w*[Pp]arse\w*)\b")
_EVERYWHERE = {"--help", "--version"}


def note_passed_on(context: Context, script: Script) -> None:
    """Print a note on options of this command that come after a script with no use for them."""
    own = {name for one in context.command.params for name in (*one.opts, *one.secondary_opts)}
    given = dict.fromkeys(word.partition("=")[0] for word in script.arguments)
    meant = [word for word in given if word in own - _EVERYWHERE and word.startswith("--")]
    text = _text(script) if meant else None
    if text is None:
        return
    lost = [word for word in meant if not _takes(text, word)]
    if lost:
        before = f"options of `{context.command_path}` come before `{script.name}`"
        say(f"the script gets {few(lost, '`')}: {before}")


def _text(script: Script) -> str | None:
    """Return the script's text; None for a module, whose file is known only after an import."""
    if script.is_module:
        return None
    with contextlib.suppress(OSError):
        return Path(script.name).read_text(encoding="utf-8", errors="replace")
    return None


def _takes(text: str, option: str) -> bool:
    """Return True if a script's text names the option, or reads arguments and has the name."""
    if option in text or "add_argument" in text:
        return option in text
    name = option.removeprefix("--").replace("-", "_")
    return bool(_READS.search(text) and re.search(rf"\b{name}\b", text))
