"""Where a graph goes, drawn; and a graph that was saved, in the place of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gradscope.commands._model import OVERRIDE
from gradscope.commands._write import say, write_output
from gradscope.diagrams import GraphView
from gradscope.diagrams.graph.modules import check_expand, check_layers
from gradscope.errors import OptionError
from gradscope.records import json as record_json
from gradscope.records.graph import AutogradGraph

#: Formats that say what stopped a run; a picture of half a graph would be taken for a whole one.
_WITH_ERRORS = ("terminal", "json", "html")


@dataclass(frozen=True, slots=True)
class Destination:
    """How a graph is drawn and where it goes: nothing but that can still fail."""

    format: str
    diagram: ModuleType
    view: GraphView
    path: Path | None
    force: bool

    def write(self, graph: AutogradGraph, layers: Sequence[str]) -> None:
        """Draw and write a graph, of which ``layers`` are opened."""
        check_expand(graph, self.view.expand)
        view = replace(self.view, layers=tuple(layers))
        write_output(self.diagram.render(graph, view), self.path, force=self.force)

    def write_failed(self, graph: AutogradGraph, layers: Sequence[str]) -> bool:
        """What a run left that failed, if the format says that it did; whether it was written.

        Names are passed over: what the run did not come to has none yet.
        """
        if self.format not in _WITH_ERRORS:
            place = "" if self.path is None else f" to `{self.path}`"
            say(f"nothing was written{place}: there is no complete graph")
            return False
        view = replace(self.view, expand=(), sources=(), targets=())
        replace(self, view=view).write(graph, layers)
        return True


def saved_graph(words: Sequence[str] | None) -> Path | None:
    """The file of a saved graph, if that is what the words name."""
    models = [word for word in words or () if not OVERRIDE.match(word)]
    is_saved = len(models) == 1 and models[0].lower().endswith(".json")
    return Path(models[0]) if is_saved else None


def refuse_to_run(words: Sequence[str], options: dict[str, Any]) -> None:
    """Refuse what asks for another run, where there is nothing to run.

    Raises:
        OptionError: one of the options was given, or a word that overrides a key.
    """
    given = [f"--{name}" for name, value in options.items() if value not in (None, [], ())]
    given += [word for word in words if OVERRIDE.match(word)]
    if given:
        shown = "--no-lines" if given[0] == "--lines" and options["lines"] is False else given[0]
        raise OptionError(
            f"a saved graph cannot be run again, as `{shown}` asks",
            help="leave it away, or name the model in place of the graph",
        )


def redraw(
    file: Path, destination: Destination, layers: Sequence[str], exclude: Sequence[str]
) -> None:
    """Draw a saved graph.

    Raises:
        ConfigError: the file holds no graph.
        LayerError: a pattern names no module of it.
        OptionError: it is of a run that failed, and the format cannot say so.
    """
    graph = record_json.load(file, AutogradGraph)
    failed = graph.error is not None or not graph.complete
    if failed and destination.format not in _WITH_ERRORS:
        raise OptionError(
            f"`{file}` is of a run that failed: there is no complete graph to draw",
            help=f"what stopped it: `gradscope graph {file}`",
        )
    patterns = (*(layers or ("**",)), *exclude)
    if not failed and (layers or exclude):
        check_layers(graph, patterns)
    destination.write(graph, patterns)
