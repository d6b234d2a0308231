"""The first look of ``why``: plain steps, and of the last one's backward the gradients."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from torch import nn

from gradscope.capture.calls import Call, call_tensors
from gradscope.capture.facts import misspelt_flags
from gradscope.capture.graph import edge_of, let_go, walk
from gradscope.capture.hooks import named_modules, named_parameters
from gradscope.capture.parameters import statistics
from gradscope.capture.recorder import Recorder
from gradscope.capture.stats import head_of
from gradscope.errors import ConfigError
from gradscope.loading import Batch, Workload, seed_everything
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.running.plain import autocast, backward, fresh, take_step
from gradscope.running.state import deeper_recursion, gradients_kept, kept_as_found, run_eagerly
from gradscope.running.steps import input_name


@dataclass(slots=True)
class Look:
    """What the look left, complete or not: ``failure`` says what stopped it."""

    parameters: tuple[ParameterStats, ...] = ()
    calls: tuple[ModuleCall, ...] = ()  # of the modules that were asked for
    phase: str = "input"
    last: int = 0  # the number of the step that was looked at
    complete: bool = False  # what has no gradient by now will have none
    recorder: Recorder | None = None
    failure: BaseException | None = field(default=None, repr=False)

    def executing(self) -> list[Call]:
        """The calls that had not returned when the run stopped, outermost first."""
        return self.recorder.executing() if self.recorder and self.phase == "forward" else []


def look(workload: Workload, modules: Collection[str], *, restore: bool) -> Look:
    """Run the steps. An exception, of the user's code or Ctrl-C, is found in ``failure``.

    Args:
        workload: what to run.
        modules: names of modules whose calls are recorded too.
        restore: give the weights back, for a model that somebody goes on to use.
    """
    found = Look()
    with _kept(workload, weights=restore or workload.steps > 1):
        try:
            for _ in _steps(workload, set(modules), found):
                pass
        except BaseException as failure:
            found.failure = failure
        found.parameters = _parameters(workload.model)
    return found


@contextlib.contextmanager
def before(workload: Workload, last: int) -> Iterator[Workload]:
    """The model as it stands before its ``last`` step, with the batches from that one on."""
    with _kept(workload, weights=True):
        steps = _steps(workload, set(), Look())
        batch, following = next(itertools.islice(steps, last, None))
        yield replace(workload, batches=lambda: itertools.chain([batch], following))


@contextlib.contextmanager
def _kept(workload: Workload, *, weights: bool) -> Iterator[None]:
    with contextlib.ExitStack() as kept:
        kept.enter_context(kept_as_found(workload.model, weights=weights))
        kept.enter_context(run_eagerly())
        kept.enter_context(deeper_recursion())
        if isinstance(workload.criterion.spec, nn.Module):
            kept.enter_context(kept_as_found(workload.criterion.spec, weights=weights))
        yield


def _steps(
    workload: Workload, modules: set[str], found: Look
) -> Iterator[tuple[Batch, Iterator[Batch]]]:
    """Run step after step; before each one begins, its batch and what yields those after it."""
    optimizer = None
    if workload.steps > 1 and workload.make_optimizer is not None:
        optimizer = workload.make_optimizer(workload.model)
    batches = workload.batches()
    batch: Batch | None = None
    for number in range(workload.steps):
        found.complete = False
        if batch is not None and optimizer is not None:
            found.phase = "step"
            take_step(optimizer, workload, batch)
        found.phase, found.last = "input", number
        batch = next(batches, batch)
        if batch is None:
            raise ConfigError("the input gives no batch at all", help="yield one or more")
        for parameter in workload.model.parameters():
            parameter.grad = None
        yield batch, batches
        _step(workload, batch, modules, found)


def _step(workload: Workload, batch: Batch, modules: set[str], found: Look) -> None:
    model = workload.model
    args, kwargs, target = fresh(batch)
    asked = {m: named for m, named in named_modules(model).items() if named.name in modules}
    recorder = found.recorder = Recorder(model, asked, accumulate=workload.repeats > 1)
    inputs = {name: t for name, t in call_tensors(args, kwargs) if t.requires_grad}
    with contextlib.ExitStack() as watching:
        watching.enter_context(recorder.installed())
        found.phase = "forward"
        seed_everything(workload.seed)
        with autocast(workload):
            output = model(*args, **kwargs)
            found.phase = "loss"
            loss = workload.criterion(output, target)
        del output
        found.phase = "backward"
        found.complete = not loss.requires_grad
        walked = walk([edge_of(loss)] if loss.requires_grad else [], set())
        own = {*model.parameters(), *inputs.values()}
        foreign = [leaf for leaf in walked.leaves if leaf not in own]
        watching.enter_context(gradients_kept(foreign))
        if asked:
            names = {id(t): input_name(name, len(args)) for name, t in inputs.items()}
            recorder.connect([loss], names)
        for _ in range(workload.repeats):
            backward(loss, workload)
        found.complete = True
    del loss
    recorder.let_go()
    let_go(walked.nodes)
    found.calls = recorder.calls()


def _parameters(model: nn.Module) -> tuple[ParameterStats, ...]:
    """Every parameter with its gradient's numbers; its values are not read."""
    named = named_parameters(model)
    gradients = statistics({each.name: p.grad for p, each in named.items()})
    return tuple(
        ParameterStats(
            name=each.name,
            shape=tuple(p.shape),
            requires_grad=p.requires_grad,
            value=head_of(p),
            gradient=gradients[each.name],
            aliases=each.aliases,
            misspelt=misspelt_flags(p),
        )
        for p, each in named.items()
    )
