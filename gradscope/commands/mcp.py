"""``gradscope mcp``: runs, reports and rules for agents and editors."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from gradscope.commands._options import Debug, flag, option
from gradscope.errors import GradscopeError, OptionError, message_of
from gradscope.reporters.shortening import LEAST_TOKENS, TOKENS
from gradscope.version import __version__

EXAMPLES = (
    ("gradscope mcp", "The command for an editor, in the project's folder."),
    ("gradscope mcp --allow-run", "The agent may also run `inspect`, which runs the model's code."),
)
_INSTRUCTIONS = (
    "gradscope records PyTorch training runs and names what is wrong with them. Begin with `runs`, "
    "then `why` of the newest one; `show` has the numbers, `rules` explains a code such as GS101."
)


def run(
    *,
    allow_run: Annotated[
        bool, flag("--allow-run", "Offer `inspect`, which runs the code of a model.")
    ] = False,
    max_tokens: Annotated[
        int, option("N", "At most N tokens in an answer, the worst first.", min=LEAST_TOKENS)
    ] = TOKENS,
    debug: Debug = False,
) -> None:
    """Answer agents and editors over MCP: `runs`, `show`, `why`, `diff` and `rules`.

    It speaks the Model Context Protocol on standard input and output. It reads files in the
    working directory only, and writes none.
    """
    if importlib.util.find_spec("mcp") is None:
        raise OptionError(
            "`gradscope mcp` needs mcp, which is not installed", help="pip install 'gradscope[mcp]'"
        )
    server(Path.cwd(), allow_run=allow_run, max_tokens=max_tokens).run()


def server(folder: Path, *, allow_run: bool, max_tokens: int) -> Any:
    """Return the server, from the official package."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    from gradscope.api.tools import Tools

    tools = Tools(folder, max_tokens)
    made = MCPServer(
        "gradscope", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR"
    )
    reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in (tools.runs, tools.show, tools.why, tools.diff, tools.rules):
        made.tool(annotations=reading)(_answering(tool, folder))
    if allow_run:
        running = ToolAnnotations(read_only_hint=False, open_world_hint=False)
        made.tool(annotations=running)(_answering(tools.inspect, folder))
    return made


def _answering(tool: Callable[..., str], folder: Path) -> Callable[..., str]:
    """Wrap a tool, so that its errors become answers."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def answer(*words: Any, **named: Any) -> str:
        try:
            return tool(*words, **named)
        except (GradscopeError, OSError) as error:
            problems = (
                ["; ".join(filter(None, (p.message, p.help))) for p in error.problems]
                if isinstance(error, GradscopeError)
                else [f"cannot read: {error.strerror or error}"]
            )
            # Names as the client writes them.
            home = str(folder.resolve())
            text = "\n".join(problems).replace(f"{home}{os.sep}", "").replace(home, ".")
            raise ToolError(text or message_of(error)) from None

    return answer
