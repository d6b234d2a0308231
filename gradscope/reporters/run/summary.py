"""The facts on a run at the top of its page, and the line of facts on one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from gradscope.records import training
from gradscope.records.training import RunHistory, TrainedModel, TrainingRun, TrainingStep
from gradscope.reporters.header import listed
from gradscope.reporters.tables.experiments import noise_of_run
from gradscope.reporters.verdict import cost_in_words
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, duration, number, plural, seconds
from gradscope.typeset.text import plain


def backwards_of(step: TrainingStep) -> str:
    """Return the backwards of a step's loss in words: ``sum of 4 backwards``, ``backward 1 of 20``;
    "" for one backward."""
    number = len(step.losses)
    if number < 2:
        return ""
    if step.summed is None:
        return f"sum of {count(number)} backwards"
    first, end = step.summed
    if end - first == 1:
        return f"backward {count(end)} of {count(number)}"
    return f"sum of backwards {count(first + 1)} to {count(end)} of {count(number)}"


def backwards_over(steps: Sequence[TrainingStep]) -> str:
    """Return the same for many steps; "" if each has one backward."""
    having = [step for step in steps if step.losses]
    notes = {backwards_of(step) for step in having}
    if len(notes) < 2:
        return notes.pop() if notes else ""
    numbers = sorted(len(step.summed_losses) for step in having)
    ends = " to ".join(dict.fromkeys(map(count, (numbers[0], numbers[-1]))))
    if any(step.summed for step in having):
        return f"{ends} of up to {count(max(len(step.losses) for step in having))} backwards"
    return f"sum of {ends} backwards"


#: A run counts as over after this many seconds, and this many steps' time, without an update.
_SILENCE, _STEPS = 15.0, 10
#: Why a parameter has no global norm.
_FAULTS = {
    "flat": "FullyShardedDataParallel flattens its shards; use `fully_shard`",
    "partial": "the ranks hold partial sums, which are not reduced yet",
    "missing": "the file of a rank with a shard is missing",
    "differs": "the replicas differ",
}
#: Largest number of different ends of other ranks that are listed.
_ENDS = 6


def facts(history: RunHistory) -> list[list[str]]:
    """Return the facts about the run, a list for each line; the first fact is the script."""
    run = history.run
    first = [title(run), *_length(history), f"began {_clock(run.started)}"]
    lines = [first, [_model(model) for model in history.models] or ["no model found"]]
    optimizers = _optimizers(history)
    lines += [optimizers] if optimizers else []
    lines.append(_sampling(history))
    versions = [f"{plain(name)} {plain(version)}" for name, version in run.versions.items()]
    device = [plain(run.device)] if run.device else []
    return [*lines, device + versions] if device or versions else lines


def title(run: TrainingRun) -> str:
    """Return the command line as it was typed."""
    return " ".join(map(plain, (run.script, *run.arguments))) or "a script"


def end(history: RunHistory) -> Line:
    """Return the line on the run's end, or on its current state."""
    run, code = history.run, (history.run.exit or "").strip()
    if run.ended is None:
        if history.age is None:
            return Line("(its file has no end)", "running or killed", "warn")
        age = f"{round(history.age)} s" if history.age < 60 else duration(history.age)
        last = f"updated {age} ago"
        patience = max(_SILENCE, _STEPS * (run.sampled_seconds or run.plain or 0.0))
        if history.age <= patience:
            return Line(f"({last})", "running", "good")
        return Line(f"({last}, its file has no end)", "killed or hanging", "bad")
    if run.cut:
        return Line(f"by `{plain(run.cut)}`", "ended:", "good")
    if code in ("", "0"):
        return Line("exit code 0", "finished:", "good")
    if code.lstrip("-").isdigit():
        return Line(f"exit code {code}", "failed:", "bad")
    return Line(plain(code), "failed:", "bad")


def notes(history: RunHistory) -> Iterator[str]:
    """Yield notes on parts that were not recorded, and on the end of the other ranks."""
    yield from (f"note: {plain(notice)}" for notice in history.run.notices)
    yield from (f"note: {line}" for line in without_calls(history))
    if history.noise is not None:
        yield noise_of_run(history.noise)
    others = [run for run in history.ranks if run.rank != history.run.rank]
    if not others and history.run.world_size < 2:
        return
    world = max(history.run.world_size, len(others) + 1)
    if not others:
        yield f"note: rank {count(history.run.rank)} of {count(world)} only, with its own shards"
        return
    runs = [history.run, *others]
    staged = any(model.stage is not None for model in history.models)
    yield from (
        f"note: {line}" for line in (*_reduced(runs, world, staged), *_not_reduced(history))
    )


def without_calls(history: RunHistory) -> Iterator[str]:
    """Yield the models whose calls are not recorded, with the reason."""
    probed = history.run.options.get("compiled")
    for model in history.models:
        if model.compiled and not probed:
            name = plain(model.name or model.type) or "the model"
            yield f"{name}: {training.without_calls(model.compiled)}"


def _reduced(runs: Sequence[TrainingRun], world: int, staged: bool) -> Iterator[str]:
    """Yield the ranks over which figures are reduced, and the end of the other ranks."""
    ranks = [run.rank for run in runs]
    of = "the lowest rank of each stage" if staged else f"rank {count(ranks[0])}"
    whose = "the last stage's" if staged else "the ranks' mean"
    yield (
        f"reduced over ranks {listed(ranks)} of {count(world)}; activations: {of}; loss: {whose}"
    )
    missing = [rank for rank in range(world) if rank not in ranks]
    if missing:
        which = "rank" if len(missing) == 1 else "ranks"
        yield (
            f"the file of {which} {listed(missing)} is missing: tensors with a shard there have "
            "no norm"
        )
    alike: dict[str, list[int]] = {}
    for run in runs[1:]:
        alike.setdefault(_end(run), []).append(run.rank)
    ends = [
        f"{'rank' if len(several) == 1 else 'ranks'} {listed(several)}: {end}"
        for end, several in alike.items()
    ]
    more = [f"and {count(len(ends) - _ENDS)} more"] if ends[_ENDS:] else []
    yield "; ".join([*ends[:_ENDS], *more])


def _not_reduced(history: RunHistory) -> Iterator[str]:
    """Yield the parameters without a global norm, with the reason."""
    for fault, reason in _FAULTS.items():
        names = [plain(one.name) for one in history.parameters if one.fault == fault]
        if names:
            more = f" and {count(len(names) - 1)} more" if names[1:] else ""
            yield f"no global norm of `{names[0]}`{more}: {reason}"


def _end(run: TrainingRun) -> str:
    """Return a rank's number of steps, and its end."""
    steps = plural(run.steps, "step")
    if run.ended is None:
        return f"{steps}, the file has no end"
    return f"{steps}, exit {plain(run.exit or '0')}"


def _length(history: RunHistory) -> list[str]:
    run = history.run
    steps = plural(history.last_step, "step")
    took = history.steps[-1].time if history.steps else None
    if run.ended is not None:
        took = run.ended - run.started
    # If the clock was set back while the script ran, the duration is unknown.
    return [f"{steps} in {duration(took)}" if took is not None and took >= 0 else steps]


def _clock(moment: float) -> str:
    try:
        return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "at an invalid time"


def _model(model: TrainedModel) -> str:
    name, kind = plain(model.name), plain(model.type)
    called = f"{name} ({kind})" if name and name != kind else kind or name or "model"
    total, trainable = model.parameters, model.trainable
    which = "all" if trainable == total else count(trainable) if trainable else "none"
    since = f" from step {count(model.first_step)}" if model.first_step > 1 else ""
    autocast = f", autocast {plain(model.autocast)}" if model.autocast else ""
    return f"{called}: {plural(total, 'parameter')} ({which} trainable){autocast}{since}"


def _optimizers(history: RunHistory) -> list[str]:
    """Yield each optimizer with its number of steps."""
    taken: dict[str, int] = {}
    for step in history.steps:
        taken[step.optimizer] = max(step.optimizer_step, taken.get(step.optimizer, 0))
    if set(taken) <= {""}:
        return []
    return [f"{_optimizer(name)}: {plural(steps, 'step')}" for name, steps in taken.items()]


def _optimizer(name: str) -> str:
    """Return the optimizer's title: most variables name its kind; a class such as ``AdamW`` may
    not.
    """
    if not name:
        return "without an optimizer"
    return plain(name) if "opt" in name.lower() else f"optimizer {plain(name)}"


def _sampling(history: RunHistory) -> list[str]:
    """Return lines on the sampled steps and their cost."""
    run, kept = history.run, history.sampled
    sampled = sum(step.sampled for step in history.steps)
    metrics = ""
    if history.thinned:
        total = plural(history.last_step, "step")
        metrics = f"{total}. Metrics of {count(len(history.steps))} are kept; "
    if not sampled and not kept:
        return [f"{metrics}no step was sampled"]
    word = "step" if len(kept) == 1 else "steps"
    steps = f" at {word} {listed(kept)}" if kept else ""
    if sampled > len(kept):
        how = f"layers were sampled in {plural(sampled, 'step')}, {count(len(kept))} are kept"
        how += f": {listed(kept)}" if kept else ""
    elif sampled == len(history.steps) and not history.thinned:
        how = "layers were sampled at every step"
    else:
        how = f"layers were sampled{steps}"
    if run.every and run.every > 1 and sampled < len(history.steps):
        how += f", at the end every {ordinal(run.every)}"
    return [metrics + how, *([cost(run)] if cost(run) else [])]


def cost(run: TrainingRun) -> str:
    """Return the cost in words: ``gradscope took 1.6 % of the time: 182 ms a plain step, 240 ms a
    sampled one``."""
    figures = []
    if run.plain is not None:
        figures.append(f"{seconds(run.plain)} a plain step")
    if run.sampled_seconds is not None:
        figures.append(f"{seconds(run.sampled_seconds)} a sampled one")
    if run.cost is None:
        return ", ".join(figures)
    text = f"gradscope took {cost_in_words(run)}"
    return f"{text}: {', '.join(figures)}" if figures else text


def ordinal(n: int) -> str:
    """``40th``, ``2nd``."""
    word = "th" if n // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{count(n)}{word}"


def step_title(run: TrainingRun, step: int) -> str:
    """Return the title of a step: the run and the number of the step."""
    return f"{title(run)}, step {count(step)} of {count(max(run.steps, step))}"


def facts_of_step(step: TrainingStep) -> list[str]:
    """Return the step metrics of one step."""
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
