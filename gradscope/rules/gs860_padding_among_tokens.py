"""GS860: a padding index that is an ordinary token."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import SILENT_ON_TWINS, Limits, Rule, Runs

RULE = Rule(
    code="GS860",
    name="padding-among-tokens",
    severity="warning",
    summary="the padding index of an embedding is an ordinary token of the data",
    what=(
        "Reads the first input of each nn.Embedding with a `padding_idx`. It fires if, in "
        "half of the sequences, the token occurs singly between others, twice a sequence or "
        "more. Padding at the ends or in long runs is silent."
    ),
    why=(
        "The embedding of the padding index starts at zero and gets no gradient: the network "
        "cannot learn what the token means."
    ),
    fix=("Give padding a separate index, or drop `padding_idx`."),
    sources=(
        "PyTorch, torch.nn.Embedding: entries at padding_idx do not contribute to the gradient",
        "PyTorch forum: padding_idx=0 and a vocabulary that begins at 0",
    ),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS613",),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each embedding."""
    for one in loop.facts_of("padding"):
        index, sequences = (int(figure) for figure in one.figures)
        yield RULE.in_loop(
            loop,
            one.name,
            f"token {index} is the padding index of `{one.name}`, and is between other "
            f"tokens in {one.count} of {sequences} sequences: its embedding stays zero and "
            "never trains.",
            value=one.count / sequences,
            location=one.location,
            model=one.model,
        )
