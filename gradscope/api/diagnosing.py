"""Findings: what the first look left suspicious is looked at closely, then the rules speak.

Every deep look is one entry of ``_LOOKS``; none of them is taken unless a rule asks for it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gradscope.capture.graph import edge_of, walk
from gradscope.capture.hooks import named_parameters, select_layers
from gradscope.capture.links import located
from gradscope.errors import Interrupted
from gradscope.explain.activity import unit_activity
from gradscope.explain.frames import locate
from gradscope.explain.precision import forecast
from gradscope.loading import Batch, Workload
from gradscope.records.report import Finding, Report
from gradscope.rules import RuleSettings, diagnose, wanted
from gradscope.running.onlookers import onlookers_silent
from gradscope.running.plain import backward, foreign_leaves, fresh, loss_of, take_step
from gradscope.running.state import deeper_recursion, gradients_kept, kept_as_found, run_eagerly
from gradscope.running.tracing import stacks_kept


def diagnosed(
    workload: Workload,
    report: Report,
    rules: RuleSettings,
    *,
    only: Sequence[str] = ("**",),
    more: Collection[str] = (),
) -> Report:
    """The report with its findings, and with what the deep looks behind them saw.

    Args:
        workload: what was run; its model is as it was before the run, and left so.
        report: of the first look, complete or not.
        rules: which look, and how strictly.
        only: patterns of the layers whose findings count.
        more: deep looks to take whether or not a rule asks for them.

    Raises:
        Interrupted: Ctrl-C in a deep look; ``.report`` has the findings without it.
    """
    asked = {*wanted(report, rules), *more}
    stopped = False
    notices = list(report.run.notices)
    for look in _LOOKS:
        if not asked & look.names or stopped:
            continue
        try:
            report = replace(report, **look.take(workload, report, asked & look.names))
            # What has a cause by now leaves no suspicion.
            asked = {*wanted(report, rules), *more}
        except KeyboardInterrupt:
            stopped = True
        except Exception as error:
            # The first look stands, and so does every rule that needs no more than it.
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            notices.append(f"{look.words}: looking closer failed: {first}")
    report = replace(report, run=replace(report.run, notices=tuple(notices)))
    findings = _of_layers(workload.model, only, diagnose(report, rules))
    status = "findings" if findings and report.status == "ok" else report.status
    report = replace(report, findings=findings, status=status)
    if stopped:
        said = "interrupted while looking closer: what was found until then is shown"
        raise Interrupted(said, report=report)
    return report


def _of_layers(
    model: nn.Module, patterns: Sequence[str], findings: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """The findings of selected modules, of the parameters that these own, and of what is around.

    A finding that speaks for several layers has the name of the module around them.
    """
    if tuple(patterns) == ("**",):
        return findings
    names: set[str] = set()
    for module, named in select_layers(model, patterns).items():
        own = [name for name, _ in module.named_parameters(recurse=False)]
        for name in (named.name, *named.aliases):
            names |= {name, *(f"{name}.{parameter}".lstrip(".") for parameter in own)}
            names |= {name[:end] for end, letter in enumerate(name) if letter == "."} | {""}
    return tuple(finding for finding in findings if finding.name in names)


#: How many other seeds are tried before what did not run is said not to run.
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class _Look:
    """A deep look: the names by which rules ask for it, and what it adds to the report."""

    names: frozenset[str]
    words: str
    take: Callable[[Workload, Report, Collection[str]], dict[str, Any]]


@dataclass(slots=True)
class _Step:
    """One step of the run, again: each part runs when it is called."""

    workload: Workload
    batch: Batch
    following: Batch
    optimizer: torch.optim.Optimizer | None
    kept: contextlib.ExitStack

    def forward(
        self, given: tuple[tuple[Any, ...], dict[str, Any], Any] | None = None
    ) -> torch.Tensor:
        """Forward and loss, on a copy of the batch unless one is ``given``."""
        args, kwargs, target = given or fresh(self.batch)
        loss = loss_of(self.workload, args, kwargs, target)
        self.kept.enter_context(gradients_kept(foreign_leaves(loss, self.workload, args, kwargs)))
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        for _ in range(self.workload.repeats):
            backward(loss, self.workload)

    def move(self) -> None:
        assert self.optimizer is not None
        take_step(self.optimizer, self.workload, self.batch)


@contextlib.contextmanager
def again(workload: Workload, number: int) -> Iterator[_Step]:
    """The model as it stood before a step of the run, and that step; then as it was found."""
    model = workload.model
    with contextlib.ExitStack() as kept:
        kept.enter_context(kept_as_found(model, weights=True))
        kept.enter_context(onlookers_silent(model))
        if isinstance(workload.criterion.spec, nn.Module):
            kept.enter_context(kept_as_found(workload.criterion.spec, weights=True))
        kept.enter_context(run_eagerly())
        kept.enter_context(deeper_recursion())
        optimizer = None
        if workload.make_optimizer is not None:
            optimizer = workload.make_optimizer(model)
        batches = workload.batches()
        batch = next(batches)
        following = next(batches, batch)
        for _ in range(number):
            step = _Step(workload, batch, following, optimizer, kept)
            step.backward(step.forward())
            if optimizer is not None:
                step.move()
            _forget_gradients(model)
            batch, following = following, next(batches, following)
        yield _Step(workload, batch, following, optimizer, kept)


def _forget_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def _answers(workload: Workload, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Why gradients are missing or zero, each state only where it was asked for."""
    from gradscope.api.explaining import explained

    with again(workload, _last(report)) as step:
        batches = (step.batch, step.following)
        there = replace(workload, batches=lambda: iter(batches))
        # The weights come back at the end of it all: no need to keep them twice.
        found = explained(there, report.parameters, states=asked, restore=False)
        return {"answers": found}


def _elsewhere(workload: Workload, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Which parameters without a gradient other seeds, and the next batch, do reach."""
    parameters = {named.name: p for p, named in named_parameters(workload.model).items()}
    lost = {p.name for p in report.parameters if p.requires_grad and p.gradient is None}
    found: set[str] = set()
    with again(workload, _last(report)) as step:
        for number in range(1, _SEEDS + 1):
            other = replace(workload, seed=workload.seed + number)
            batch = step.following if number % 2 else step.batch
            loss = replace(step, workload=other, batch=batch).forward()
            leaves = set(walk([edge_of(loss)], set()).leaves) if loss.requires_grad else set()
            found |= {name for name in lost if parameters[name] in leaves}
            if found == lost:
                break
    return {"elsewhere": tuple(p.name for p in report.parameters if p.name in found)}


def _lines(workload: Workload, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """The user's lines that made what goes into the loss."""
    with again(workload, _last(report)) as step:
        with stacks_kept(lines=True):
            loss = step.forward()
        return {"links": located(report.links, walk([edge_of(loss)], set()), locate)}


def _births(workload: Workload, report: Report, asked: Collection[str]) -> dict[str, Any]:
    """Where NaN or Inf first came from, in the step where it showed first or the one before."""
    from gradscope.api.explaining import named_inputs
    from gradscope.explain.births import find_births

    first = _first_bad(report)
    for number in range(max(0, first - 1), first + 1):
        with again(workload, number) as step:
            move = None if step.optimizer is None else step.move
            given = fresh(step.batch)
            forward = functools.partial(step.forward, given)
            inputs = named_inputs(workload, given)
            births = find_births(workload.model, forward, step.backward, move, inputs=inputs)
        if births:
            return {"births": births}
    return {}


def _first_bad(report: Report) -> int:
    """The number of the first step whose loss or gradient was not finite; the last without one."""
    for record in report.history:
        bad = any(p.gradient_norm is None for p in record.parameters)
        if record.loss_nonfinite or (bad and record.gradient_norm is None):
            return record.step
    return _last(report)


def _last(report: Report) -> int:
    """The number of the last step that began."""
    if not report.history:
        return 0
    done = report.history[-1].step
    stopped = report.error is not None and report.error.phase in ("input", "forward", "loss")
    return done + 1 if stopped else done


def _activity(workload: Workload, report: Report, asked: Collection[str]) -> dict[str, Any]:
    with again(workload, _last(report)) as step:
        return {"activity": unit_activity(workload.model, step.forward)}


def _precision(workload: Workload, report: Report, asked: Collection[str]) -> dict[str, Any]:
    with again(workload, _last(report)) as step:
        return {"precision": forecast(workload.model, step.forward, step.backward)}


_LOOKS = (
    _Look(frozenset({"missing", "zero"}), "why gradients are missing or zero", _answers),
    _Look(frozenset({"elsewhere"}), "what other seeds reach", _elsewhere),
    _Look(frozenset({"births"}), "where a NaN or Inf comes from", _births),
    _Look(frozenset({"activity"}), "dead and saturated units", _activity),
    _Look(frozenset({"precision"}), "what other dtypes would lose", _precision),
    _Look(frozenset({"lines"}), "the lines of what goes into the loss", _lines),
)
