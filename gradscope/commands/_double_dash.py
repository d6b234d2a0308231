"""``--`` among the words of a command: it parts two kinds of words."""

from __future__ import annotations

# Typer carries its own copy of click, and exports only some of it.
from typer.core import TyperCommand

from gradscope.click import Context

#: What `--` becomes among the words; no argument of a process can hold it.
DASHES = "\0"


class BothSides(TyperCommand):
    """Options may be on both sides of ``--``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """With a word in the place of each ``--``."""
        return super().parse_args(ctx, [DASHES if word == "--" else word for word in args])


class LastWords(TyperCommand):
    """All after the first ``--`` are words, whatever they look like."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """With a word in the place of the first ``--``, and it again before what follows."""
        if "--" not in args:
            return super().parse_args(ctx, args)
        at = args.index("--")
        return super().parse_args(ctx, [*args[:at], "--", DASHES, *args[at + 1 :]])
