"""A training loop written by hand that leaves the records of a watched run, and judges them.

Simulated, not observed: what the rules over time are calibrated and tested on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from gradscope.capture.facts import Buffers, module_facts
from gradscope.capture.hooks import select_layers
from gradscope.capture.optimizer_steps import LastStep
from gradscope.capture.parameters import parameter_stats
from gradscope.capture.recorder import Recorder
from gradscope.capture.updates import Update, updates
from gradscope.records.loop import LoopOptimizer, LoopParameter, LoopRecord
from gradscope.records.report import Report
from gradscope.records.run import RunInfo
from gradscope.records.training import StepSample, TrainingFinding, TrainingStep
from gradscope.records.transformer import PROBES
from gradscope.rules import Blocks, RuleSettings
from gradscope.training.findings import RunFindings
from gradscope.training.loop.backwards import Losses
from gradscope.training.loop.clipping import Clipping
from gradscope.training.loop.held_parameters import HeldParameters


@dataclass
class Watched:
    """The records of a loop that takes its steps through ``step``."""

    models: dict[str, nn.Module]
    every: int = 5
    first: int = 3
    records: list[TrainingStep | StepSample] = field(default_factory=list)
    count: int = 0
    own: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    held: dict[str, HeldParameters] = field(default_factory=dict)

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        loss_of: Callable[[], torch.Tensor],
        *,
        name: str = "optimizer",
        clip: float | None = None,
        loss_scale: float | None = None,
        zero: bool = True,
    ) -> float:
        """Forward, backward, clipping and the update; the loss."""
        self.count += 1
        self.own[name] = self.own.get(name, 0) + 1
        self.kinds[name] = type(optimizer).__name__
        sampled = self.count <= self.first or self.count % self.every == 0
        if zero:
            optimizer.zero_grad()
        held = [p for group in optimizer.param_groups for p in group["params"]]
        rates = tuple(float(group["lr"]) for group in optimizer.param_groups)
        settings = {
            key: float(value)
            for key, value in optimizer.param_groups[0].items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        samples: list[StepSample] = []
        if sampled:
            loss, samples = self._looked_at(loss_of, held, type(optimizer).__name__)
        else:
            loss = float(_backward(loss_of()).detach())
        known = self.held.setdefault(name, HeldParameters())
        norms = _norms(held)
        known.read(norms, held, self.count)
        norm = clipped = _together(norms)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(held, clip)
            clipped = _together(_norms(held))
        before = {p: p.detach().clone() for p in held} if sampled else {}
        optimizer.step()
        squares = LastStep(optimizer).squares()
        finite = math.isfinite(loss) and (norm is None or math.isfinite(norm))
        self.records.append(
            TrainingStep(
                step=self.count, optimizer=name, optimizer_step=self.own[name],
                time=float(self.count), seconds=1.0,
                losses=(loss if math.isfinite(loss) else None,),
                nonfinite=None if finite else "nan", gradient_norm=norm, clipped_norm=clipped,
                learning_rates=rates, loss_scale=loss_scale, sampled=sampled,
                update_rms=math.sqrt(squares[0] / squares[1])
                if squares is not None and math.isfinite(squares[0]) else None,
            )
        )  # fmt: skip
        for sample, model in zip(samples, self.models.values(), strict=True) if sampled else ():
            self.records.append(
                replace(
                    sample, optimizer=name, settings=settings,
                    report=_moved(sample.report, updates(model, before, optimizer)),
                    clipped=_shortened(sample.report, norm, clipped),
                )
            )  # fmt: skip
        return loss

    def _looked_at(
        self, loss_of: Callable[[], torch.Tensor], held: Sequence[nn.Parameter], kind: str
    ) -> tuple[float, list[StepSample]]:
        models = list(self.models.values())
        chosen = [select_layers(model, ["**"]) for model in models]
        recorders = [
            Recorder(m, c, accumulate=True, probes=PROBES)
            for m, c in zip(models, chosen, strict=True)
        ]
        buffers = [Buffers(model) for model in models]
        with ExitStack() as stack:
            for recorder in recorders:
                stack.enter_context(recorder.installed())
            loss = loss_of()
            for each in buffers:
                each.compare()
            facts = [module_facts(m, r.counts) for m, r in zip(models, recorders, strict=True)]
            for recorder in recorders:
                recorder.connect([loss], {})
            _backward(loss)
        value = float(loss.detach())
        samples = []
        for i, (recorder, model) in enumerate(zip(recorders, models, strict=True)):
            parts = recorder.take_parts()
            report = Report(
                "ok",
                RunInfo(
                    list(self.models)[i], "cpu", "float32", "train", 0, 1, "loss", optimizer=kind
                ),
                loss=value if math.isfinite(value) else None,
                loss_nonfinite=None if math.isfinite(value) else "nan",
                calls=recorder.calls(),
                parameters=parameter_stats(model, shown=chosen[i], held=set(held)),
                modules=buffers[i].entered(facts[i]),
                links=recorder.links,
                attention=parts.attention,
                experts=parts.experts,
                residual=parts.residual,
            )
            samples.append(StepSample(self.count, i, report))
        return value, samples

    def findings(
        self, settings: RuleSettings | None = None, *, every: int = 10
    ) -> tuple[TrainingFinding, ...]:
        """Return the findings of the run, if only every Nth step were sampled."""
        found = RunFindings(settings or RuleSettings())
        for record in self.records:
            if isinstance(record, TrainingStep):
                found.step(record)
            elif record.step <= self.first or record.step % every == 0:
                found.sample(record)
        found.loop(self.loop())
        return found.all()

    def loop(self, steps: int | None = None) -> LoopRecord:
        """Of the loop what rules over time read, as if the run had ended after so many steps."""
        clipping, losses = Clipping(), Blocks(Losses.BLOCK)
        taken = [one for one in self.records if isinstance(one, TrainingStep)][:steps]
        for step in taken:
            clipping.measured(step.optimizer, step.gradient_norm, step.clipped_norm)
            losses.add(step.step, step.loss)
        return LoopRecord(
            steps=len(taken),
            optimizers=tuple(
                LoopOptimizer(name, kind, None, self.own[name], 1)
                for name, kind in self.kinds.items()
            ),
            parameters=tuple(self._zeros()) if steps is None else (),
            clippings=tuple(clipping.records()),
            course=losses.course,
            ended=True,
        )

    def _zeros(self) -> Iterator[LoopParameter]:
        """The parameters whose gradients are zero at the end."""
        for model, module in self.models.items():
            for name, parameter in module.named_parameters():
                for optimizer, known in self.held.items():
                    if id(parameter) in known.zeros():
                        yield LoopParameter(
                            name=name,
                            model=model,
                            shape=tuple(parameter.shape),
                            facts=frozenset({"zero-gradient"}),
                            optimizers=(optimizer,),
                            steps=known.readings_since(id(parameter)),
                            since=known.zero[id(parameter)][1],
                        )


def _backward(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss


def _norms(parameters: Sequence[nn.Parameter]) -> dict[nn.Parameter, float]:
    having = [p for p in parameters if p.grad is not None]
    norms = torch._foreach_norm([p.grad for p in having]) if having else ()
    return dict(zip(having, torch.stack(norms).tolist() if norms else (), strict=True))


def _together(norms: dict[nn.Parameter, float]) -> float | None:
    return math.hypot(*norms.values()) if norms else None


def _moved(report: Report, found: dict[str, Update]) -> Report:
    parameters = (found.get(p.name, Update()).on(p) for p in report.parameters)
    return replace(report, parameters=tuple(parameters))


def _shortened(
    report: Report, norm: float | None, clipped: float | None
) -> dict[str, float | None]:
    if not norm or clipped is None or clipped == norm:
        return {}
    return {
        p.name: p.gradient.norm * clipped / norm
        for p in report.parameters
        if p.gradient is not None and p.gradient.norm is not None and p.in_optimizer
    }
