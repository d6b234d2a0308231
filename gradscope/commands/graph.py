"""``gradscope graph``: the autograd graph upstream of the loss, as a tree, a picture or a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated

from gradscope import plugins
from gradscope.commands import _completing as completing
from gradscope.commands._model import importing_torch, read_model, refuse_to_run, split_words
from gradscope.commands._options import (
    DisplayOptions,
    FileOptions,
    LayerOptions,
    ModelOptions,
    Words,
    flag,
    format_option,
    option,
    takes_groups,
)
from gradscope.commands._running import running
from gradscope.commands._views import Destination, choose_destination
from gradscope.commands._write import say
from gradscope.diagrams import GraphView
from gradscope.diagrams.graph import without_views
from gradscope.diagrams.graph.lookup import check_expand, check_layers
from gradscope.errors import Interrupted, ModelError, OptionError, did_you_mean, refuse_unknown
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph
from gradscope.typeset.numbers import plural

ROOM = "gradscope.diagrams"
MEASURES = ("gradient", "saved")
DIRECTIONS = ("TB", "LR")
#: Formats that draw boxes and arrows, so that the arrows have a direction.
_DRAWN = ("svg", "png", "pdf", "dot", "mermaid")
#: Formats that show the line of code of an operation.
_WITH_LINES = ("html", "json")

EXAMPLES = (
    ("gradscope graph ./net.py:Net", "A tree: how the loss reaches every parameter."),
    ("gradscope graph torchvision:resnet18 --depth 1 -o graph.svg", "A picture, a box per stage."),
    ("gradscope graph model.yaml -o graph.png --direction LR --hide-views", "For a slide."),
    ("gradscope graph model.yaml -o graph.html", "A page to open and close modules in."),
    ("gradscope graph model.yaml --to stem.weight", "One path, or where it is cut."),
)


@takes_groups
def run(
    words: Words = None,
    *,
    model: ModelOptions,
    depth: Annotated[
        int | None,
        option("N", "Open modules down to this depth; 0 shows the model alone."),
    ] = None,
    expand: Annotated[
        list[str] | None,
        option(
            "PATTERN",
            "Open these modules down to their operations. Repeatable.",
            complete=completing.layers,
        ),
    ] = None,
    full: Annotated[bool, flag("--full", "Every operation; nothing is folded.")] = False,
    source: Annotated[
        str | None,
        option(
            "NAME",
            "Show paths from here: `loss` (a layer of that name is `loss#0`), a layer, a parameter "
            "or a pattern.",
            "--from",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Show the path to this parameter, input or layer, or where it is cut. Repeatable.",
            "--to",
            complete=completing.layers,
        ),
    ] = None,
    root: Annotated[
        str | None,
        option(
            "PATH",
            "Start from an output instead of the loss: `fc`, `cell#2`, `encoder:0`, `output`.",
        ),
    ] = None,
    by: Annotated[
        str,
        option(
            "MEASURE",
            "Quantity shown by bars and colours: gradient or saved.",
            complete=completing.one_of(MEASURES),
        ),
    ] = "gradient",
    direction: Annotated[
        str,
        option(
            "WAY",
            "Where the arrows of a picture lead: TB (down) or LR (to the right).",
            complete=completing.one_of(DIRECTIONS),
        ),
    ] = "TB",
    hide_views: Annotated[
        bool,
        flag("--hide-views", "Leave out operations that only change a shape."),
    ] = False,
    lines: Annotated[
        bool | None,
        flag(
            "--lines/--no-lines",
            "Note the source line of each operation (slower). On for --to, html and json.",
            show_default=False,
        ),
    ] = None,
    layout_timeout: Annotated[
        float, option("SECONDS", "How long laying out a picture may take.")
    ] = 30.0,
    layers: LayerOptions,
    format: Annotated[
        str | None,
        format_option(
            ROOM,
            "terminal, svg, png, pdf, html, dot, mermaid, graphml or json. Wins over -o's suffix.",
        ),
    ] = None,
    file: FileOptions,
    display: DisplayOptions,
) -> None:
    """Show how the loss reaches every parameter: the autograd graph, grouped by module.

    A tree in the terminal, a picture with `-o graph.svg`, a page to explore with `-o graph.html`.
    MODEL may be a graph saved by `-o graph.json`. Without MODEL the bundled demo runs.
    """
    _check(depth, full, by, layout_timeout)
    destination = choose_destination(format, file, display, ROOM)
    chosen = destination.format
    diagram = plugins.load(ROOM, chosen)
    if diagram.binary and file.path is None and sys.stdout is not None and sys.stdout.isatty():
        raise OptionError(
            f"{chosen} is not a terminal format", help=f"write it: `-o graph.{chosen}`"
        )
    _check_drawn(direction, hide_views, chosen)
    view = GraphView(
        width=destination.width,
        color=destination.color,
        depth=depth,
        expand=tuple(expand or ()),
        full=full,
        sources=() if source is None else (source,),
        targets=tuple(target or ()),
        by=by,
        direction=direction,
        timeout=layout_timeout,
        say=say,
    )
    output = GraphOutput(destination, diagram, view, hide_views)
    saved = saved_graph(words)
    if saved is not None:
        flag = "no-lines" if lines is False else "lines"
        others = {"root": root, flag: lines, "set": model.settings, "allow": model.allow}
        _, overrides = split_words(words)
        refuse_to_run("a saved graph", overrides, {**model.keys, **others})
        redraw(saved, output, layers.layers or (), layers.exclude or ())
        return
    loaded = read_model(words, model, layers)
    if lines is None:
        lines = bool(source or target) or chosen in _WITH_LINES
    try:
        with running(model.timeout):
            with importing_torch():
                from gradscope.api.graphing import graph as graph_of
            graph = graph_of(loaded, root=root, lines=lines, allow=model.allow or ())
    except (ModelError, Interrupted) as error:
        if isinstance(error.report, AutogradGraph):
            shown = output.write_failed(error.report, loaded.layers)
            if isinstance(error, Interrupted) and not shown:
                raise Interrupted(error.reason, report=error.report) from None
        raise
    output.write(graph, loaded.layers)


def _check_drawn(direction: str, hide_views: bool, format: str) -> None:
    """Refuse options that the format cannot show."""
    if direction not in DIRECTIONS:
        help = did_you_mean(direction.upper(), DIRECTIONS) or f"one of {', '.join(DIRECTIONS)}"
        raise OptionError(f"unknown direction `{direction}`", help=help)
    if direction != "TB" and format not in _DRAWN:
        raise OptionError(
            f"`--direction {direction}` is for pictures, not for {format}",
            help=f"choose one of {', '.join(_DRAWN)}",
        )
    if hide_views and format == "json":
        raise OptionError(
            "a saved graph is complete: json hides no views",
            help="drop `--hide-views`; `gradscope graph FILE --hide-views` hides them in a picture",
        )


def _check(depth: int | None, full: bool, by: str, timeout: float) -> None:
    if depth is not None and depth < 0:
        raise OptionError(f"`--depth {depth}` is not a depth", help="give 0 or more")
    if depth is not None and full:
        raise OptionError(
            f"`--full` shows everything, `--depth {depth}` does not", help="give one of them"
        )
    refuse_unknown("measure", by, MEASURES)
    if not timeout > 0:
        raise OptionError(f"`--layout-timeout {timeout:g}` leaves no time", help="give more than 0")


#: Formats that say what stopped a run; a picture of half a graph would be taken for a full one.
_WITH_ERRORS = ("terminal", "json", "html")


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """A graph's destination and display."""

    destination: Destination
    diagram: ModuleType
    view: GraphView
    hide_views: bool = False

    def write(self, graph: AutogradGraph, layers: Sequence[str]) -> None:
        """Draw and write a graph, with ``layers`` opened."""
        check_expand(graph, self.view.expand)
        view = replace(self.view, layers=tuple(layers))
        if self.hide_views:
            graph, hidden = without_views(graph)
            view = replace(view, hidden=hidden)
            say(f"{plural(hidden, 'view or transpose', 'views and transposes')} hidden")
        self.destination.write(self.diagram.render(graph, view))

    def write_failed(self, graph: AutogradGraph, layers: Sequence[str]) -> bool:
        """Write the incomplete graph of a failed run if the format shows errors; return True if so.

        It ignores layer patterns, because layers that did not run have no names in the graph.
        """
        if self.destination.format not in _WITH_ERRORS:
            path = self.destination.path
            where = "" if path is None else f" to `{path}`"
            say(f"nothing was written{where}: the graph is incomplete")
            return False
        view = replace(self.view, expand=(), sources=(), targets=())
        replace(self, view=view).write(graph, layers)
        return True


def saved_graph(words: list[str] | None) -> Path | None:
    """Return the file of a saved graph, if the words name one."""
    models, _ = split_words(words)
    is_saved = len(models) == 1 and models[0].lower().endswith(".json")
    return Path(models[0]) if is_saved else None


def redraw(file: Path, output: GraphOutput, layers: Sequence[str], exclude: Sequence[str]) -> None:
    """Draw a saved graph.

    Raises:
        ConfigError: the file holds no graph.
        LayerError: a pattern matches no module of it.
        OptionError: the run failed, and the format cannot show that.
    """
    graph = record_json.load(file, AutogradGraph)
    failed = graph.error is not None or not graph.complete
    if failed and output.destination.format not in _WITH_ERRORS:
        raise OptionError(
            f"`{file}` is of a run that failed: its graph is incomplete",
            help=f"`gradscope graph {file}` shows the error",
        )
    patterns = (*(layers or ("**",)), *(f"!{pattern}" for pattern in exclude))
    if not failed and (layers or exclude):
        check_layers(graph, patterns)
    output.write(graph, patterns)
