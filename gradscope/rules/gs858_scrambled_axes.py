"""GS858: a view in the place of a permutation of axes."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings, in_steps, of_loss, operations
from gradscope.rules._rule import CHOSEN, SILENT_ON_TWINS, Limits, Rule, Runs, Threshold
from gradscope.typeset.numbers import shape

RULE = Rule(
    code="GS858",
    name="scrambled-axes",
    severity="warning",
    summary="a view swaps two axes without moving the numbers",
    what=(
        "Reads the input of each layer at its first call. It fires if that is a view of a tensor "
        "with the same sizes in another order: the sizes were swapped, the numbers were not. "
        "It also reads the script's text: `x.reshape(c, h, w)` after `h, w, c = x.shape`. "
        "In the loss it finds a view of [N, C, T] as [-1, C], or of a linear layer's [N, T, C] as "
        "[N, C, T]. `permute` and `transpose` are silent."
    ),
    why=(
        "A view only reads the numbers in a new shape. Values of different channels, times or "
        "classes are mixed, and the network sees noise."
    ),
    fix=("Use `permute` or `transpose` to swap axes; use `view` only to merge or split them."),
    sources=(
        "PyTorch forum: view() versus permute(), what is the difference",
        "PyTorch, torch.Tensor.view: the returned tensor shares the same data",
    ),
    thresholds=(Threshold("share", 0.5, "share of the losses read, above which it fires", CHOSEN),),
    calibration=SILENT_ON_TWINS,
    runs=Runs(loop=True),
    explains=("GS603", "GS613"),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each layer, for the loss, and for each view in the text."""
    places = set()
    for one in loop.facts_of("scrambled"):
        before, after = map(shape, one.shapes)
        places.add(one.location)
        yield RULE.in_loop(
            loop,
            one.name,
            f"`{one.name or one.model}` gets a view {after} of {before}: the axes have changed "
            "places, the numbers have not, and values of different axes are mixed.",
            value=1.0,
            cause="view",
            location=one.location,
            model=one.model,
        )
    for part in operations(loop, "scrambled", limits["share"]):
        before, after = map(shape, part.shapes)
        last = len(part.shapes[0]) == len(part.shapes[1])
        yield RULE.in_loop(
            loop,
            "",
            f"the scores {before} are viewed as {after} before the loss, "
            f"{in_steps(part.count, loop.graphs, 'loss', 'losses')} that were read: the "
            f"classes are {'the last axis' if last else 'axis 1'}, and a row mixes several "
            "classes' scores.",
            advice="Use `scores.transpose(1, 2)` in place of the view."
            if last
            else "Use `scores.transpose(1, 2)` before the view, or give cross_entropy the "
            "scores as [N, C, …].",
            value=float(part.count),
            limit=limits.of("share"),
            cause="loss",
            location=of_loss(loop, part),
        )
    for one in loop.facts_of("written-view"):
        call, sizes = one.words
        if one.location not in places:
            yield RULE.in_loop(
                loop,
                "",
                f"`{call}` swaps the sizes ({sizes}), and moves no number: values of different "
                "axes are mixed.",
                value=1.0,
                cause="text",
                location=one.location,
            )
