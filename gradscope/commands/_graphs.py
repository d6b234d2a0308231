"""Writes a drawn graph, and reads a saved graph instead of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from gradscope.commands._model import split_words
from gradscope.commands._views import Destination
from gradscope.commands._write import say
from gradscope.diagrams import GraphView
from gradscope.diagrams.graph.lookup import check_expand, check_layers
from gradscope.diagrams.graph.view import without_views
from gradscope.errors import OptionError
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph
from gradscope.typeset.numbers import plural

#: Formats that say what stopped a run; a picture of half a graph would be taken for a full one.
_WITH_ERRORS = ("terminal", "json", "html")


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """A graph's destination, and how it is drawn there."""

    destination: Destination
    diagram: ModuleType
    view: GraphView
    hide_views: bool = False

    def write(self, graph: AutogradGraph, layers: Sequence[str]) -> None:
        """Draw and write a graph, of which ``layers`` are opened."""
        check_expand(graph, self.view.expand)
        view = replace(self.view, layers=tuple(layers))
        if self.hide_views:
            graph, hidden = without_views(graph)
            view = replace(view, hidden=hidden)
            say(f"{plural(hidden, 'view or transpose', 'views and transposes')} hidden")
        self.destination.write(self.diagram.render(graph, view))

    def write_failed(self, graph: AutogradGraph, layers: Sequence[str]) -> bool:
        """What a run left that failed, if the format says that it did; whether it was written.

        Names are passed over: what the run did not come to has none yet.
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
    """The file of a saved graph, if that is what the words name."""
    models, _ = split_words(words)
    is_saved = len(models) == 1 and models[0].lower().endswith(".json")
    return Path(models[0]) if is_saved else None


def redraw(file: Path, output: GraphOutput, layers: Sequence[str], exclude: Sequence[str]) -> None:
    """Draw a saved graph.

    Raises:
        ConfigError: the file holds no graph.
        LayerError: a pattern names no module of it.
        OptionError: it is of a run that failed, and the format cannot say so.
    """
    graph = record_json.load(file, AutogradGraph)
    failed = graph.error is not None or not graph.complete
    if failed and output.destination.format not in _WITH_ERRORS:
        raise OptionError(
            f"`{file}` is of a run that failed: its graph is incomplete",
            help=f"`gradscope graph {file}` shows the error",
        )
    patterns = (*(layers or ("**",)), *exclude)
    if not failed and (layers or exclude):
        check_layers(graph, patterns)
    output.write(graph, patterns)
