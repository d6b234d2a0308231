"""GS835: a target, an average or a teacher that never follows."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LoopCopy
from gradscope.records.training import TrainingFinding
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import CHOSEN, Limits, Rule, Runs, Threshold
from gradscope.rules._words import percent, plural

RULE = Rule(
    code="GS835",
    name="copy-never-updated",
    severity="warning",
    summary="a target network, a weight average or a teacher never changes, or hardly",
    what=(
        "Finds copies of a model that trains: modules of the same class with the same initial "
        "weights that no optimizer holds. It fires at the end of the script, if a copy was used "
        "and never changed, and its name contains target, ema, teacher, momentum, average or "
        "slow. A fixed reference under another name does not count. It also fires if the weights "
        "of such a copy follow the model and its running statistics do not, and if an average of "
        "weights that is used now and then is still nearly the initial network."
    ),
    why=(
        "The copy is still the initial network, and gives the targets, the teacher's answers or "
        "the evaluation's results. Most often the update is never called, or assigns to a loop "
        "variable, which changes nothing."
    ),
    fix=(
        "Write into the copy's own tensors: `p.data.mul_(d).add_(q.data, alpha=1 - d)`, or "
        "`copy.load_state_dict(model.state_dict())`, and call it after each step."
    ),
    sources=(
        "Mnih et al. 2015, Human-level control through deep reinforcement learning: the target "
        "network is updated every C steps",
        "Tarvainen and Valpola 2017, Mean teachers are better role models (arXiv 1703.01780)",
        "PyTorch, torch.optim.swa_utils.AveragedModel: call update_parameters",
    ),
    thresholds=(
        Threshold("steps", 20, "steps needed to judge", CHOSEN),
        Threshold(
            "moved", 0.1, "distance from the start, as a share of the model's, below which an "
            "average is too slow", CHOSEN,
        ),
    ),
    runs=Runs(loop=True, end=True),
)  # fmt: skip


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each copy."""
    if not loop.ended or loop.cut:
        return
    for one in loop.copies:
        if one.compared < limits["steps"]:
            continue
        if one.calls and one.stale_buffers and one.follows:
            yield RULE.in_loop(
                loop,
                one.name,
                f"the weights of `{one.name}` follow `{one.of}`, and its buffers never change: "
                "the running mean and variance of batch norm are still those of the start.",
                advice="Copy the buffers too: "
                "`for a, b in zip(copy.buffers(), model.buffers()): a.copy_(b)`.",
                value=float(one.calls),
                cause="buffers",
                location=one.made or one.location,
                parameters=(),
            )
        slow = one.moved is not None and one.moved < limits["moved"]
        if slow and not one.unchanged and 0 < one.steps <= one.compared // 2:
            yield _slow(loop, one, limits)
        if not (one.calls and one.unchanged and one.follows):
            continue
        yield RULE.in_loop(
            loop,
            one.name,
            f"`{one.name}` never changes: it still has the weights that `{one.of}` began "
            f"with, after {plural(one.compared, 'step')}, and {plural(one.steps, 'step')} "
            f"call it.{_unreached(one)}",
            advice=one.updated
            and "Let the update run more often than the training is long, and check its condition.",
            value=float(one.calls),
            location=one.updated or one.made or one.location,
            parameters=(),
        )


def _slow(loop: LoopRecord, one: LoopCopy, limits: Limits) -> TrainingFinding:
    """Return the finding on an average that is slower than the training is long."""
    moved = one.moved or 0.0
    return RULE.in_loop(
        loop,
        one.name,
        f"`{one.name}` is still nearly the initial network: after {plural(one.compared, 'step')} "
        f"it has moved {percent(moved)} of the way that `{one.of}` has. "
        f"{plural(one.steps, 'step')} {'uses' if one.steps == 1 else 'use'} it.",
        advice="Take a smaller decay, such as 0.99, or let it grow from 0: "
        "`min(decay, (1 + step) / (10 + step))`.",
        value=moved,
        limit=limits.of("moved"),
        cause="slow",
        location=one.made or one.location,
        parameters=(),
    )


def _unreached(one: LoopCopy) -> str:
    return f" The update at {one.updated} had no effect." if one.updated else ""
