"""One step of a run in a line of facts."""

from __future__ import annotations

from gradscope.records.training import TrainingRun, TrainingStep
from gradscope.reporters.training.sentences import summary
from gradscope.reporters.training.sentences.losses import backwards_of
from gradscope.typeset.numbers import count, number, seconds
from gradscope.typeset.text import plain


def step_title(run: TrainingRun, step: int) -> str:
    """The run and the step."""
    return f"{summary.title(run)}, step {count(step)} of {count(max(run.steps, step))}"


def facts_of_step(step: TrainingStep) -> list[str]:
    """The step metrics of one step."""
    facts = []
    if step.optimizer and step.optimizer_step != step.step:
        facts.append(f"{plain(step.optimizer)} step {count(step.optimizer_step)}")
    if step.losses:
        loss = plain(step.nonfinite or "none") if step.loss is None else number(step.loss)
        made = backwards_of(step)
        facts.append(f"loss {loss}" + (f" ({made})" if made else ""))
    if step.gradient_norm is not None:
        facts.append(f"gradient norm {number(step.gradient_norm)}")
        if step.clipped_norm is not None and step.clipped_norm < step.gradient_norm * (1 - 1e-5):
            facts.append(f"clipped to {number(step.clipped_norm)}")
    elif step.nonfinite:
        facts.append(f"{plain(step.nonfinite)} in the loss or a gradient")
    if step.learning_rates:
        rates = list(dict.fromkeys(map(number, step.learning_rates)))
        facts.append(f"learning rate {', '.join(rates)}")
    if step.loss_scale is not None:
        facts.append(f"loss scale {number(step.loss_scale)}")
    return [*facts, seconds(step.seconds)]
