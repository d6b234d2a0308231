"""GS867: a generator that is trained to be recognised."""

from __future__ import annotations

from collections.abc import Iterator

from gradscope.records.loop import LoopRecord
from gradscope.records.loop_figures import LossSide, LossTargets
from gradscope.rules._loop import LoopFindings, enough, held_by, of_loss
from gradscope.rules._rule import CHOSEN, SILENT_ON_HONEST, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS867",
    name="generator-target",
    severity="error",
    summary="a GAN's generator is trained with the discriminator's target for fakes",
    what=(
        "Finds a model that scores another model's results, and the targets of its losses in the "
        "sampled steps. One optimizer trains this model, a discriminator, with one target for the "
        "results and another for the data. It fires if a second optimizer, the generator's, uses "
        "the target for the results too. Of a critic whose losses are averages of scores, it "
        "compares the signs of these averages."
    ),
    why=(
        "The generator learns to be recognised as a fake: it minimises the same loss as the "
        "discriminator, instead of the opposite. Its loss falls to 0, and its samples get worse."
    ),
    fix=(
        "Give the generator's loss the target of real data: `criterion(netD(fake), ones)`, for "
        "example with `label.fill_(real_label)` before it."
    ),
    sources=(
        "PyTorch tutorials, DCGAN: fake labels are real for generator cost",
        "Goodfellow et al. 2014, Generative adversarial nets, algorithm 1",
    ),
    thresholds=(
        Threshold("distance", 0.5, "distance of the two targets, above which they differ", CHOSEN),
    ),
    calibration=SILENT_ON_HONEST,
    runs=Runs(loop=True),
    explains=("GS101", "GS103", "GS6"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each generator."""
    optimizers = {one.name: one for one in loop.optimizers}
    for one in loop.facts_of("same-side"):
        both = [optimizers[name] for name in (one.name, one.words[0]) if name in optimizers]
        if len(both) == 2 and both[0].maximizes == both[1].maximizes:
            yield RULE.in_loop(
                loop,
                one.name,
                f"the losses of `{one.name}` and `{one.words[0]}` both {one.words[1]} the critic's "
                "scores of fakes: the critic helps the generator, and teaches it nothing about "
                "data.",
                advice="Change the sign of one: the critic minimises `critic(fake).mean() - "
                "critic(real).mean()`, the generator `-critic(fake).mean()`.",
                value=float(one.count),
                cause="critic",
                location=one.location,
            )
    for losses in loop.targets:
        for side, real in _helpers(losses, limits["distance"]):
            optimizer = optimizers.get(side.optimizer)
            if optimizer is None or optimizer.maximizes or not enough(loop, optimizer.steps):
                continue
            yield RULE.in_loop(
                loop,
                optimizer.name,
                f"`{optimizer.name}` trains a generator with the target {side.value:g}, which "
                f"the discriminator has for fakes. Its target for data is {real:g}. The "
                "generator learns to be recognised.",
                value=side.value,
                limit=limits.of("distance"),
                location=side.location or of_loss(loop, losses),
                parameters=held_by(optimizer, loop),
            )


def _helpers(losses: LossTargets, distance: float) -> Iterator[tuple[LossSide, float]]:
    """Yield the generators' losses with the target for fakes, with the discriminator's target for
    data."""
    for fake in losses.sides:
        real = _value(losses, fake.optimizer)
        if not fake.generated or fake.value is None or real is None:
            continue
        if abs(fake.value - real) <= distance:
            continue
        for one in losses.sides:
            plays = any(s.optimizer == one.optimizer and not s.generated for s in losses.sides)
            if one.generated and one.value == fake.value and not plays:
                yield one, real


def _value(losses: LossTargets, optimizer: str) -> float | None:
    """Return the target that an optimizer's losses have for data."""
    return next(
        (s.value for s in losses.sides if s.optimizer == optimizer and not s.generated), None
    )
