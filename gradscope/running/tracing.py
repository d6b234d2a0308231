"""One forward and one backward under a trace of the autograd graph."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradscope.capture.calls import Call, call_tensors
from gradscope.capture.graph import let_go
from gradscope.capture.hooks import named_modules
from gradscope.capture.recorder import Recorder
from gradscope.capture.stats import resolve
from gradscope.capture.trace import Trace
from gradscope.errors import ConfigError
from gradscope.loading import Batch, Workload, seed_everything
from gradscope.records.graph import GraphCall, GraphNode
from gradscope.running.plain import autocast, backward, count_saved, fresh
from gradscope.running.roots import LOSS, Root, chosen
from gradscope.running.state import (
    deeper_recursion,
    gradients_kept,
    kept_as_found,
    run_eagerly,
)
from gradscope.running.steps import input_name, loss_value, measured_loss


@dataclass(slots=True)
class Traced:
    """What a traced step left, complete or not: ``failure`` says what stopped it."""

    start: str = LOSS
    root: Root | None = None  # with its call and its place, once they are known
    nodes: tuple[GraphNode, ...] = ()
    unreached: list[str] = field(default_factory=list)  # leaves in the graph without a gradient
    calls: tuple[GraphCall, ...] = ()
    saved_bytes: int | None = None
    loss: float | None = None
    loss_nonfinite: str | None = None
    phase: str = "input"
    recorder: Recorder | None = None
    notices: list[str] = field(default_factory=list)
    failure: BaseException | None = None

    def executing(self) -> list[Call]:
        """The calls that had not returned when the run stopped, outermost first."""
        return self.recorder.executing() if self.recorder and self.phase == "forward" else []


def trace(
    workload: Workload,
    root: Root | None,
    *,
    lines: bool,
    locate: Callable[[Sequence[str]], str | None],
    restore: bool,
) -> Traced:
    """Run one step and follow its graph.

    An exception, of the user's code or Ctrl-C, ends the run and is found in ``failure``; the graph
    as far as it was known is there all the same.

    Args:
        workload: what to run.
        root: where the graph starts; None is the loss.
        lines: keep the stack of each operation, and with it the user's line.
        locate: the user's line in a stack of formatted frames.
        restore: give the weights back as well, for a model that somebody goes on to use.
    """
    outcome = Traced(start=LOSS if root is None else root.said)
    with contextlib.ExitStack() as kept:
        kept.enter_context(kept_as_found(workload.model, weights=restore))
        kept.enter_context(run_eagerly())
        kept.enter_context(deeper_recursion())
        if isinstance(workload.criterion.spec, nn.Module):
            kept.enter_context(kept_as_found(workload.criterion.spec, weights=restore))
        nodes: list[Node] = []
        try:
            _step(workload, root, outcome, lines, locate, nodes)
        except BaseException as failure:
            outcome.failure = failure
        let_go(nodes)
    return outcome


def _step(
    workload: Workload,
    root: Root | None,
    outcome: Traced,
    lines: bool,
    locate: Callable[[Sequence[str]], str | None],
    nodes: list[Node],
) -> None:
    batch = next(workload.batches(), None)
    if batch is None:
        raise ConfigError("the input gives no batch at all", help="yield one or more")
    args, kwargs, target = fresh(batch)
    chained = {}
    if root is not None:
        modules = named_modules(workload.model)
        chained = {m: named for m, named in modules.items() if named.name == root.name}
    recorder = outcome.recorder = Recorder(workload.model, {}, chained=chained)
    given = ((name, t) for name, t in call_tensors(args, kwargs) if t.requires_grad)
    names = {id(t): input_name(name, len(args)) for name, t in given}
    with contextlib.ExitStack() as watching:
        watching.enter_context(recorder.installed())
        with stacks_kept(lines):
            outcome.phase = "forward"
            seed_everything(workload.seed)
            with autocast(workload):
                output = workload.model(*args, **kwargs)
                outcome.phase = "loss"
                loss = workload.criterion(output, target) if root is None else None
        outcome.calls = recorder.graph_calls()
        if root is None:
            assert loss is not None
            found = measured_loss(loss)
            outcome.loss, outcome.loss_nonfinite = loss_value(resolve([found])[id(found)])
            start = get_gradient_edge(loss) if loss.requires_grad else None
        else:
            outcome.root, start = chosen(root, recorder.outputs(), outcome.calls)
        del output
        outcome.phase = "backward"
        if start is None:
            assert loss is not None
            backward(loss, workload)  # raises, and says that there is no graph
            return
        followed = recorder.trace(start.node, names, locate, lambda: stacks_kept(lines))
        watching.callback(lambda: nodes.extend(followed.release()))
        watching.enter_context(gradients_kept(_foreign(followed, workload.model, args, kwargs)))
        try:
            for _ in range(workload.repeats):
                _backward(start, loss, workload)
        finally:
            outcome.nodes = followed.nodes()
            outcome.saved_bytes = followed.saved_bytes
        outcome.unreached = followed.unreached
    if outcome.saved_bytes is None and root is None:
        _count_saved(workload, batch, outcome)


@contextlib.contextmanager
def stacks_kept(lines: bool) -> Iterator[None]:
    """Each node made in this block remembers the Python stack that made it."""
    if not lines:
        yield
        return
    with warnings.catch_warnings():
        # It warns that it slows things down, which who asks for lines accepts.
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            yield


def _backward(start: GradientEdge, loss: torch.Tensor | None, workload: Workload) -> None:
    if loss is not None:
        backward(loss, workload)
        return
    of: Node = start.node
    head = of._input_metadata[start.output_nr]
    # As the sum of the output would send it.
    ones = torch.ones([int(n) for n in head.shape], dtype=head.dtype, device=head.device)
    torch.autograd.backward([start], [ones], retain_graph=workload.repeats > 1)


def _foreign(
    followed: Trace, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[torch.Tensor]:
    """Leaves that are nobody's parameters here: their ``.grad`` is put back too."""
    own = {*model.parameters(), *(t for _, t in call_tensors(args, kwargs))}
    return [leaf for leaf in followed.leaves if leaf not in own]


def _count_saved(workload: Workload, batch: Batch, outcome: Traced) -> None:
    try:
        outcome.saved_bytes = count_saved(workload, batch).totals([])[1]
    except Exception as error:
        # `torch.func` forbids hooks on saved tensors, for one: the graph goes without.
        first = (str(error) or type(error).__name__).splitlines()[0]
        outcome.notices.append(f"saved bytes: not counted: {first}")
