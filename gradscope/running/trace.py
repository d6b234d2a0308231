"""Runs one forward and one backward with a trace of the autograd graph, from the loss or an
output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradscope.capture.calls import Call, ModuleCall, ModuleCalls
from gradscope.capture.graph import free_nodes
from gradscope.capture.names import module_names, named_modules
from gradscope.capture.nodes import stacks_recorded
from gradscope.capture.recorder import Recorder
from gradscope.capture.trace import Trace
from gradscope.errors import LayerError, OptionError, did_you_mean
from gradscope.loading.workload import Workload
from gradscope.nesting import find
from gradscope.patterns import Named
from gradscope.records.graph import GraphCall, GraphNode
from gradscope.running.gradients import loss_value
from gradscope.running.rerun import count_saved
from gradscope.running.step import GraphRoot, Observer, Step, run
from gradscope.typeset.numbers import count

LOSS, OUTPUT = "loss", "output"

#: A module's name, the number of its call, the place in what it returned.
_ROOT = re.compile(r"(?P<name>[^#:]*)(#(?P<call>[0-9]+))?(:(?P<path>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Root:
    """The root of a graph that does not start at the loss: an output of a module's call."""

    name: str
    call: int | None = None  # None: the last
    path: str | None = None  # None: the first tensor that has a graph

    @property
    def word(self) -> str:
        """The root in the user's form."""
        number = "" if self.call is None else f"#{self.call}"
        return f"{self.name or OUTPUT}{number}" + ("" if self.path is None else f":{self.path}")


def root_of(word: str | None, model: nn.Module) -> Root | None:
    """Return the root named by ``--root``: ``fc``, ``cell#2``, ``output:logits``; None: the
    loss.

    Raises:
        OptionError: the word does not have this form.
        LayerError: no module has that name; the message suggests the closest.
    """
    if word is None or word == LOSS:
        return None
    match = _ROOT.fullmatch(word) if isinstance(word, str) else None
    if match is None:
        raise OptionError(
            f"`{word}` is not an output that a graph can start from",
            help="write a layer, then `#` and the number of its call, then `:` and a place in what"
            " it returned, the last two where needed: `fc`, `cell#2`, `encoder:0`, `cell#2:hidden`",
        )
    name = match["name"]
    names = {n: named.name for named in named_modules(model).values() for n in _all(named)}
    if name not in names:
        if name == OUTPUT:
            name = ""
        else:
            close = did_you_mean(name, [n for n in names if n], count=3)
            raise LayerError(
                f"there is no layer `{name}`",
                help=close
                or f"`{LOSS}`, `{OUTPUT}`, or a layer that `gradscope layers MODEL` lists",
            )
    call = None if match["call"] is None else int(match["call"])
    return Root(names.get(name, name), call, match["path"])


def _all(named: Named) -> tuple[str, ...]:
    return (named.name, *named.aliases)


def chosen(
    root: Root,
    outputs: Sequence[tuple[Call, str, GradientEdge]],
    calls: Sequence[GraphCall],
) -> tuple[Root, GradientEdge]:
    """Return the output that ``--root`` names, with its call, its place and its graph edge.

    Args:
        root: the requested root.
        outputs: the module's outputs with a graph.
        calls: every call of the run.

    Raises:
        OptionError: there is no such output.
    """
    found = [o for o in outputs if root.call in (None, o[0].number)]
    if not found:
        ran = [call.call for call in calls if call.name == root.name]
        module = f"`{root.name}`" if root.name else "the model"
        if not ran:
            message = f"{module} was not called in this forward"
        elif root.call is not None and root.call not in ran:
            times = "once" if len(ran) == 1 else f"{count(len(ran))} times"
            message = f"{module} ran {times}: it has no call #{root.call}"
        else:
            message = f"the output of `{root.word}` has no graph: it requires no gradient"
        raise OptionError(message, help="give `--root` an output that requires a gradient")
    latest = max(call.number for call, _, _ in found)
    last = [(path, edge) for call, path, edge in found if call.number == latest]
    for path, edge in last:
        if root.path in (None, path):
            return Root(root.name, latest, path), edge
    assert root.path is not None
    paths = [path for path, _ in last if path]
    help = "it returned one tensor, which has no places: leave out `:` and the place"
    if paths:
        places = ", ".join(f"`{path}`" for path in paths)
        help = did_you_mean(root.path, paths) or f"its places with a graph are {places}"
    message = f"`{root.name or OUTPUT}` returned nothing with a graph at `{root.path}`"
    raise OptionError(message, help=help)


@dataclass(kw_only=True)
class RootSum(Observer):
    """Replaces the loss by the sum of the chosen output."""

    output: Root
    _sum: torch.Tensor | None = None

    @contextmanager
    def around_forward(self, step: Step) -> Iterator[None]:
        names = module_names(step.workload.model)
        chosen = {m: name for m, name in names.items() if name == self.output.name}

        def after(call: ModuleCall, output: Any) -> None:
            if call.number == self.output.call:
                for path, tensor in find(output, torch.Tensor):
                    if path == self.output.path and self._sum is None:
                        # Summed at once, because the tensor may be written to later.
                        self._sum = tensor.sum()

        with ModuleCalls(chosen).observed(chosen, after=after):
            yield
        self._sum = None

    def root(self, step: Step, output: Any) -> torch.Tensor:
        if self._sum is None:
            raise RuntimeError(f"`{self.output.word}` was not computed in the second run")
        return self._sum


@dataclass(kw_only=True)
class GraphTrace(Observer):
    """The record of a traced step, complete or not.

    Attributes:
        output: the root of the graph, with its call and its place once known; None is
            the loss.
        lines: True if the stack of each operation is kept, which gives the user's line.
        locate: the user's line in a stack of formatted frames.
        unreached: leaves in the graph without a gradient.
    """

    output: Root | None
    lines: bool
    locate: Callable[[Sequence[str]], str | None]
    nodes: tuple[GraphNode, ...] = ()
    unreached: list[str] = field(default_factory=list)
    calls: tuple[GraphCall, ...] = ()
    saved_bytes: int | None = None
    loss: float | None = None
    loss_nonfinite: str | None = None
    notices: list[str] = field(default_factory=list)
    _trace: Trace | None = None
    _held: list[Node] = field(default_factory=list)

    def before_step(self, step: Step) -> None:
        model, chained = step.workload.model, {}
        if self.output is not None:
            modules = named_modules(model)
            chained = {m: named for m, named in modules.items() if named.name == self.output.name}
        self.recorder = Recorder(model, {}, chained=chained)

    @contextmanager
    def around(self, step: Step) -> Iterator[None]:
        with super().around(step):
            try:
                yield
            finally:
                if self._trace is not None:
                    self.nodes = self._trace.nodes()
                    self.saved_bytes = self._trace.saved_bytes
                    self.unreached = self._trace.unreached
                    self._held = self._trace.release()

    def around_forward(self, step: Step) -> AbstractContextManager[None]:
        return stacks_recorded() if self.lines else nullcontext()

    def root(self, step: Step, output: Any) -> GraphRoot:
        assert self.recorder is not None
        if self.output is None:
            return super().root(step, output)
        calls = self.recorder.graph_calls()
        self.output, edge = chosen(self.output, self.recorder.outputs, calls)
        return edge

    def leaves(self, step: Step, root: GraphRoot) -> Sequence[torch.Tensor]:
        assert self.recorder is not None
        self.calls = self.recorder.graph_calls()
        if isinstance(root, torch.Tensor):
            self.loss, self.loss_nonfinite = loss_value(root)
            if not root.requires_grad:
                return ()
            root = get_gradient_edge(root)
        names = {id(t): name for name, t in step.named_inputs if t.requires_grad}
        self._trace = self.recorder.trace(
            root.node, names, self.locate, lambda: self.around_forward(step)
        )
        return self._trace.leaves

    def after_backward(self, step: Step) -> None:
        if self.saved_bytes is None and self.output is None:
            saved = count_saved(step, self.notices)
            self.saved_bytes = None if saved is None else saved.totals([])[1]

    def after_run(self, workload: Workload) -> None:
        free_nodes(self._held)


def trace(
    workload: Workload,
    root: Root | None,
    *,
    lines: bool,
    locate: Callable[[Sequence[str]], str | None],
) -> GraphTrace:
    """Run one step and follow its graph.

    An exception of the user's code, or Ctrl-C, ends the run; ``failure`` has it, and the graph so
    far is kept.

    Args:
        workload: the workload.
        root: the start of the graph; None: the loss.
        lines: record the stack of each operation, which gives the user's line.
        locate: the user's line in a stack of formatted frames.
    """
    traced = GraphTrace(output=root, lines=lines, locate=locate)
    run(workload, traced)
    return traced
