"""GS878: a denoiser whose target is another draw of noise than the one in its input."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold

RULE = Rule(
    code="GS878",
    name="other-noise",
    severity="error",
    summary="the target is another draw of noise than the one that was added to the input",
    what=(
        "Reads the text at the losses of the sampled steps. It fires if the target of a "
        "difference is noise of the shape of `x`, such as `torch.randn_like(x)`, that nothing "
        "else uses, and the model's input is made of `x` and of another draw."
    ),
    why=(
        "The model cannot see the noise that it should predict: it learns to answer 0, and the "
        "loss stays near 1."
    ),
    fix="Draw the noise once: `noise = torch.randn_like(x)`, then use it for the input and the "
    "target.",
    sources=(
        "Ho et al. 2020, Denoising diffusion probabilistic models, algorithm 1: one noise",
        "Hugging Face, diffusers, unconditional training: add_noise and the loss get one noise",
    ),
    thresholds=(
        Threshold(
            "share", 0.95, "share of the losses that were read, above which it fires", CHOSEN
        ),
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS513", "GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each target."""
    for number, one in enumerate(operations(loop, "other-noise", limits["share"])):
        target, made_at, given = one.words
        yield RULE.in_loop(
            loop,
            "",
            f"the target `{target}` is drawn at {made_at}, and nothing else uses it: the noise in "
            f"`{given}` is another draw, {in_steps(one.count, loop.graphs, 'loss', 'losses')}.",
            value=float(one.count),
            limit=limits.of("share"),
            cause=str(number) if number else None,
            location=of_loss(loop, one),
        )
