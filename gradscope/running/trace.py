"""One forward and one backward under a trace of the autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge

from gradscope.capture.graph import free_nodes
from gradscope.capture.names import named_modules
from gradscope.capture.recorder import Recorder
from gradscope.capture.stacks import stacks_recorded
from gradscope.capture.trace import Trace
from gradscope.loading.workload import Workload
from gradscope.records.graph import GraphCall, GraphNode
from gradscope.running.losses import loss_value
from gradscope.running.roots import Root, chosen
from gradscope.running.saved_memory import count_saved
from gradscope.running.step import GraphRoot, Observer, Step, run


@dataclass(kw_only=True)
class GraphTrace(Observer):
    """What a traced step left, complete or not.

    Attributes:
        output: what the graph starts from, with its call and its place once they are known; None is
            the loss.
        lines: whether the stack of each operation is kept, and with it the user's line.
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
        self.output, edge = chosen(self.output, self.recorder.outputs(), calls)
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

    An exception, of the user's code or Ctrl-C, ends the run and is found in ``failure``; the graph
    as far as it was known is there all the same.

    Args:
        workload: what to run.
        root: where the graph starts; None is the loss.
        lines: keep the stack of each operation, and with it the user's line.
        locate: the user's line in a stack of formatted frames.
    """
    traced = GraphTrace(output=root, lines=lines, locate=locate)
    run(workload, traced)
    return traced
