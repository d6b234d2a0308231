"""Runs training steps: the only loop over steps, and the only code that restores all state.

To observe a run, write an ``Observer``: its methods are called in the order of a step. To run a
part of a step, call that method of a ``Step``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer

from gradscope import progress
from gradscope.capture.calls import Call, call_tensors
from gradscope.capture.graph import edge_of, walk
from gradscope.capture.interventions import Interventions
from gradscope.capture.recorder import Recorder
from gradscope.errors import ConfigError
from gradscope.loading.batches import Batch, MicroBatch, cut
from gradscope.loading.devices import seed_everything
from gradscope.loading.workload import Workload
from gradscope.running.state import (
    cloned,
    deeper_recursion,
    gradients_restored,
    others_restored,
    run_eagerly,
    state_restored,
)

#: Root of backward: the loss, or the output of a module's call as returned.
GraphRoot = torch.Tensor | GradientEdge


@dataclass(kw_only=True)
class Observer:
    """Observes steps. Its methods are called in the order of a step.

    Attributes:
        number: the number of the last step that began, from 0.
        phase: its running part: input, forward, loss, backward, or step (the optimizer's).
        failure: the exception that stopped the run.
        recorder: records the calls of that step; None without one.
    """

    number: int = 0
    phase: str = "input"
    failure: BaseException | None = field(default=None, repr=False)
    recorder: Recorder | None = field(default=None, repr=False)

    def before_step(self, step: Step) -> None:
        """Called before any part of the step has run."""

    def around(self, step: Step) -> AbstractContextManager[None]:
        """Return the context from before forward to after the last backward: the recorder's, if
        there is one."""
        return nullcontext() if self.recorder is None else self.recorder.installed()

    def around_forward(self, step: Step) -> AbstractContextManager[None]:
        """Return the context of forward and loss."""
        return nullcontext()

    def root(self, step: Step, output: Any) -> GraphRoot:
        """Return the root of backward, from the model's output."""
        return step.workload.criterion(output, step.clone.target)

    def leaves(self, step: Step, root: GraphRoot) -> Sequence[torch.Tensor]:
        """Return the leaves of the graph upstream of the loss; called after the loss."""
        if isinstance(root, GradientEdge) or not root.requires_grad:
            return ()
        return walk([edge_of(root)], set()).leaves

    def around_backward(self, step: Step, repeat: int) -> AbstractContextManager[None]:
        """Return the context of each backward."""
        return nullcontext()

    def after_backward(self, step: Step) -> None:
        """Called after all backwards, with the graph released."""

    def wants_update(self, step: Step) -> bool:
        """Return True if the optimizer, if there is one, makes its step."""
        return True

    def around_update(self, step: Step) -> AbstractContextManager[None]:
        """Return the context of the optimizer's step."""
        return nullcontext()

    def after_run(self, workload: Workload) -> None:
        """Called after the last step ended or raised, before anything is restored."""

    def executing(self) -> list[Call]:
        """Return the calls that had not returned when the run stopped, outermost first."""
        return self.recorder.executing if self.recorder and self.phase == "forward" else []


@dataclass(slots=True)
class Step:
    """One step.

    ``run`` runs it; each part can also be called alone.

    Attributes:
        batch: the batch from the workload; ``following`` gives the next ones.
        clone: the batch on copies of its tensors.
        kept: restores, at the end of the step, modules outside the model, and gradients of leaves
            outside it.
        part: the samples of a micro-batch, or of a process's part of a batch; None: all.
        interventions: the changes of activations and gradients, the same in all steps of the run.
        losses: from forward to backward, the losses whose sum the loss is, if there are several.
    """

    workload: Workload
    number: int
    batch: Batch
    following: Iterator[Batch]
    clone: Batch
    observer: Observer
    kept: ExitStack
    make_optimizer: Callable[[], Optimizer | None]
    interventions: Interventions
    part: MicroBatch | None = None
    losses: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def optimizer(self) -> Optimizer | None:
        """The run's optimizer, made at the first use."""
        return self.make_optimizer()

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the model's input tensors, by their paths."""
        return dict(call_tensors(self.clone.args, self.clone.kwargs))

    @property
    def named_inputs(self) -> list[tuple[str, torch.Tensor]]:
        """Return the input tensors by their names in messages; nested tensors share one name."""
        positional = len(self.clone.args)
        return [(_input_name(path, positional), t) for path, t in self.inputs.items()]

    def run(self) -> None:
        """Run forward, loss, backward and the optimizer's step; call the observer at each."""
        observer = self.observer
        observer.before_step(self)
        with observer.around(self):
            self.compute_gradients()
        # Before the optimizer, which must not see other modules' state.
        self.kept.close()
        observer.after_backward(self)
        if self.workload.make_optimizer is not None and observer.wants_update(self):
            observer.phase = "step"
            with observer.around_update(self):
                self.update()

    def compute_gradients(self) -> None:
        """Run forward, loss and backward; the graph is freed when it returns."""
        self.interventions.begin()
        for part in self.parts():
            part.backward(part.forward())

    def parts(self) -> Iterator[Step]:
        """Yield a step for each micro-batch, on the same leaves; without micro-batches, this step
        itself."""
        count, batch = self.workload.accumulate, self.clone
        if count == 1 or self.part is not None:
            yield self
            return
        if batch.target is None:
            batch = replace(batch, target=self.workload.criterion.target)
        for part, own in cut(batch, count):
            yield replace(self, clone=own, part=part)

    def forward(self) -> GraphRoot:
        """Run the seeded forward and the loss; return the root of backward.

        Only the first micro-batch is seeded. The loss of each is divided by their number.
        """
        workload, observer = self.workload, self.observer
        observer.phase = "forward"
        if self.part is None or self.part.start == 0 or workload.parallel is not None:
            seed_everything(workload.seed)
            for put_back in workload.random_states:
                put_back()
        # Compiled modules are left alone: a hook called inside would be traced.
        models = _modules(workload)
        others = nullcontext() if workload.as_compiled else others_restored(*models, kept=self.kept)
        with others, observer.around_forward(self), _autocast(workload):
            output = workload.called()(*self.clone.args, **self.clone.kwargs)
            observer.phase = "loss"
            workload.criterion.part = self.part
            root = observer.root(self, output)
            if self.part is not None and isinstance(root, torch.Tensor):
                root = root / workload.accumulate
        # Kept no longer than the graph itself.
        self.losses, workload.criterion.parts = workload.criterion.parts, {}
        given = self.inputs.values()  # of a micro-batch views of the full batch's
        own = {*workload.model.parameters(), *given, *(t._base for t in given)}
        outside = [leaf for leaf in observer.leaves(self, root) if leaf not in own]
        self.kept.enter_context(gradients_restored(outside))
        return root

    def loss(self) -> torch.Tensor:
        """Run ``forward`` for a caller that starts from a tensor."""
        root = self.forward()
        assert isinstance(root, torch.Tensor)
        return root

    def backward(self, root: GraphRoot) -> None:
        """Run as many backwards as the workload demands."""
        self.observer.phase, self.losses = "backward", {}
        for repeat in range(self.workload.repeats):
            with self.observer.around_backward(self, repeat):
                _backward(root, self.workload)

    def update(self) -> None:
        """Run the optimizer's step on the present gradients, with a closure if it needs the
        loss."""
        assert self.optimizer is not None
        closure = inspect.signature(self.optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            if self.workload.parallel is not None:
                name = type(self.optimizer).__name__
                raise ConfigError(
                    f"{name} repeats the step as often as the loss of each process needs: with "
                    "`parallel`, some processes would wait forever",
                    help="use an optimizer without a closure: `optimizer=sgd`",
                )
            self.optimizer.step(self._evaluated)  # type: ignore[arg-type]  # LBFGS takes a tensor
        else:
            self.optimizer.step()

    def _evaluated(self) -> torch.Tensor:
        """Recompute the loss and its gradients, for an optimizer with a closure such as LBFGS."""
        again = replace(self, clone=cloned_batch(self.batch), observer=Observer())
        zero_gradients(self.workload.model)
        with torch.enable_grad():
            loss = again.loss()
            _backward(loss, self.workload)
        return loss.detach()


def run(workload: Workload, observer: Observer) -> None:
    """Run all steps under an observer, and restore all state.

    An exception of the user's code, or Ctrl-C, ends the run; ``failure`` has it.
    """
    with as_found(workload):
        try:
            run_steps(workload, observer)
        except BaseException as failure:
            observer.failure = failure
        observer.after_run(workload)


def run_steps(workload: Workload, observer: Observer) -> None:
    """Run all steps without restoring anything."""
    with closing(steps(workload, observer)) as run:
        for step in run:
            step.run()


def steps(workload: Workload, observer: Observer | None = None) -> Generator[Step, None, None]:
    """Yield each step of a run before it begins, without gradients; the caller runs it.

    Raises:
        ConfigError: the input gives no batch.
    """
    observer = observer or Observer()
    make_optimizer = functools.cache(
        lambda: workload.make_optimizer(workload.model) if workload.make_optimizer else None
    )
    batches = workload.batches()
    batch: Batch | None = None
    several = workload.repeats * workload.accumulate > 1
    interventions = Interventions(workload.model, workload.interventions, accumulate=several)
    with interventions.installed():
        for number in range(workload.steps):
            observer.number, observer.phase = number, "input"
            progress.begin("forward and backward" if workload.steps == 1 else "optimizer steps")
            if workload.steps > 1:
                progress.count(number, workload.steps)
            batch = next(batches, batch)
            if batch is None:
                raise ConfigError("the input yields no batch", help="yield one or more")
            zero_gradients(workload.model)
            with ExitStack() as kept:
                own, part = cloned_batch(batch), None
                if workload.parallel is not None:
                    own, part = workload.parallel.share(own, workload.criterion.target)
                yield Step(
                    workload=workload,
                    number=number,
                    batch=batch,
                    following=batches,
                    clone=own,
                    observer=observer,
                    kept=kept,
                    make_optimizer=make_optimizer,
                    interventions=interventions,
                    part=part,
                )


@contextmanager
def repeated(step: Step, *, weights: bool = False) -> Iterator[Step]:
    """Yield the same step on its own tensors, without an observer; then restore all state."""
    with as_found(step.workload, weights=weights), ExitStack() as kept:
        yield replace(step, clone=cloned_batch(step.batch), observer=Observer(), kept=kept)


@contextmanager
def as_found(workload: Workload, *, weights: bool | None = None) -> Iterator[None]:
    """After the block, restore everything that a run changes: the model, a loss that is a module
    (modes, attributes, buffers, gradients), random states, PyTorch's global settings and the
    recursion limit.

    Inside, compiled models run eagerly. The step itself restores other modules that it calls.

    Args:
        workload: the workload that runs inside.
        weights: also restore parameters. None: if the caller uses the model afterwards, or if
            an optimizer moves them.
    """
    if weights is None:
        weights = workload.live or workload.make_optimizer is not None
    eagerly = nullcontext() if workload.as_compiled else run_eagerly()
    with state_restored(*_modules(workload), weights=weights), eagerly, deeper_recursion():
        yield


def _modules(workload: Workload) -> list[nn.Module]:
    """Return the model, with its parallel wrappers, and the loss if it is a module."""
    loss = workload.criterion.spec
    model = workload.model if workload.parallel is None else workload.parallel.outer
    return [model, *([loss] if isinstance(loss, nn.Module) else [])]


def cloned_batch(batch: Batch) -> Batch:
    """Return the batch on copies of its tensors, for the model or the loss to write into."""
    return Batch(*cloned((batch.args, batch.kwargs, batch.target)))


def zero_gradients(model: nn.Module) -> None:
    """Set the gradient of every parameter to None."""
    for parameter in model.parameters():
        parameter.grad = None


def _backward(root: GraphRoot, workload: Workload) -> None:
    """Run one backward, with the external gradient in the loss's dtype, device and shape."""
    if isinstance(root, GradientEdge):
        head = root.node._input_metadata[root.output_nr]
        # The gradient that the sum of the output would have.
        ones = torch.ones([int(n) for n in head.shape], dtype=head.dtype, device=head.device)
        torch.autograd.backward([root], [ones], retain_graph=workload.repeats > 1)
        return
    gradient = workload.gradient
    if gradient is not None:
        gradient = torch.as_tensor(gradient, dtype=root.dtype, device=root.device)
        gradient = gradient.expand_as(root) if gradient.dim() == 0 else gradient
    root.backward(gradient, retain_graph=workload.retain_graph)  # type: ignore[no-untyped-call]


def _autocast(workload: Workload) -> AbstractContextManager[Any]:
    """Return the configured autocast around forward and loss."""
    if workload.autocast is None:
        return nullcontext()
    return torch.autocast(workload.device.type, dtype=workload.autocast)


def _input_name(path: str, positional: int) -> str:
    """Return the name of a keyword argument; ``input`` for the others, numbered if there are
    several."""
    if not path.split(".")[0].isdigit():
        return path
    return f"input {path}" if positional > 1 else "input"
